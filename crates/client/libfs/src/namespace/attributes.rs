//! Attributes of inodes, targets of symbolic links, sizes of the file system.

use crate::client::call::CallContext;
use crate::client::reservation::HIDDEN_BLOCKS;
use crate::client::session::{Need, Session};
use crate::errno::{Errno, Result, Stop};
use crate::inodes::attr::{Attr, Caller, SetAttr, SetTime, Timestamp, without_set_id};
use crate::inodes::flags::may_set;
use crate::io::read::read_target;
use crate::namespace::rights::has_capability;
use shale_format::Ino;
use shale_format::inode::{Inode, time};
use shale_format::limits::{BLOCK_BYTES, NAME_BYTES_MAX};
use shale_format::record::{Kind, SetAttrBody, attr, record_bytes};
use shale_oplog::encode;

const SECOND_NS: u32 = 1_000_000_000;
/// "Leave it as it is" for an owner or group, as in chown(2).
const NO_ID: u32 = u32::MAX;

/// What `statvfs` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts, and preferred size of input and output, in bytes.
    pub block_bytes: u32,
    /// Blocks that files could ever use.
    pub blocks: u64,
    /// Blocks that are free for files; what was deleted counts at once.
    pub blocks_free: u64,
    /// Inodes, used and free.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

impl Session {
    /// Attributes of an inode. Errors: `ENOENT`.
    pub fn getattr(&self, caller: &Caller, ino: u64) -> Result<Attr> {
        self.run(caller, Need::default(), |op| {
            let node = op.node(ino)?;
            let state = op.read(&node)?;
            Ok(Attr::of(&state.inode, state.blocks))
        })
    }

    /// Changes attributes and gives the new ones. A change of owner or group takes
    /// set-user-id away, and set-group-id of a group-executable file, unless `mode` is
    /// given too. A new size and other attributes are two transactions, the size first;
    /// everything else is one. Errors: `ENOENT`, `EINVAL` for a time that is none; for a
    /// size those of [`Session::truncate`].
    pub fn setattr(&self, caller: &Caller, ino: u64, set: &SetAttr) -> Result<Attr> {
        check_times(set)?;
        let rest = SetAttr { size: None, ..*set };
        let done = self.done_before(caller).map(|d| (d.kind, d.records));
        let sized = done.is_some_and(|(kind, _)| kind == Kind::Truncate);
        match (set.size, done) {
            (None, Some(_)) => return self.getattr(caller, ino),
            // Cut off between its two transactions?
            (Some(_), Some((_, records))) if records > 1 || !sized => {
                return self.getattr(caller, ino);
            }
            (Some(size), None) => self.truncate(caller, ino, size, set.kill_suidgid)?,
            _ => {}
        }
        self.set_attributes_where(caller, |_| Ok((ino, rest)))
    }

