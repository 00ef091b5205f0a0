//! Leases as a client holds them: the word in each inode's memory, and getting one.
//!
//! An inode's word has the generation of the lease and its mode. It stands as long as the
//! daemon's word for the inode has the same generation; a call looks inside the read section, so
//! that the daemon waits for it before somebody else gets the lease. The daemon's words
//! are shared by several inodes: when one of them is taken away all have to be asked for
//! again, and most learn that nothing was lost.
//!
//! Invariant: who says that an inode's word stands has brought it up to date. So
//! asking, loading and setting the word are one step: one thread at a time per inode.
//!
//! What an inode in memory is, the crate above says ([`LeasedInode`], [`LeasedInodes`]).

use super::daemon_link::DaemonLink;
use super::errno::{Errno, MEDIATED, Result, Stop};
use super::lease_word::LeaseWord;
use super::read_section::ReadSection;
use super::sync::{Mutex, SharedWords, failpoints};
use super::volume_reader::VolumeReader;
use shale_format::LogPos;
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use std::sync::Arc;

const TURNS: usize = 64;

/// An inode in memory, as leases see it. The crate above has the inodes; calls of this trait are dispatched statically.
pub trait LeasedInode {
    /// Its number.
    fn number(&self) -> u64;

    /// The lease under which it is in memory.
    fn lease(&self) -> &LeaseWord;

    /// Replaces what is in memory by what the volume has, in this epoch. Inside the read section.
    fn reload(&self, volume: &VolumeReader, epoch: u64) -> std::result::Result<(), Stop>;

    /// Whether it was freed: what has its number now is another inode.
    fn is_freed(&self) -> bool;

    /// Notes what came with a lease.
    fn note_others(&self, others: &OtherUsers);
}

/// The inodes in memory, by number.
pub trait LeasedInodes {
    /// One of them.
    type Inode: LeasedInode;

    /// The inode, if it is in memory.
    fn get(&self, ino: u64) -> Option<Arc<Self::Inode>>;

    /// An inode as the volume has it in this epoch, not among these yet. Inside the read section. `ENOENT` if there is none.
    fn load(
        volume: &VolumeReader,
        ino: u64,
        epoch: u64,
    ) -> std::result::Result<Arc<Self::Inode>, Stop>;

    /// Adds one unless another thread was faster; gives the one that is there. `digested`: what the volume has of the log.
    fn add(&self, inode: Arc<Self::Inode>, digested: LogPos) -> Arc<Self::Inode>;

    /// Removes one, unless another has its place.
    fn remove(&self, inode: &Self::Inode);
}

/// Who else uses an inode of which a lease was given.
#[derive(Clone, Copy, Debug)]
pub struct OtherUsers {
    /// Another client may have it open.
    pub used_elsewhere: bool,
    /// Other processes use it through the mount.
    pub watched: bool,
    /// The kernel is to make it longer: others use it through the mount.
    pub shared: bool,
    /// Of a shared lease: the word of the lease with which others hold it, too.
    pub held_by_others: Option<u32>,
}

/// The leases of one client.
pub struct Leases {
    daemon: DaemonLink,
    /// The client page, which says who is inside of a call.
    sections: SharedWords,
    /// Locks of which one is held while a lease on an inode is asked for.
    acquiring: [Mutex<()>; TURNS],
}

