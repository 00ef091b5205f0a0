//! What a client's records may do, as the daemon knows it: numbers and blocks granted,
//! leases held, POSIX permission (DESIGN §25).
//!
//! The in-process client is the FUSE front end: the kernel has checked permissions, and
//! the daemon is its own code. A client over the socket runs as the volume's owner, as a user
//! whom the volume trusts with reading everything, or as root: it must hold the lease on every inode that changes, and its user must have the
//! right by POSIX, which is decided again here. A descriptor opened before a `chmod` writes on,
//! legally: so a client may write what its user could write once, since it has held a lease.

use crate::tiering::DirectPlacement;
use shale_clients::client::Client;
use shale_clients::space_credits::SpaceCredits;
use shale_coherence::lease_manager::LeaseManager;
use shale_digest::{AccessPolicy, Change, DigestError, NewRun, Placement};
use shale_format::inode::Inode;
use shale_format::staged::PlacedEntry;
use shale_format::{Ino, LogPos};
use shale_hardening::NotHardened;
use shale_hardening::hardener::Hardener;
use shale_proto::LeaseMode;
use shale_sys::mutants;
use shale_volume::Run;
use std::sync::Arc;

/// Rights of one client during one call of the digester.
pub(crate) struct RecordValidator<'a> {
    client: &'a Arc<Client>,
    credits: &'a SpaceCredits,
    leases: &'a LeaseManager,
    direct_placement: Option<DirectPlacement>,
    hardener: Option<&'a Hardener>,
    survive: bool,
}

impl<'a> RecordValidator<'a> {
    /// `direct_placement`: what goes below NVM at once, `None`: nothing; the caller holds the migration lock. `hardener`: has records
    /// hardened with what was placed there; `None`: they are. `survive`: the chunk's records do.
    pub(crate) fn new(
        client: &'a Arc<Client>,
        credits: &'a SpaceCredits,
        leases: &'a LeaseManager,
        direct_placement: Option<DirectPlacement>,
        (hardener, survive): (Option<&'a Hardener>, bool),
    ) -> Self {
        Self {
            client,
            credits,
            leases,
            direct_placement,
            hardener,
            survive,
        }
    }
}

impl AccessPolicy for RecordValidator<'_> {
    fn granted_inode(&self, ino: Ino) -> bool {
        self.client.grants.lock().inos.contains(&ino.0)
    }

    fn placement(&self, run: &NewRun) -> Placement {
        let rule = self.direct_placement;
        rule.map_or(Placement::Nvm, |rule| rule.of(run))
    }

    fn harden(&self, upto: LogPos, placed: &[PlacedEntry]) -> Result<(), DigestError> {
        let Some(hardener) = self.hardener else {
            return Ok(());
        };
        let hardened = hardener.harden_placed(self.client, upto.0, placed);
        hardened.map_err(|why| {
            DigestError::NotHardened(match why {
                NotHardened::Full => "the staging area is full".to_owned(),
                NotHardened::NoRecord => "there is no record where one should begin".to_owned(),
                NotHardened::Failed(why) => why,
            })
        })
    }

    fn granted_blocks(&self, run: Run) -> bool {
        self.client.may_steal && self.client.grants.lock().blocks.contains(run)
    }

    fn records_survive(&self) -> bool {
        self.survive
    }

    fn credit(&self) -> Option<u64> {
        let given = || self.credits.of(self.client.id);
        (!self.client.trusted()).then(given)
    }

    fn keeps_set_id(&self) -> bool {
        self.client.trusted() || self.client.person.is_root()
    }

    fn is_in_group(&self, gid: u32) -> bool {
        self.client.person.is_in(gid)
    }

    fn unused_by_others(&self, ino: Ino) -> bool {
        self.client.trusted() || !self.leases.used_by_others(self.client, ino.0)
    }

    fn asks_acl(&self, inode: &Inode) -> bool {
        !self.client.trusted() && self.client.person.asks_acl(inode)
    }

    fn may_change(&self, change: &Change<'_>) -> Result<(), &'static str> {
        if self.client.trusted() {
            return Ok(());
        }
        let inode = change.inode;
        let held = self.leases.table().mode(self.client.id, inode.ino);
        if held != Some(LeaseMode::Exclusive) && !mutants::is_on("lease-unchecked") {
            return Err("no lease to write it");
        }
        let opened = || self.client.opened.lock().get(&inode.ino) == Some(&inode.generation);
        self.client.person.may_change(change, opened)
    }
}