    /// Sets the attributes, all but the size, that `place` comes to, of the inode that it
    /// finds: in the run in which it does, see [`Self::make_where`].
    pub(crate) fn set_attributes_where(
        &self,
        caller: &Caller,
        place: impl Fn(&CallContext<'_>) -> std::result::Result<(u64, SetAttr), Stop>,
    ) -> Result<Attr> {
        let need = Need::log(record_bytes(SetAttrBody::BYTES, 0) as u64);
        self.run(caller, need, |op| {
            let (ino, set) = place(op)?;
            check_times(&set)?;
            let node = op.node_to_change(ino)?;
            let mut state = op.write(&node)?;
            may_set(&state.inode, &set)?;
            let owned = set.uid.is_some() || set.gid.is_some();
            if owned && !state.inode.is_dir() && has_capability(op, &mut state)? {
                return Err(Stop::Rights(ino, 0));
            }
            let (new, body) = changed(&state.inode, &set, op.now_ns);
            let acl = match body.valid & attr::MODE {
                0 => None,
                _ => op.acl_with_mode(&mut state, new.mode)?,
            };
            if body.valid != 0 {
                let end = op.append(&mut encode::set_attr(Ino(ino), body))?;
                state.inode = new;
                state.note_acl(acl);
                state.touched(end);
                if new.is_dir() && body.valid & (attr::MODE | attr::UID | attr::GID) != 0 {
                    self.paths.permissions_changed();
                }
            }
            Ok(Attr::of(&state.inode, state.blocks))
        })
    }

    /// Target of a symbolic link. Errors: `EINVAL` for anything else.
    pub fn readlink(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
        self.readlink_where(caller, |_| Ok(ino))
    }

    /// As [`Self::readlink`], of what `place` finds.
    pub(crate) fn readlink_where(
        &self,
        caller: &Caller,
        place: impl Fn(&CallContext<'_>) -> std::result::Result<u64, Stop>,
    ) -> Result<Vec<u8>> {
        self.run(caller, Need::default(), |op| {
            let node = op.node(place(op)?)?;
            let state = op.read(&node)?;
            if !state.inode.is_symlink() {
                return Err(Errno::INVAL.into());
            }
            read_target(op, &node, &state)
        })
    }

    /// Makes an inode durable: a file's content, a directory's entries. Returns when all records about it
    /// are hardened; what the volume has of it is so already. `EIO`: the client is not served any more.
    pub fn fsync(&self, caller: &Caller, ino: u64, _data_only: bool) -> Result<()> {
        let newest = self.run(caller, Need::default(), |op| {
            let node = op.node(ino)?;
            let newest = op.read(&node)?.newest;
            self.still_served().map(|()| newest)
        })?;
        self.harden(newest)
    }

    /// Makes everything durable that this client has done; see [`Self::fsync`].
    pub fn sync_all(&self) -> Result<()> {
        let caller = Caller::default();
        let published = self.run(&caller, Need::default(), |_| {
            self.still_served().map(|()| self.log.published())
        })?;
        self.harden(published.pos())
    }

    /// Sizes of the file system. Brings what is logged into the volume first.
    pub fn statfs(&self) -> Result<StatFs> {
        let space = self.space()?;
        let usable = |blocks: u64| blocks.saturating_sub(HIDDEN_BLOCKS);
        Ok(StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: usable(space.total),
            blocks_free: usable(space.free),
            files: space.inodes_used + space.inodes_free,
            files_free: space.inodes_free,
            name_bytes_max: NAME_BYTES_MAX as u32,
        })
    }
}

fn check_times(set: &SetAttr) -> Result<()> {
    let given = [set.atime, set.mtime, set.ctime.map(SetTime::At)];
    let bad = given
        .into_iter()
        .flatten()
        .any(|t| matches!(t, SetTime::At(t) if t.nsec >= SECOND_NS));
    if bad { Err(Errno::INVAL) } else { Ok(()) }
}

/// The inode after `set`, and the record that says so; `valid` 0: nothing changes.
pub(crate) fn changed(old: &Inode, set: &SetAttr, now_ns: i64) -> (Inode, SetAttrBody) {
    let mut new = *old;
    let mut valid = 0;
    let (uid, gid) = (
        set.uid.filter(|&u| u != NO_ID),
        set.gid.filter(|&g| g != NO_ID),
    );
    if let Some(mode) = set.mode {
        new.mode = old.mode & !0o7777 | mode & 0o7777;
        valid |= attr::MODE;
    } else if (uid.is_some() || gid.is_some() || set.kill_suidgid) && !old.is_dir() {
        new.mode = without_set_id(old.mode);
        valid |= if new.mode != old.mode { attr::MODE } else { 0 };
    }
    if let Some(uid) = uid {
        new.uid = uid;
        valid |= attr::UID;
    }
    if let Some(gid) = gid {
        new.gid = gid;
        valid |= attr::GID;
    }
    for (which, bit, to) in [
        (time::ACCESS, attr::ATIME, set.atime),
        (time::MODIFY, attr::MTIME, set.mtime),
        (time::CHANGE, attr::CTIME, set.ctime.map(SetTime::At)),
    ] {
        if let Some(to) = to {
            set_time(&mut new, which, to, now_ns);
            valid |= bit;
        }
    }
    if valid != 0 && valid & attr::CTIME == 0 {
        new.set_time_ns(time::CHANGE, now_ns);
    }
    let body = SetAttrBody {
        valid,
        mode: new.mode & 0o7777,
        uid: new.uid,
        gid: new.gid,
        time_s: [new.time_s[0], new.time_s[1], new.time_s[2]],
        time_ns: [new.time_ns[0], new.time_ns[1], new.time_ns[2]],
        flags: 0,
    };
    (new, body)
}

fn set_time(inode: &mut Inode, which: usize, to: SetTime, now_ns: i64) {
    match to {
        SetTime::Now => inode.set_time_ns(which, now_ns),
        SetTime::At(Timestamp { sec, nsec }) => {
            inode.time_s[which] = sec;
            inode.time_ns[which] = nsec;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Inode {
        Inode {
            ino: 20,
            mode,
            ..Inode::free()
        }
    }

    #[test]
    fn a_new_owner_takes_set_id_away_from_files_only() {
        let set = SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        };
        let (new, body) = changed(&file(0o106_755), &set, 5);
        assert_eq!((new.mode, new.uid), (0o100_755, 7));
        assert_eq!(body.valid, attr::MODE | attr::UID);
        // Without group execution set-group-id means mandatory locking.
        assert_eq!(changed(&file(0o106_745), &set, 5).0.mode, 0o102_745);
        assert_eq!(changed(&file(0o046_755), &set, 5).0.mode, 0o046_755);
        let both = SetAttr {
            mode: Some(0o6711),
            ..set
        };
        assert_eq!(changed(&file(0o100_644), &both, 5).0.mode, 0o106_711);
    }

    #[test]
    fn change_time_is_now_unless_given() {
        let at = |sec| SetTime::At(Timestamp { sec, nsec: 9 });
        let set = SetAttr {
            atime: Some(at(-4)),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let (new, body) = changed(&file(0o100_644), &set, 3_000_000_001);
        assert_eq!((new.time_s[0], new.time_ns[0]), (-4, 9));
        assert_eq!((new.time_s[1], new.time_s[2], new.time_ns[2]), (3, 3, 1));
        assert_eq!(body.valid, attr::ATIME | attr::MTIME);
        let given = SetAttr {
            ctime: Some(Timestamp { sec: 8, nsec: 0 }),
            ..set
        };
        assert_eq!(changed(&file(0o100_644), &given, 3).0.time_s[2], 8);
        let nothing = SetAttr {
            uid: Some(NO_ID),
            ..SetAttr::default()
        };
        assert_eq!(changed(&file(0o104_755), &nothing, 3).1.valid, 0);
    }
}
