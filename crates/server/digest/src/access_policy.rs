//! What a client may do, as digest asks it. Digest itself checks that a record makes
//! sense; whether this client may make it is decided here.

use crate::DigestError;
use crate::run_set::RunSet;
use shale_format::acl::Acl;
use shale_format::inode::Inode;
use shale_format::record::SetAttrBody;
use shale_format::staged::PlacedEntry;
use shale_format::{Ino, LogPos, TierId};
use shale_volume::{Run, WriteStream};

/// What a record is about to do with an inode.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Change the content or size of a file.
    Content {
        /// No byte that is there changes.
        adds: bool,
    },
    /// Change owner, mode or times.
    Attributes(&'a SetAttrBody),
    /// Set the extended attribute of this name. (An access control list changes the mode, too.)
    Xattr(&'a [u8]),
    /// Remove the extended attribute of this name.
    RemoveXattr(&'a [u8]),
    /// Add a name for `child` to a directory; `fresh`: `child` is made by the same record.
    AddEntry {
        /// The inode that gets the name.
        child: &'a Inode,
        /// Whether the record makes it.
        fresh: bool,
    },
    /// Take a name of `child` out of a directory.
    RemoveEntry {
        /// The inode that loses the name.
        child: &'a Inode,
    },
    /// Give or take a name: its count of names changes.
    Name {
        /// It is a directory that gets another parent.
        moves: bool,
    },
    /// Make it, with the owner, group and mode that the record says; `parent`: the directory
    /// that it gets its first name in.
    Make {
        /// `None`: it has no name.
        parent: Option<&'a Inode>,
    },
    /// Free an inode that has no name.
    Free,
}

/// One change to be allowed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// What is done.
    pub operation: Operation<'a>,
    /// The inode that it is done to, as the records before have left it.
    pub inode: &'a Inode,
    /// Its access control list, if it has one and [`AccessPolicy::asks_acl`].
    pub acl: Option<&'a Acl>,
    /// Generation of the lease that the record was made under.
    pub lease: u32,
}

/// A run of new data: blocks that follow one another in a file, to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRun {
    /// How many blocks.
    pub blocks: u64,
    /// The tier that the file is pinned to.
    pub pin: Option<TierId>,
}

/// Where a run of new data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To NVM.
    Nvm,
    /// Directly to a tier below NVM; to NVM as far as there is no space in it.
    Lower {
        /// The tier.
        tier: TierId,
        /// The stream that it is written with: data that lives about as long.
        stream: WriteStream,
        /// Blocks of one chunk that go to this tier, at least, or all of these go to NVM: the device is
        /// flushed for each chunk.
        chunk_blocks: u64,
    },
}

/// Rights of the client whose log is digested. Answers must not change during one
/// call of the digester, or a retry would give something else.
pub trait AccessPolicy {
    /// Whether the client may use this inode number for a new inode. That it is free
    /// is checked by digest.
    fn granted_inode(&self, ino: Ino) -> bool;
    /// Whether all these blocks were granted to the client and are still its own.
    /// That one chunk uses none of them twice is checked by digest.
    fn granted_blocks(&self, run: Run) -> bool;
    /// Whether a `Free` record of what is no orphan (any more) is passed over instead of
    /// refused. Such a record asks for what is so already: the number is free, or another
    /// inode has it by now, and neither is touched.
    fn passes_over_stale_free(&self) -> bool {
        false
    }
    /// Whether the chunk's records survive a power cut before it is part of the volume. Only then are blocks changed where they are: the
    /// records repeat what a cut leaves half done.
    fn records_survive(&self) -> bool {
        true
    }
    /// Bytes of credit that this client's records may spend and not given back yet.
    /// `None`: it need not be checked that they keep to it.
    fn credit(&self) -> Option<u64> {
        None
    }
    /// Whether set-user-id, set-group-id and capabilities outlive a change of content even though
    /// no record takes them away.
    fn keeps_set_id(&self) -> bool {
        true
    }
    /// Whether the client is in a group: if not, a change of content takes set-group-id also from
    /// what the group may not execute. Asked where [`Self::keeps_set_id`] is not so.
    fn is_in_group(&self, _: u32) -> bool {
        true
    }
    /// Whether nobody but the client itself may have the inode open, so that it can be
    /// freed with its last name.
    fn unused_by_others(&self, _: Ino) -> bool {
        true
    }
    /// Where a run of new data goes, asked for each run of a chunk. A policy that names a tier below NVM makes
    /// sure that nobody else allocates or writes there during the call.
    fn placement(&self, _: &NewRun) -> Placement {
        Placement::Nvm
    }
    /// The data of the chunk's records before `upto` is written, and durable where it lies below NVM; nothing links it yet. What has
    /// to be durable before the chunk is part of the volume is made so here. `placed`: which bytes of the log lie below NVM, and where:
    /// ascending, none twice.
    ///
    /// # Errors
    /// [`DigestError::NotHardened`]: the chunk does not become part of the volume.
    fn harden(&self, _upto: LogPos, _placed: &[PlacedEntry]) -> Result<(), DigestError> {
        Ok(())
    }
    /// Whether the access control list of an inode matters to what the client may do with it.
    fn asks_acl(&self, _: &Inode) -> bool {
        false
    }
    /// Lease and POSIX permission. Error: why not.
    fn may_change(&self, change: &Change<'_>) -> Result<(), &'static str>;
}

/// The log of the volume's own user, found at recovery: who wrote it could have changed
/// anything, so only the blocks it names are checked.
#[derive(Clone, Debug, Default)]
pub struct OwnLog {
    taken: RunSet,
    survives: bool,
}

impl OwnLog {
    /// `taken`: the stolen runs of the log that recovery took from the free space
    /// (see [`super::Survey::stolen`]), before anything else was allocated.
    /// `survives`: it lies in NVM.
    pub fn new(taken: Vec<Run>, survives: bool) -> Self {
        Self {
            taken: taken.into_iter().collect(),
            survives,
        }
    }
}

impl AccessPolicy for OwnLog {
    fn granted_inode(&self, _: Ino) -> bool {
        true
    }
    fn granted_blocks(&self, run: Run) -> bool {
        self.taken.contains(run)
    }
    fn records_survive(&self) -> bool {
        self.survives
    }
    fn passes_over_stale_free(&self) -> bool {
        true
    }
    fn may_change(&self, _: &Change<'_>) -> Result<(), &'static str> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::BlockAddr;

    #[test]
    fn only_blocks_taken_for_the_log_are_its_own() {
        let run = |first, len| Run {
            addr: BlockAddr::nvm(first),
            len,
        };
        let own = OwnLog::new(vec![run(20, 5), run(10, 10), run(40, 1)], true);
        assert!(own.granted_blocks(run(10, 15)));
        assert!(own.granted_blocks(run(40, 1)));
        for bad in [run(9, 2), run(24, 2), run(39, 2), run(41, 1), run(0, 1)] {
            assert!(!own.granted_blocks(bad), "{bad:?}");
        }
    }
}
