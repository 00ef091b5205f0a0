//! The volume that every workload begins with.
//!
//! Made once, with fixed identity, keys, salts and times: the same workload stores the same
//! bytes each time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use shale_bench::scratch::os_error;
use shale_bench::{BenchError, Result};
use shale_daemon::Daemon;
use shale_format::Durability;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_libfs::{Caller, Session, SessionMaps};
use shale_model::workload::alphabet;
use shale_model::{Act, FileAct, Memory, Shale, Side, Snapshot};
use shale_nvm::Map;
use shale_volume::{MkfsOptions, View, Volume, VolumeError};

use crate::images::Ground;
use crate::recording::synced::{self, Synced};
use crate::volume::lower_tiers::{self, Below, Contents};
use crate::volume::media::{LOG_FILE_BYTES, LOGS, PAGE_BYTES, UUID};
use crate::volume::place::Place;
use crate::volume::sessions::{NOW_NS, attach, clock, once_free, side};

const HASH_SEED: [u64; 2] = [0x5eed, 0xca11];
/// What free blocks are filled with.
const POISON: u8 = 0xa5;
/// The volume before a workload.
pub struct Base {
    /// Contents of the NVM tier.
    pub segment: Vec<u8>,
    /// The model of it.
    pub model: Memory,
    /// Its tree.
    pub tree: Snapshot,
    /// Blocks in use when all names are gone.
    pub empty_blocks: u64,
    /// When calls are durable: with `Buffered` those before an fsync or a digest, with `Ordered` those before a digest.
    pub policy: Durability,
    /// Flags `S` and `D` of files and directories, by identity in the model: their calls are durable at return all the same, with `Buffered`.
    pub flags: BTreeMap<u64, u32>,
    /// Some operations may find no space.
    pub full: bool,
    /// What logs hold; one that is not there is zeros. Only while a run is looked at.
    pub logs: Vec<Vec<u8>>,
    /// What the lower tiers hold, if there are any.
    pub below: Option<Contents>,
    /// Equal for equal bases only.
    pub id: u128,
}

/// What there is besides the small tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Nothing.
    Nothing,
    /// A file and a directory with trees of two levels.
    Large,
    /// The same tree once more, for a second thread.
    Twin,
    /// A file that has nearly all blocks: some operations find no space.
    Full,
    /// Lower tiers.
    Tiers,
}

impl Base {
    /// Makes it in a directory in `dir` (on tmpfs), which is removed again. `more`: what
    /// there is besides the small tree.
    ///
    /// # Errors
    /// No space; what daemon and client say.
    pub fn make(dir: &Path, more: More) -> Result<Arc<Base>> {
        Self::make_with(dir, more, Durability::Strict)
    }

    /// As [`Self::make`], with this durability policy.
    ///
    /// # Errors
    /// As there.
    pub fn make_with(dir: &Path, more: More, policy: Durability) -> Result<Arc<Base>> {
        let tiered = more == More::Tiers;
        let place = Place::empty(dir, tiered, policy)?;
        let failed = |program: &str, e: &dyn std::fmt::Display| BenchError::Program {
            program: program.to_owned(),
            found: e.to_string(),
        };
        let options = MkfsOptions {
            durability: policy,
            ..mkfs_options()
        };
        let options = match tiered {
            true => lower_tiers::with_tiers(options),
            false => options,
        };
        let lower = place
            .below
            .as_ref()
            .map_or_else(Default::default, Below::lower);
        let empty = Volume::create_with(place.segment.clone(), &options, &lower)
            .map_err(|e| failed("mkfs", &e))?;
        let empty_blocks = empty.space().used;
        drop(empty);
        let daemon = once_free(|| Daemon::start(place.config(false, 0), clock()))?;
        let session = attach(&daemon, &SessionMaps::default(), false)?;
        let mut shale = side(&session);
        let mut model = Memory::new(0o755);
        let more_is_full = more == More::Full;
        let more = match more {
            More::Nothing => Vec::new(),
            More::Large => alphabet::large_tree(),
            More::Twin => alphabet::twin_tree(),
            More::Full | More::Tiers => Vec::new(),
        };
        let nearly_full = more_is_full.then_some(&session);
        for act in alphabet::tree().into_iter().chain(more) {
            let (should, did) = (model.act(&act), shale.act(&act));
            if should.is_err() || should != did {
                let found = format!("{act:?}: expected {should:?}, found {did:?}");
                return Err(BenchError::Program {
                    program: "the tree".to_owned(),
                    found,
                });
            }
        }
        let flags = set_flags(policy, &session, &mut shale, &mut model)?;
        if let Some(session) = nearly_full {
            take_nearly_all(&daemon, session, &mut shale, &mut model)?;
        }
        drop(shale);
        session
            .detach()
            .map_err(|e| BenchError::call("libfs", "detach")(os_error(e)))?;
        daemon.shutdown()?;
        poison(&place.segment).map_err(|e| failed("the volume", &e))?;
        let mut segment = vec![0; NVM_BYTES_MIN as usize];
        place.segment.load(0, &mut segment);
        let tree = Snapshot::of(&mut model).map_err(|e| failed("the model", &e))?;
        Ok(Arc::new(Base {
            segment,
            model,
            tree,
            empty_blocks,
            policy,
            flags,
            full: more_is_full,
            logs: Vec::new(),
            below: place.below.as_ref().map(Below::contents),
            id: 0,
        }))
    }

