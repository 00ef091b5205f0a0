//! Options of `shale mount -o` and of `mount -o remount`, and how a mount is mounted now.
//!
//! The kernel keeps the options and goes by them, but for `noatime`, which is the file system's to keep, and
//! `ro`, which clients in other processes have to know. So the daemon watches the table of mounts, and
//! tells them: also of a change by mount(8).

use crate::failure::{Failure, Result};
use crate::mounts::mount_table::{self, Mount};
use rustix::event::{PollFd, PollFlags, poll};
use shale_daemon::Daemon;
use shale_fuse::{MountOptions, remount};
use shale_proto::shared_pages::mount_flag;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

/// What libfuse and mount(8) add, which says nothing here.
const OF_FUSE: [&str; 5] = [
    "user_id=",
    "group_id=",
    "default_permissions",
    "max_read=",
    "subtype=",
];

/// An option that is set or not: the word that sets it, the one that takes it back, and where it is kept.
type Flag = (
    &'static str,
    &'static str,
    fn(&mut MountOptions) -> &mut bool,
);
const FLAGS: [Flag; 5] = [
    ("ro", "rw", |o| &mut o.read_only),
    ("nosuid", "suid", |o| &mut o.nosuid),
    ("nodev", "dev", |o| &mut o.nodev),
    ("noexec", "exec", |o| &mut o.noexec),
    ("noatime", "atime", |o| &mut o.noatime),
];

/// Users other than the one that mounts may come, too.
const ALLOW_OTHER: &str = "allow_other";

/// Options as they were given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// What they come to.
    pub options: MountOptions,
    /// A mount that is there is to be changed.
    pub remount: bool,
}

impl Given {
    /// `base` with the options of these lists, each of them separated by commas; a later one counts.
    ///
    /// # Errors
    /// One is not known.
    pub fn parse(base: MountOptions, lists: &[String]) -> Result<Self> {
        let mut given = Self {
            options: base,
            remount: false,
        };
        for word in lists.iter().flat_map(|list| list.split(',')) {
            given.take(word)?;
        }
        Ok(given)
    }

    fn take(&mut self, word: &str) -> Result<()> {
        for (set, clear, field) in FLAGS {
            if [set, clear].contains(&word) {
                *field(&mut self.options) = word == set;
                return Ok(());
            }
        }
        if let Some(name) = word.strip_prefix("fsname=") {
            name.clone_into(&mut self.options.fsname);
            return Ok(());
        }
        match word {
            "relatime" => self.options.noatime = false,
            "remount" => self.remount = true,
            ALLOW_OTHER => self.options.allow_other = true,
            // Times of access of directories are never noted.
            "" | "defaults" | "_netdev" | "nofail" | "auto" | "noauto" | "nodiratime" => {}
            "strictatime" | "lazytime" => {
                return Err(Failure::usage(format!(
                    "-o {word}: reads from the kernel's cache do not reach the volume, which notes times of \
                     access as with relatime"
                ))
                .advise("leave it out, or noatime"));
            }
            _ if OF_FUSE.iter().any(|of_fuse| word.starts_with(of_fuse)) => {}
            _ => {
                return Err(Failure::usage(format!("-o {word}: there is no such option")).advise(
                    "there are ro, rw, noatime, relatime, nosuid, suid, nodev, dev, noexec, exec, allow_other, degraded, metrics=ADDRESS, fsname=NAME, remount",
                ));
            }
        }
        Ok(())
    }
}

/// The options as one list, for [`Given::parse`].
pub fn list(options: &MountOptions) -> String {
    let mut options = options.clone();
    let set: Vec<_> = FLAGS.iter().filter(|f| *f.2(&mut options)).collect();
    let mut words: Vec<_> = set.iter().map(|f| f.0.to_owned()).collect();
    let usual = MountOptions::default();
    if options.allow_other && !usual.allow_other {
        words.push(ALLOW_OTHER.to_owned());
    }
    if options.fsname != usual.fsname {
        words.push(format!("fsname={}", options.fsname));
    }
    words.join(",")
}

/// Options of a mount that is there.
pub fn of(mount: &Mount) -> MountOptions {
    let has = |word| mount.options.split(',').any(|option| option == word);
    let mut options = MountOptions {
        allow_other: has(ALLOW_OTHER),
        ..MountOptions::default()
    };
    for (set, _, field) in FLAGS {
        *field(&mut options) = has(set);
    }
    options
}

