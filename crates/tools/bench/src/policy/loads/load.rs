//! Which loads there are, how one runs, what it did.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A load; the documentation of each says where its parameters are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Filebench `fileserver.f`: 10,000 files of 128 KiB in directories of 20; create and write a whole file, append
    /// 16 KiB to one, read a whole one, delete one, stat one. No fsync.
    Fileserver,
    /// Filebench `webserver.f`: 1,000 files of 16 KiB in directories of 20; read ten whole files, append 16 KiB to a log. No
    /// fsync.
    Webserver,
    /// Filebench `webproxy.f`: 10,000 files of 16 KiB in one directory; delete a file, create and write one of 16 KiB, read
    /// five, append 16 KiB to a log. No fsync.
    Webproxy,
    /// Filebench `varmail.f`: 1,000 files of 16 KiB in one directory; delete a file; create, append 16 KiB, fsync; read a
    /// file, append 16 KiB, fsync; read a file.
    Varmail,
    /// PostMark 1.5 (Katcher 1997) with its defaults: 500 files of 500 to 9,770 bytes, evenly distributed, in one directory, calls of
    /// 512 bytes. A transaction reads a whole file or appends to one, and creates or deletes one, each as likely as the other. No fsync.
    Postmark,
    /// As `make` of a kernel uses files. Of each source it reads the source and headers, writes an object, a list of
    /// dependencies that it reads and removes again, and a command file; objects of a directory are linked into one. No
    /// fsync. HiNFS built Linux 3.11.0; numbers and sizes are ours, given at the constants of module `tree`.
    KernelMake,
    /// As a search for an absent pattern in a kernel's sources: every file of the tree of [`Load::KernelMake`] is read. Nothing
    /// is written.
    KernelGrep,
    /// The pattern of syncs of TPC-C on a database with a journal: each transaction reads pages, overwrites pages of 4 KiB
    /// anywhere in the database, and appends them to the journal, with an fsync; after 64 transactions the database is synced and
    /// the journal cut. HiNFS ran DBT2 on PostgreSQL with three warehouses, where over 90% of the bytes are synced (§2.1, as here);
    /// the other numbers are ours, at the constants of module `database`.
    Tpcc,
    /// SYNTHETIC, not the trace of FIU's research desktop: reads, writes, unlinks and fsyncs. HiNFS's text gives no share of
    /// synced bytes (Figure 2 is a picture), so that it is ours.
    Usr0,
    /// SYNTHETIC, as [`Load::Usr0`] of the same desktop at another time.
    Usr1,
    /// SYNTHETIC, not the trace of LASR: it has no fsync, as published (HiNFS §2.1).
    Lasr,
    /// SYNTHETIC, not MobiBench's trace of Facebook: calls of less than 1 KiB on average, as published (HiNFS §5.3); "a significant
    /// amount of sync operations", of which the text gives no number, so that the share is ours.
    Facebook,
}

impl Load {
    /// All, in the order of the paper's figures.
    pub const ALL: [Load; 12] = [
        Load::Fileserver,
        Load::Webserver,
        Load::Webproxy,
        Load::Varmail,
        Load::Usr0,
        Load::Usr1,
        Load::Lasr,
        Load::Facebook,
        Load::Postmark,
        Load::Tpcc,
        Load::KernelGrep,
        Load::KernelMake,
    ];
    /// Those of HiNFS's Figures 7 to 12.
    pub const SERVERS: [Load; 4] = [
        Load::Fileserver,
        Load::Webserver,
        Load::Webproxy,
        Load::Varmail,
    ];
    /// Those of HiNFS's Figure 13.
    pub const TRACES: [Load; 4] = [Load::Usr0, Load::Usr1, Load::Lasr, Load::Facebook];
    /// Those of HiNFS's Figure 14.
    pub const PROGRAMS: [Load; 4] = [
        Load::Postmark,
        Load::Tpcc,
        Load::KernelGrep,
        Load::KernelMake,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Load::Fileserver => "fileserver",
            Load::Webserver => "webserver",
            Load::Webproxy => "webproxy",
            Load::Varmail => "varmail",
            Load::Postmark => "postmark",
            Load::KernelMake => "kernel-make",
            Load::KernelGrep => "kernel-grep",
            Load::Tpcc => "tpcc",
            Load::Usr0 => "usr0",
            Load::Usr1 => "usr1",
            Load::Lasr => "lasr",
            Load::Facebook => "facebook",
        }
    }

    /// The load of a name.
    ///
    /// # Errors
    /// There is none; says which there are.
    pub fn named(name: &str) -> std::result::Result<Load, String> {
        let found = Load::ALL.into_iter().find(|load| load.name() == name);
        let known = || Load::ALL.map(Load::name).join(", ");
        found.ok_or_else(|| format!("'{name}' is none of {}", known()))
    }

    /// What has to be said wherever its numbers are shown: it is not what the paper ran.
    pub fn caveat(self) -> Option<&'static str> {
        match self {
            Load::Usr0 | Load::Usr1 => {
                Some("synthetic, not the trace; its share of synced bytes is ours")
            }
            Load::Lasr => Some("synthetic, not the trace; no fsync, as published"),
            Load::Facebook => Some(
                "synthetic, not the trace; calls below 1 KiB on average, as published; its share of synced bytes is ours",
            ),
            Load::KernelMake | Load::KernelGrep => {
                Some("files and calls of a build and a search, not the programs")
            }
            Load::Tpcc => Some("the pattern of syncs of TPC-C on a database, not a database"),
            _ => None,
        }
    }

    /// Whether the size of its calls can be chosen; pages and traces have theirs.
    pub fn has_io_size(self) -> bool {
        !matches!(
            self,
            Load::Tpcc | Load::Usr0 | Load::Usr1 | Load::Lasr | Load::Facebook
        )
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// When a load ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Limit {
    /// After so many seconds.
    Seconds(f64),
    /// When each thread has done its part of so many operations, and what belongs to the last of them.
    Operations(u64),
}

/// How a load runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// Threads.
    pub threads: u32,
    /// When it ends.
    pub limit: Limit,
    /// Files that there can be; of `tpcc` 64 KiB of the database each. `None`: as published.
    pub files: Option<u64>,
    /// Bytes of a call, where the load lets it be chosen. `None`: as published.
    pub io_bytes: Option<u64>,
    /// Of a hundred bytes that a trace writes so many are synced. `None`: as the load says.
    pub sync_percent: Option<u32>,
    /// Of all choices: the same with one thread gives the same operations.
    pub seed: u64,
}

/// What a load did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Calls: each open, read, write, fsync, close, stat, create, truncate and unlink is one.
    pub operations: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Calls of fsync.
    pub fsyncs: u64,
    /// Bytes written that an fsync followed while the file was open.
    pub synced_bytes: u64,
}

impl Found {
    /// Operations a second.
    pub fn operations_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}
