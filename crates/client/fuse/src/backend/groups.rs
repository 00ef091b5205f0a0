//! What a caller may do with a file, where the kernel does not say. A request names one group of its caller;
//! the others, and what the caller may do beyond its user's rights, [`Privileges`] has.

use crate::backend::caller::{CAP_DAC_OVERRIDE, CAP_FSETID, Privileges};
use crate::backend::node::{Request, Result, SetAttr};
use shale_libfs::Attr;

/// A change as libfs has to make it, which knows one group of the caller only, and what comes before
/// it: set-group-ID goes also from a file that the group may not execute, if the caller is not in it. `lets`: whether the
/// file's access control list lets one of these groups write, if there is one and it matters.
pub(crate) fn changes(
    request: &Request,
    set: &SetAttr,
    old: impl FnOnce() -> Result<Attr>,
    lets: impl FnOnce(&dyn Fn(u32) -> bool) -> Result<Option<bool>>,
) -> Result<(Option<SetAttr>, SetAttr)> {
    if !set.kill_suidgid || set.mode.is_some() {
        return Ok((None, *set));
    }
    let old = old()?;
    let set_id = old.mode & (libc::S_ISUID | libc::S_ISGID);
    if set_id == 0 || old.mode & libc::S_IFMT == libc::S_IFDIR {
        return Ok((None, *set));
    }
    let only = SetAttr {
        kill_suidgid: true,
        ..SetAttr::default()
    };
    if *set == only && !may_write(request, &old, lets)? {
        // Also a `chown` by anybody that changes neither owner nor group, with which nobody may take
        // these bits from programs that they may not write. A write to a file that was opened when it
        // was permitted says so itself.
        return Ok((None, SetAttr::default()));
    }
    let runs_as_group = old.mode & libc::S_IXGRP != 0;
    let stays = set_id & libc::S_ISGID == 0 || runs_as_group;
    if stays || keeps_set_gid(request, old.gid) {
        return Ok((None, *set));
    }
    let mode = Some(old.mode & !(libc::S_ISUID | libc::S_ISGID));
    let taken = SetAttr {
        mode,
        ..SetAttr::default()
    };
    // Before the content changes, not after it.
    Ok(match set.size {
        Some(_) => (Some(taken), *set),
        None => (None, SetAttr { mode, ..*set }),
    })
}

/// Whether the caller is in group `gid`, or may keep set-group-ID on its files anyway. `false` if that cannot be
/// known, as for a process that this one does not see.
fn keeps_set_gid(request: &Request, gid: u32) -> bool {
    request.gid == gid
        || Privileges::of(request.pid).is_some_and(|m| m.is_in(gid) || m.has(CAP_FSETID))
}

/// Whether the caller owns the file or may write it, as its mode and list say now.
fn may_write(
    request: &Request,
    file: &Attr,
    lets: impl FnOnce(&dyn Fn(u32) -> bool) -> Result<Option<bool>>,
) -> Result<bool> {
    if request.uid == 0 || request.uid == file.uid {
        return Ok(true);
    }
    let more = Privileges::of(request.pid);
    let is_in = |gid| request.gid == gid || more.as_ref().is_some_and(|m| m.is_in(gid));
    let may = lets(&is_in)?.unwrap_or_else(|| may_write_by_mode(request, file));
    Ok(may || more.as_ref().is_some_and(|m| m.has(CAP_DAC_OVERRIDE)))
}

/// As [`may_write`], of a file without a list.
fn may_write_by_mode(request: &Request, file: &Attr) -> bool {
    let may = |class: u32| file.mode >> class & 0o2 != 0;
    if request.gid == file.gid {
        return may(3);
    }
    match (may(3), may(0)) {
        // It is the same whether the caller is in the group.
        (true, true) => true,
        (group, other) => Privileges::of(request.pid)
            .is_some_and(|more| if more.is_in(file.gid) { group } else { other }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_cannot_be_asked_has_no_more_than_its_request_says() {
        let request = caller(5, 7);
        assert!(keeps_set_gid(&request, 7) && !keeps_set_gid(&request, 8));
        let by = |request: &Request, mode, uid, gid, list: Option<u32>| {
            let file = Attr {
                mode,
                uid,
                gid,
                ..ATTR
            };
            // A list that lets one group write.
            may_write(request, &file, |is_in| Ok(list.map(is_in))).unwrap()
        };
        let may = |mode, uid, gid| by(&request, mode, uid, gid, None);
        assert!(may(0o400, 5, 1) && may(0o020, 1, 7) && may(0o022, 1, 1));
        assert!(!may(0o702, 1, 7) && !may(0o720, 1, 1) && !may(0o702, 1, 1));
        assert!(by(&request, 0o040, 1, 1, Some(7)) && !by(&request, 0o022, 1, 7, Some(8)));
        assert!(by(&caller(0, 0), 0, 1, 0, None) && by(&request, 0, 5, 1, Some(8)));
    }

    /// A request of a process that there is not.
    fn caller(uid: u32, gid: u32) -> Request {
        Request {
            unique: 0,
            uid,
            gid,
            pid: 0,
            umask: 0,
            direct: false,
            opened: false,
            from_cache: false,
        }
    }

    const TIME: shale_libfs::Timestamp = shale_libfs::Timestamp { sec: 0, nsec: 0 };
    const ATTR: Attr = Attr {
        ino: 20,
        generation: 0,
        size: 0,
        blocks: 0,
        mode: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
    };
}
