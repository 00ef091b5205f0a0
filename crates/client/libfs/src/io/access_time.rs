//! Noting in a file's inode that it was read.

use crate::client::call_runner::CallRunner;
use shale_format::Ino;
use shale_format::inode::{flag, time};
use shale_format::record::{SetAttrBody, attr, record_bytes};
use shale_inodes::node::NodeState;
use shale_oplog::encode;
use shale_session::caller::Caller;
use shale_session::errno::{Result, Stop};
use shale_session::log::client_log::Need;

/// With a last access older than this many seconds, a read notes a new one (relatime).
const ATIME_SECONDS_MAX: i64 = 24 * 3600;

/// Whether a read now is to be noted: as `relatime` has it, and not twice at one time of the clock.
#[inline]
pub(crate) fn wants_atime(state: &NodeState, now_ns: i64) -> bool {
    let i = &state.inode;
    if i.flags & flag::NO_ATIME != 0 {
        return false;
    }
    let at = |which: usize| (i.time_s[which], i.time_ns[which]);
    let old = at(time::ACCESS) <= at(time::MODIFY)
        || at(time::ACCESS) <= at(time::CHANGE)
        || now_ns / 1_000_000_000 - i.time_s[time::ACCESS] > ATIME_SECONDS_MAX;
    let s_and_ns = || {
        (
            now_ns.div_euclid(1_000_000_000),
            now_ns.rem_euclid(1_000_000_000),
        )
    };
    old && (i.time_s[time::ACCESS], i64::from(i.time_ns[time::ACCESS])) != s_and_ns()
}

/// Notes that a file was read now. While others read it too nothing is noted: it would
/// take the file from all of them.
pub(crate) fn note_access(calls: &CallRunner, caller: &Caller, ino: u64) -> Result<()> {
    let caller = Caller {
        request: 0,
        ..*caller
    };
    if !calls.may_note_access(ino)? {
        return Ok(());
    }
    let need = Need::log(record_bytes(SetAttrBody::BYTES, 0) as u64);
    calls.run(&caller, need, |op| {
        // Not worth insisting on: it may have been lost a moment ago.
        let node = match op.node_to_change(ino) {
            Err(Stop::Lease(..)) => return Ok(()),
            node => node?,
        };
        let mut state = op.write(&node)?;
        // No reader waits for that.
        op.changes_synced(false);
        let old = state.inode;
        state.inode.set_time_ns(time::ACCESS, op.now_ns);
        let body = SetAttrBody {
            valid: attr::ATIME | attr::CTIME,
            mode: 0,
            uid: 0,
            gid: 0,
            time_s: [state.inode.time_s[0], 0, old.time_s[time::CHANGE]],
            time_ns: [state.inode.time_ns[0], 0, old.time_ns[time::CHANGE]],
            flags: 0,
        };
        let end = op.append(&mut encode::set_attr(Ino(ino), body))?;
        state.touched(end);
        Ok(())
    })
}
