//! What a check found: findings, counts, and how they are shown.

use serde::Serialize;
use shale_format::FormatError;
use shale_sys::printable;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is wrong, but who looks at the volume will want to know.
    Info,
    /// Not as it should be; no data is in danger.
    Warning,
    /// Data or names are lost or in danger.
    Error,
}

/// One departure from what a volume should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a path where one leads there, else an inode number or the
    /// name of a structure.
    pub object: String,
    /// Number of the inode, if it is about one.
    pub ino: Option<u64>,
    /// Block of the NVM tier, if it is about one.
    pub block: Option<u64>,
    /// What is wrong. The words for one kind of damage are always the same.
    pub what: Cow<'static, str>,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// What was counted while checking. Sizes in blocks are of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Inodes in use, damaged ones not counted.
    pub inodes: u64,
    /// Inode slots that cannot be read.
    pub damaged_inodes: u64,
    /// Directories among them, the root counted.
    pub directories: u64,
    /// Regular files among them.
    pub files: u64,
    /// Symbolic links among them.
    pub symlinks: u64,
    /// Device nodes, pipes and sockets among them.
    pub special: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Directory entries.
    pub entries: u64,
    /// Tree nodes.
    pub nodes: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks that something refers to.
    pub blocks_used: u64,
    /// Blocks marked free that nothing refers to.
    pub blocks_free: u64,
    /// Blocks marked used that nothing refers to.
    pub blocks_leaked: u64,
    /// Blocks marked free that something refers to.
    pub blocks_unmarked: u64,
    /// Times that a block was referred to again.
    pub blocks_twice: u64,
    /// Update logs in use.
    pub logs: u64,
    /// Records in them that are not digested.
    pub records_waiting: u64,
    /// Bytes of these records.
    pub bytes_waiting: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Identity of the volume, if a superblock could be read.
    pub uuid: Option<String>,
    /// Number of the last batch.
    pub txid: u64,
    /// A batch waits in the journal: the volume was checked as it is after that batch.
    pub needs_recovery: bool,
    /// Whether everything was looked at. Otherwise a finding says what could not be.
    pub complete: bool,
    /// The findings, as many as were asked for.
    pub findings: Vec<Finding>,
    /// Findings of severity error, listed or not.
    pub errors: u64,
    /// Findings of severity warning, listed or not.
    pub warnings: u64,
    /// Findings of severity info, listed or not.
    pub infos: u64,
    /// Findings that are counted but not listed.
    pub not_listed: u64,
    /// What was counted.
    pub totals: Totals,
}

impl Report {
    /// Whether the volume is as it should be: everything was looked at and there is
    /// neither error nor warning.
    pub fn clean(&self) -> bool {
        self.complete && self.errors == 0 && self.warnings == 0
    }
}

impl Report {
    /// Adds a finding; lists it if fewer than `most` are listed.
    pub(super) fn push(&mut self, finding: Finding, most: usize) {
        match finding.severity {
            Severity::Info => self.infos += 1,
            Severity::Warning => self.warnings += 1,
            Severity::Error => self.errors += 1,
        }
        match self.findings.len() < most {
            true => self.findings.push(finding),
            false => self.not_listed += 1,
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, printable::name(&self.object))?;
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        write!(f, ": {}", self.what)?;
        match (self.expected.as_str(), self.found.as_str()) {
            ("", "") => Ok(()),
            ("", found) => write!(f, ": {found}"),
            (expected, "") => write!(f, ": expected {expected}"),
            (expected, found) => write!(f, ": expected {expected}, found {found}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        if self.not_listed > 0 {
            writeln!(f, "… and {} more findings", self.not_listed)?;
        }
        let t = &self.totals;
        writeln!(
            f,
            "{} inodes ({} directories, {} files, {} links, {} special, {} without a name), {} entries",
            t.inodes, t.directories, t.files, t.symlinks, t.special, t.orphans, t.entries
        )?;
        writeln!(
            f,
            "{} blocks used, {} free, {} leaked; {} extents, {} tree nodes",
            t.blocks_used, t.blocks_free, t.blocks_leaked, t.extents, t.nodes
        )?;
        writeln!(
            f,
            "{} update logs, {} records ({} bytes) not digested",
            t.logs, t.records_waiting, t.bytes_waiting
        )?;
        let state = match (self.clean(), self.complete) {
            (true, _) => "clean",
            (false, true) => "NOT clean",
            (false, false) => "NOT clean, and not checked to the end",
        };
        let plural = |n| if n == 1 { "" } else { "s" };
        let (errors, warnings) = (self.errors, self.warnings);
        write!(
            f,
            "volume is {state}: {errors} error{}, {warnings} warning{}",
            plural(errors),
            plural(warnings)
        )
    }
}

/// What a finding is about, before paths are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// A structure of the volume.
    Part(&'static str),
    /// An update log.
    Log(u32),
    /// An inode.
    Inode(u64),
}

impl Object {
    /// What has this inode number.
    pub(super) fn of(ino: u64) -> Object {
        match ino {
            0 => Object::Part("inode file"),
            ino => Object::Inode(ino),
        }
    }
}

/// Collects findings up to a limit.
pub(super) struct Findings {
    most: usize,
    list: Vec<Finding>,
    counts: [u64; 3],
    /// Something was looked at already: it is not reported twice.
    pub(super) quiet: bool,
}

impl Findings {
    pub(super) fn new(most: usize) -> Self {
        Findings {
            most,
            list: Vec::new(),
            counts: [0; 3],
            quiet: false,
        }
    }

