//! Walking along paths, as path_resolution(7) has it.
//!
//! A walk happens inside the read section and takes one directory's lock at a time, in the run in which
//! what it finds is used: no other client can change that before the run is over. Another
//! thread of this one can: an operation on names looks them up again under the locks that it
//! needs, and the run restarts if they stand for something else by then.

use crate::client::call::CallContext;
use crate::io::content::read_target;
use crate::namespace::access::EXECUTE;
use crate::namespace::acl::may_access;
use crate::namespace::path_cache::{CachedPath, Passed, PathCache};
use shale_format::Ino;
use shale_format::limits::PATH_BYTES_MAX;
use shale_inodes::dirents::{KIND_DIR, KIND_SYMLINK, check_length, find};
use shale_proto::LeaseMode;
use shale_session::errno::{BY_KERNEL, Errno, Stop};

/// Most symbolic links that one walk follows.
const LINKS_MAX: u32 = 40;

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// A name, which may stand for nothing.
    Name(Vec<u8>),
    /// `.`, or nothing but slashes.
    Dot,
    /// `..`.
    DotDot,
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Directory in which the last component is looked up.
    pub dir: u64,
    /// The last component.
    pub last: Last,
    /// Whether a slash follows it: only a directory will do.
    pub slash: bool,
    /// Inode and type, if it exists.
    pub found: Option<(u64, u8)>,
}

impl Target {
    /// The name, for operations that make, remove or move one; `other` if there is none.
    pub(crate) fn name(&self, other: Errno) -> Result<&[u8], Errno> {
        match &self.last {
            Last::Name(name) => Ok(name),
            _ => Err(other),
        }
    }

    /// The inode; `ENOENT` if there is none, `ENOTDIR` if a slash follows a file.
    pub(crate) fn ino(&self) -> Result<u64, Errno> {
        match self.found {
            None => Err(Errno::NOENT),
            Some((_, kind)) if self.slash && kind != KIND_DIR => Err(Errno::NOTDIR),
            Some((ino, _)) => Ok(ino),
        }
    }
}

/// Where paths begin, and what they may lead to.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'o> {
    /// Paths that were walked.
    pub paths: &'o PathCache,
    /// Directory in which a path begins that does not begin with a slash.
    pub start: u64,
    /// The tree is mounted somewhere, and the caller walks as the kernel does: what leads out of it, by an absolute symbolic
    /// link or above the root, is [`BY_KERNEL`].
    pub mounted: bool,
    /// Leases may be asked for. Else what does not lead through a directory that this client has alone is [`BY_KERNEL`]: it can be
    /// answered there, and nobody has to give anything up for it.
    pub takes: bool,
    /// A path that begins in a directory without a name is [`BY_KERNEL`], which has that directory.
    pub kernel_has_start: bool,
}

/// One walk.
struct Walk<'o, 's> {
    op: &'o CallContext<'s>,
    from: Origin<'o>,
    /// What is not there will be made.
    create: bool,
    /// Lease on the directory of the last component: one that will be changed is not
    /// asked for twice.
    last: LeaseMode,
    links: u32,
    passed: Vec<Passed>,
    /// As [`Origin::takes`], or it leads through a directory that this client has alone.
    takes: bool,
}

/// Walks along `path`, which begins at the root with a slash, and where `from` says without one. `follow`:
/// whether a symbolic link at its end is followed; a slash behind it always does.
/// Errors: `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
pub(crate) fn walk(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
    follow: bool,
) -> Result<Target, Stop> {
    Walk::new(op, from, false, LeaseMode::Shared).whole(path, follow)
}

/// As [`walk`], to a name that will be made, removed or moved; nothing is followed.
pub(crate) fn walk_to_change(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
) -> Result<Target, Stop> {
    Walk::new(op, from, false, LeaseMode::Exclusive).whole(path, false)
}