    /// What images are differences to.
    pub fn ground(&self) -> Ground<'_> {
        Ground {
            segment: &self.segment,
            logs: &self.logs,
        }
    }

    /// The same, which can be changed.
    pub fn moving(&self) -> Base {
        Base {
            segment: self.segment.clone(),
            model: self.model.clone(),
            tree: self.tree.clone(),
            flags: self.flags.clone(),
            logs: vec![vec![0; LOG_FILE_BYTES]; LOGS],
            below: self.below.clone(),
            ..*self
        }
    }

    /// What has calls that are durable at return where others are not; `None`: nothing, or all calls are.
    pub(crate) fn synced(&self) -> Option<Synced> {
        let waits = self.policy == Durability::Buffered;
        waits.then(|| Synced::new(&mut self.model.clone(), self.flags.clone()))
    }

    /// A page of a medium.
    pub fn page_mut(&mut self, medium: usize, page: usize) -> &mut [u8] {
        let at = page * PAGE_BYTES;
        match medium {
            0 => &mut self.segment[at..at + PAGE_BYTES],
            n => &mut self.logs[n - 1][at..at + PAGE_BYTES],
        }
    }
}

/// Sets [`synced::FLAGS`], where calls are not durable at return.
fn set_flags(
    policy: Durability,
    session: &Session,
    shale: &mut Shale,
    model: &mut Memory,
) -> Result<BTreeMap<u64, u32>> {
    let mut flags = BTreeMap::new();
    if policy.has_buffer() {
        for (path, flag) in synced::FLAGS {
            let path = path.as_bytes();
            let ino = shale
                .identity(path)
                .map_err(BenchError::call("libfs", "lookup"))?;
            session
                .set_inode_flags(&Caller::default(), ino, flag)
                .map_err(|e| BenchError::call("libfs", "set_inode_flags")(os_error(e)))?;
            let of = model
                .identity(path)
                .map_err(BenchError::call("the model", "lookup"))?;
            flags.insert(of, flag);
        }
    }
    Ok(flags)
}

/// Blocks that are left free in a volume that is nearly full.
const LEFT_BLOCKS: u64 = 12;

/// Makes an empty file that all free blocks but [`LEFT_BLOCKS`] are allocated to.
fn take_nearly_all(
    daemon: &Daemon,
    session: &Arc<Session>,
    shale: &mut Shale,
    model: &mut Memory,
) -> Result<()> {
    const KEEP_SIZE: u32 = 1;
    let slot = shale_model::snapshot::WALK_SLOT;
    let space = |session: &Session| {
        let _ = session.digest();
        daemon.quiesce();
        session
            .space()
            .map_err(|e| BenchError::call("libfs", "statfs")(os_error(e)))
    };
    let flags = shale_libfs::OFlags::RDWR | shale_libfs::OFlags::CREATE;
    let open = Act::Open(slot, b"ballast".to_vec(), flags, 0o600);
    let _ = (model.act(&open), shale.act(&open));
    let mut end = 0;
    let mut most = u64::MAX;
    loop {
        let more = space(session)?.free.saturating_sub(LEFT_BLOCKS).min(most);
        if more < 2 {
            break;
        }
        let bytes = more * PAGE_BYTES as u64;
        // The size stays as it is, so for the model nothing happens.
        match shale.act(&Act::File(slot, FileAct::Allocate(KEEP_SIZE, end, bytes))) {
            Ok(_) => end += bytes,
            // Space that is kept for nodes counts as free.
            Err(_) => most = more / 2,
        }
    }
    let close = Act::File(slot, FileAct::Close);
    let _ = (model.act(&close), shale.act(&close));
    Ok(())
}

/// Of the volume that every workload begins with.
pub fn mkfs_options() -> MkfsOptions {
    MkfsOptions {
        uuid: UUID,
        hash_seed: HASH_SEED,
        created_ns: NOW_NS,
        root_mode: 0o755,
        log_bytes: LOG_BYTES_MIN,
        ..MkfsOptions::default()
    }
}

/// Fills free blocks: what is read from one of them is seen.
fn poison(segment: &Arc<Map>) -> std::result::Result<(), VolumeError> {
    let (view, _) = View::open(segment.clone())?;
    let mut at = view.superblock().data_block;
    let end = view.superblock().second_block();
    for run in view.used_runs()? {
        for block in at..run.addr.index().min(end) {
            segment.store(block as usize * BLOCK_BYTES, &[POISON; BLOCK_BYTES]);
        }
        at = at.max(run.addr.index() + run.len);
    }
    Ok(())
}
