//! What the records of a log that a crash left may do (DESIGN §25).

use shale_clients::credentials::Credentials;
use shale_digest::{AccessPolicy, Change, OwnLog};
use shale_format::Ino;
use shale_format::inode::Inode;
use shale_volume::Run;

/// Rights of the user who wrote a log that a crash left: not its own user's process only, so
/// POSIX is asked again. Which leases it held is not known any more.
pub(crate) struct RecoveredRecordValidator {
    pub(crate) person: Credentials,
    /// What every log that is left may do; see there.
    pub(crate) own: OwnLog,
    /// Bytes that were free before any log was digested: what all clients had reserved for
    /// their records was no more than that.
    pub(crate) credit: u64,
}

impl AccessPolicy for RecoveredRecordValidator {
    fn granted_inode(&self, ino: Ino) -> bool {
        self.own.granted_inode(ino)
    }

    fn granted_blocks(&self, run: Run) -> bool {
        self.own.granted_blocks(run)
    }

    fn records_survive(&self) -> bool {
        self.own.records_survive()
    }

    fn passes_over_stale_free(&self) -> bool {
        true
    }

    fn credit(&self) -> Option<u64> {
        Some(self.credit)
    }

    fn keeps_set_id(&self) -> bool {
        self.person.is_root()
    }

    fn is_in_group(&self, gid: u32) -> bool {
        self.person.is_in(gid)
    }

    fn asks_acl(&self, inode: &Inode) -> bool {
        self.person.asks_acl(inode)
    }

    fn may_change(&self, change: &Change<'_>) -> Result<(), &'static str> {
        self.person.may_change(change, || false)
    }
}