/// As [`walk`], to a file that is made if it is not there: `EISDIR` for a name with a
/// slash behind it, whatever it stands for.
pub(crate) fn walk_to_create(
    op: &CallContext<'_>,
    from: Origin<'_>,
    path: &[u8],
    follow: bool,
) -> Result<Target, Stop> {
    // Without following it must be new.
    let last = if follow {
        LeaseMode::Shared
    } else {
        LeaseMode::Exclusive
    };
    Walk::new(op, from, true, last).whole(path, follow)
}

/// Whether a directory of this mode is one in which users make files beside each other.
pub(crate) fn is_sticky_and_shared(mode: u32) -> bool {
    mode & libc::S_ISVTX != 0 && mode & 0o022 != 0
}

/// A path's directory part, its last component, and whether slashes follow.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let start = path[..end]
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |at| at + 1);
    (&path[..start], &path[start..end], end < path.len())
}

impl<'o, 's> Walk<'o, 's> {
    fn new(op: &'o CallContext<'s>, from: Origin<'o>, create: bool, last: LeaseMode) -> Self {
        op.follows_names();
        Self {
            op,
            from,
            create,
            last,
            links: 0,
            passed: Vec::new(),
            takes: from.takes,
        }
    }

    fn whole(&mut self, path: &[u8], follow: bool) -> Result<Target, Stop> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if path.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        let target = self.last(self.from.start, path, follow, true)?;
        self.may_ask().map(|()| target)
    }

    /// Leaves to the kernel what needs a lease, where none may be asked for.
    fn may_ask(&self) -> Result<(), Stop> {
        match self.takes {
            true => Ok(()),
            false => Err(BY_KERNEL.into()),
        }
    }

    /// Walks from directory `start`; `whole`: this is the caller's path, and not a link's.
    fn last(&mut self, start: u64, path: &[u8], follow: bool, whole: bool) -> Result<Target, Stop> {
        let (prefix, last, slash) = split(path);
        let dir = match whole {
            true => self.known_dir(prefix)?,
            false => {
                self.stays_inside(path)?;
                self.dir(start, prefix)?
            }
        };
        let target = |last, found| Target {
            dir,
            last,
            slash,
            found,
        };
        match last {
            b"" => Ok(target(Last::Dot, Some((dir, KIND_DIR)))),
            b"." => {
                let here = self.step(dir, last)?;
                Ok(target(Last::Dot, here))
            }
            b".." => {
                let above = self.step(dir, last)?;
                Ok(target(Last::DotDot, above))
            }
            _ if slash && self.create => {
                self.step(dir, b".")?;
                Err(Errno::ISDIR.into())
            }
            name => match self.step_in(dir, name, self.last)? {
                Some((link, KIND_SYMLINK)) if follow || slash => {
                    self.may_be_followed(dir)?;
                    let to = self.link(link)?;
                    let mut target = self.last(dir, &to, true, false)?;
                    target.slash |= slash;
                    Ok(target)
                }
                found => Ok(target(Last::Name(name.into()), found)),
            },
        }
    }

    /// Leaves to the kernel what it may refuse to follow at the end of a path, even to the superuser: links in a sticky directory that
    /// others may write (`fs.protected_symlinks`, proc_sys_fs(5)).
    fn may_be_followed(&self, dir: u64) -> Result<(), Stop> {
        if !self.from.mounted {
            return Ok(());
        }
        let node = self.op.node(dir)?;
        match is_sticky_and_shared(self.op.read(&node)?.inode.mode) {
            true => Err(BY_KERNEL.into()),
            false => Ok(()),
        }
    }

    /// Refuses the target of a symbolic link that leads out of a mounted tree.
    fn stays_inside(&self, target: &[u8]) -> Result<(), Stop> {
        match self.from.mounted && target.starts_with(b"/") {
            true => Err(BY_KERNEL.into()),
            false => Ok(()),
        }
    }

    /// The directory that the whole path `prefix` leads to, from the table if it knows.
    fn known_dir(&mut self, prefix: &[u8]) -> Result<u64, Stop> {
        let Origin { paths, start, .. } = self.from;
        let start = match prefix.first() {
            Some(b'/') => Ino::ROOT.0,
            _ => start,
        };
        if prefix.iter().all(|&b| b == b'/') {
            return Ok(start);
        }
        let (op, caller) = (self.op, self.op.caller);
        let way = CachedPath {
            uid: caller.uid,
            gid: caller.gid,
            start,
            path: prefix,
        };
        let generation = paths.generation();
        // The table does not say who else has leases on what is on the way.
        if self.takes {
            let known = paths.get(&way, |ino| op.lease_word(ino));
            op.count_path(known.is_some());
            if let Some(dir) = known {
                return Ok(dir);
            }
        }
        let dir = self.dir(start, prefix)?;
        paths.note(&way, generation, &self.passed, dir);
        Ok(dir)
    }

    /// Follows every component of `path` from `dir` on; each has to be a directory or
    /// lead to one.
    fn dir(&mut self, dir: u64, path: &[u8]) -> Result<u64, Stop> {
        let mut dir = if path.starts_with(b"/") {
            Ino::ROOT.0
        } else {
            dir
        };
        for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
            dir = match self.step(dir, name)?.ok_or(Errno::NOENT)? {
                (ino, KIND_DIR) => ino,
                (link, KIND_SYMLINK) => {
                    let to = self.link(link)?;
                    self.stays_inside(&to)?;
                    self.dir(dir, &to)?
                }
                _ => return Err(Errno::NOTDIR.into()),
            };
        }
        Ok(dir)
    }

    fn pass(&mut self, ino: u64) {
        self.passed.push((ino, self.op.lease_word(ino)));
    }

    /// What `name` stands for in a directory that the caller may search.
    fn step(&mut self, dir: u64, name: &[u8]) -> Result<Option<(u64, u8)>, Stop> {
        self.step_in(dir, name, LeaseMode::Shared)
    }

    fn step_in(
        &mut self,
        dir: u64,
        name: &[u8],
        mode: LeaseMode,
    ) -> Result<Option<(u64, u8)>, Stop> {
        self.pass(dir);
        let node = match self.op.leased(dir, mode) {
            Err(_) if !self.takes => return Err(BY_KERNEL.into()),
            node => node?,
        };
        self.takes |= self.op.may_change(&node);
        let state = self.op.read(&node)?;
        if state.orphan && self.from.mounted && dir == self.from.start {
            // The caller gave a number: no name leads elsewhere by now.
            let gone = if self.from.kernel_has_start {
                BY_KERNEL
            } else {
                Errno::NOENT
            };
            return Err(gone.into());
        }
        self.op.live_dir(&state)?;
        may_access(self.op, &state, EXECUTE)?;
        match name {
            b"." => return Ok(Some((dir, KIND_DIR))),
            b".." if dir == Ino::ROOT.0 && self.from.mounted => return Err(BY_KERNEL.into()),
            b".." => return Ok(Some((state.inode.parent.max(Ino::ROOT.0), KIND_DIR))),
            _ => check_length(name)?,
        }
        Ok(find(self.op.volume(), &state, name)?.map(|f| (f.ino, f.kind)))
    }

    /// Target of a symbolic link on the way.
    fn link(&mut self, ino: u64) -> Result<Vec<u8>, Stop> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        self.pass(ino);
        self.may_ask()?;
        let node = self.op.node(ino)?;
        let state = self.op.read(&node)?;
        if !state.inode.is_symlink() {
            return Err(Stop::Again);
        }
        read_target(self.op, &node, &state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_the_last_component() {
        let s = |p: &'static str| {
            let (prefix, last, slash) = split(p.as_bytes());
            (
                std::str::from_utf8(prefix).unwrap(),
                std::str::from_utf8(last).unwrap(),
                slash,
            )
        };
        assert_eq!(s("a"), ("", "a", false));
        assert_eq!(s("/a"), ("/", "a", false));
        assert_eq!(s("/a/b//"), ("/a/", "b", true));
        assert_eq!(s("a//.."), ("a//", "..", false));
        assert_eq!(s("///"), ("", "", true));
    }
}