/// Changes the options of a mount. `all`: those that are not given are not set, as mount(8) has it that
/// gives all; else they stay.
pub fn change(mountpoint: &Path, lists: &[String], all: bool) -> Result<MountOptions> {
    let place = mount_table::resolve(mountpoint)?;
    let mount = mount_table::shale_at(&place)?;
    let mount = mount.ok_or_else(|| {
        Failure::not_mounted(format!(
            "{}: no shale volume is mounted there",
            place.display()
        ))
    })?;
    let base = match all {
        true => MountOptions::default(),
        false => of(&mount),
    };
    let given = Given::parse(base, lists)?;
    if !given.remount {
        return Err(Failure::usage(format!(
            "{}: it is mounted: only -o remount can change how",
            place.display()
        )));
    }
    remount(&place, &given.options).map_err(|error| {
        let failure = Failure::new(format!("{}: cannot remount: {error}", place.display()));
        match error.raw_os_error() {
            Some(libc::EBUSY) => failure.advise("close the files that are open for writing"),
            _ => failure,
        }
    })?;
    Ok(given.options)
}

/// Arguments of the hidden verb that mount(8) comes to with `-o remount`: it takes our type `fuse.shale` for the
/// name of a program, and the name of the mount for its first argument.
#[derive(Debug, clap::Args)]
pub struct Args {
    mountpoint: PathBuf,
    #[arg(short = 'o')]
    options: Vec<String>,
    /// Type of the mount.
    #[arg(short = 't')]
    _kind: Option<String>,
}

/// See [`Args`].
pub fn verb(args: &Args) -> Result<()> {
    change(&args.mountpoint, &args.options, true).map(drop)
}

/// Tells the clients of a daemon how its volume is mounted at `mountpoint`, now and whenever that changes.
///
/// # Errors
/// There is no table of mounts, or no thread to be had.
pub fn watch(daemon: &Arc<Daemon>, mountpoint: &Path) -> Result<()> {
    const TABLE: &str = "/proc/self/mountinfo";
    let table = File::open(TABLE).map_err(Failure::because(TABLE))?;
    let (mountpoint, weak) = (mountpoint.to_owned(), Arc::downgrade(daemon));
    tell(&weak, &mountpoint);
    thread::Builder::new()
        .name("mount-options".to_owned())
        .spawn(move || {
            // The kernel says so when the table has changed since it was looked at last.
            let mut fds = [PollFd::new(&table, PollFlags::PRI)];
            while poll(&mut fds, None).is_ok() && tell(&weak, &mountpoint) {}
        })
        .map_err(Failure::because("cannot start a thread"))?;
    Ok(())
}

/// `false`: the daemon is gone.
fn tell(daemon: &Weak<Daemon>, mountpoint: &Path) -> bool {
    let Some(daemon) = daemon.upgrade() else {
        return false;
    };
    // A mount that is not seen from here stays what it was.
    if let Ok(Some(mount)) = mount_table::shale_at(mountpoint) {
        let options = of(&mount);
        let mut flags = 0;
        for (set, flag) in [
            (options.read_only, mount_flag::READ_ONLY),
            (options.noatime, mount_flag::NO_ATIME),
        ] {
            flags |= if set { flag } else { 0 };
        }
        daemon.set_mount_flags(flags);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Given> {
        let lists: Vec<_> = words.iter().map(|w| (*w).to_owned()).collect();
        Given::parse(MountOptions::default(), &lists)
    }

    #[test]
    fn a_later_option_counts() {
        let given = parsed(&["ro,noatime,nosuid", "rw,noexec,nodev,suid"]).unwrap();
        assert_eq!(list(&given.options), "nodev,noexec,noatime");
        assert!(!given.remount);
        let all =
            "rw,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other,max_read=1";
        let given = parsed(&["noatime", all]).unwrap();
        assert_eq!((list(&given.options).as_str(), given.remount), ("", true));
        let given = parsed(&["ro,fsname=/etc/shale/a.toml"]).unwrap();
        assert_eq!(list(&given.options), "ro,fsname=/etc/shale/a.toml");
        assert!(parsed(&["noatime,nodiratime"]).unwrap().options.noatime);
    }

    #[test]
    fn what_is_not_known_or_not_kept_is_refused() {
        for word in ["strictatime", "acl", "ro=1"] {
            let failure = parsed(&[word]).unwrap_err();
            assert!(failure.text.contains(word), "{}", failure.text);
        }
    }
}