    /// Notes one finding.
    pub(super) fn note(
        &mut self,
        severity: Severity,
        object: Object,
        block: Option<u64>,
        what: impl Into<Cow<'static, str>>,
        (expected, found): (impl fmt::Display, impl fmt::Display),
    ) {
        if self.quiet {
            return;
        }
        self.counts[severity as usize] += 1;
        if self.list.len() >= self.most {
            return;
        }
        let (object, ino) = match object {
            Object::Part(name) => (name.to_owned(), None),
            Object::Log(slot) => (shale_format::log::file_name(slot), None),
            Object::Inode(ino) => (String::new(), Some(ino)),
        };
        self.list.push(Finding {
            severity,
            object,
            ino,
            block,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }

    /// Notes an error.
    pub(super) fn error(
        &mut self,
        object: Object,
        block: Option<u64>,
        what: impl Into<Cow<'static, str>>,
        values: (impl fmt::Display, impl fmt::Display),
    ) {
        self.note(Severity::Error, object, block, what, values);
    }

    /// Notes an error unless `found` is `expected`.
    pub(super) fn equal<T: PartialEq + fmt::Display>(
        &mut self,
        object: Object,
        what: &'static str,
        expected: T,
        found: T,
    ) {
        if expected != found {
            self.error(object, None, what, (expected, found));
        }
    }

    /// Notes bytes that do not decode.
    pub(super) fn undecodable(&mut self, object: Object, block: Option<u64>, e: &FormatError) {
        let hex = |n: u64| format!("{n:#x}");
        let (what, problem, expected, found) = match *e {
            FormatError::Magic {
                what,
                expected,
                found,
                ..
            } => (what, "magic number", hex(expected), hex(found)),
            FormatError::Checksum {
                what,
                expected,
                found,
                ..
            } => (what, "checksum", hex(expected.into()), hex(found.into())),
            FormatError::Misplaced { what, at, found } => {
                (what, "place", at.to_string(), found.to_string())
            }
            FormatError::Field {
                what, field, found, ..
            } => (what, field, String::new(), found.to_string()),
            FormatError::Short {
                what,
                expected,
                found,
            } => (what, "bytes", expected.to_string(), found.to_string()),
            FormatError::Version(ref refusal) => {
                ("superblock", "version", String::new(), refusal.to_string())
            }
            FormatError::Name { bytes, why } => (
                "name",
                "not legal",
                String::new(),
                format!("{bytes} bytes, {why}"),
            ),
        };
        self.error(
            object,
            block,
            format!("{what}: {problem}"),
            (expected, found),
        );
    }

    /// Inodes that findings are about.
    pub(super) fn inodes(&self) -> Vec<u64> {
        let mut inos: Vec<u64> = self.list.iter().filter_map(|f| f.ino).collect();
        inos.sort_unstable();
        inos.dedup();
        inos
    }

    /// Puts in names for inodes and hands everything over.
    pub(super) fn finish(self, names: &BTreeMap<u64, String>, report: &mut Report) {
        let total: u64 = self.counts.iter().sum();
        report.not_listed = total - self.list.len() as u64;
        [report.infos, report.warnings, report.errors] = self.counts;
        report.findings = self.list;
        for finding in &mut report.findings {
            if let Some(ino) = finding.ino {
                finding.object = match names.get(&ino) {
                    Some(path) => path.clone(),
                    None => format!("inode {ino}"),
                };
            }
        }
    }
}