impl Leases {
    /// `sections`: the client page.
    pub fn new(daemon: DaemonLink, sections: SharedWords) -> Self {
        Self {
            daemon,
            sections,
            acquiring: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn lock_of(&self, ino: u64) -> &Mutex<()> {
        &self.acquiring[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % TURNS]
    }

    /// Whether the lease on an inode in memory stands and suffices. True as long as the
    /// caller stays inside the read section.
    #[inline]
    pub fn holds(&self, inode: &impl LeasedInode, mode: LeaseMode) -> bool {
        let word = self.daemon.lease_word(inode.number());
        inode.lease().covers(word, mode)
    }

    /// Gives a lease back. What was written under it is in the volume when this returns.
    pub fn give_back(&self, inodes: &impl LeasedInodes, ino: u64) -> Result<()> {
        let _acquiring = self.lock_of(ino).lock();
        if let Some(inode) = inodes.get(ino) {
            inode.lease().clear();
        }
        self.daemon.ask(Request::Unlease { ino })?;
        Ok(())
    }

    /// Gets a lease and brings the inode in memory up to date. Outside of the read section.
    /// `false`: others have the lease, and the caller does not insist.
    pub fn acquire(
        &self,
        inodes: &impl LeasedInodes,
        volume: &VolumeReader,
        ino: u64,
        mode: LeaseMode,
        request_mode: LeaseRequestMode,
    ) -> Result<bool> {
        let _acquiring = self.lock_of(ino).lock();
        let inode = inodes.get(ino);
        // Who does not insist wants to know about others, too.
        let asks = matches!(
            request_mode,
            LeaseRequestMode::Try | LeaseRequestMode::GrowOrDefer
        );
        if !asks && inode.is_some_and(|i| self.holds(&*i, mode)) {
            return Ok(true);
        }
        let frozen = match mode {
            LeaseMode::Shared => self.daemon.frozen_generation(ino),
            LeaseMode::Exclusive => None,
        };
        let given = match frozen {
            Some(generation) => (generation, true, mode, false, false, false, false),
            None => match self.daemon.ask(Request::Lease {
                ino,
                mode,
                request_mode,
            })? {
                Reply::Leased {
                    generation,
                    fresh,
                    mode,
                    used,
                    watched,
                    shared,
                    others,
                } => (generation, fresh, mode, used, watched, shared, others),
                Reply::NotLeased => return Ok(false),
                Reply::Mediated { .. } => return Err(MEDIATED),
                _ => return Err(Errno::PROTO),
            },
        };
        let (generation, fresh, mode, used, watched, shared, others) = given;
        failpoints::reach("lease-given");
        loop {
            let inside = ReadSection::enter(&self.sections);
            let inode = match inodes.get(ino) {
                Some(inode) => self.up_to_date(inodes, volume, inode, fresh),
                None => self.load(inodes, volume, ino),
            };
            match inode {
                Ok(inode) => {
                    inode.note_others(&OtherUsers {
                        used_elsewhere: used,
                        watched,
                        shared: shared && request_mode != LeaseRequestMode::GrowOrDefer,
                        held_by_others: others.then_some(generation),
                    });
                    inode.lease().set(generation, mode);
                    return Ok(true);
                }
                Err(stop) => {
                    drop(inside);
                    volume.get_lacking(stop)?;
                }
            }
        }
    }

    fn load<T: LeasedInodes>(
        &self,
        inodes: &T,
        volume: &VolumeReader,
        ino: u64,
    ) -> std::result::Result<Arc<T::Inode>, Stop> {
        let inode = T::load(volume, ino, self.daemon.epoch())?;
        Ok(inodes.add(inode, self.daemon.digested()))
    }

    fn up_to_date<T: LeasedInodes>(
        &self,
        inodes: &T,
        volume: &VolumeReader,
        inode: Arc<T::Inode>,
        fresh: bool,
    ) -> std::result::Result<Arc<T::Inode>, Stop> {
        if fresh {
            // Should loading fail, the next one to ask will not be notified again.
            inode.lease().clear();
        }
        if !inode.lease().was_set() {
            // Another client has made an inode of its number. It is never that one: it goes from memory when its own time has come.
            if inode.is_freed() {
                inodes.remove(&inode);
                return self.load(inodes, volume, inode.number());
            }
            inode.reload(volume, self.daemon.epoch())?;
            // Who found it dead may have taken it out meanwhile. There must be no second one
            // of the number while this one's lease stands.
            return Ok(inodes.add(inode, self.daemon.digested()));
        }
        Ok(inode)
    }

    /// Whether the volume may be asked about an inode that is not in memory, for once: gets
    /// a shared lease if nobody has to lose one, and calls `f` inside the read section while it stands.
    pub fn glance<T>(
        &self,
        inodes: &impl LeasedInodes,
        ino: u64,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let _acquiring = self.lock_of(ino).lock();
        if inodes.get(ino).is_some() {
            return Ok(None);
        }
        let ask = Request::Lease {
            ino,
            mode: LeaseMode::Shared,
            request_mode: LeaseRequestMode::Try,
        };
        let generation = match self.daemon.ask(ask) {
            Ok(Reply::Leased { generation, .. }) => generation,
            Ok(Reply::NotLeased) | Err(Errno::NOENT) => return Ok(None),
            Ok(_) => return Err(Errno::PROTO),
            Err(e) => return Err(e),
        };
        let _inside = ReadSection::enter(&self.sections);
        if self.daemon.lease_word(ino) == generation {
            f().map(Some)
        } else {
            Ok(None)
        }
    }
}
