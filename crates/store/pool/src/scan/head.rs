//! What the memory tier says of its volume: superblock and device table, read from wherever the tier is, with nothing else of it.
//!
//! They are laid into memory of this process at their places, with the journal, and the batch that may wait there is replayed in that
//! memory: the device table is as the next mount will find it, and nothing is written to the medium.

use crate::error::Result;
use shale_format::device_table::{DEVICE_TABLE_COPIES, DeviceTable};
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::{ROOT_BLOCK, SUPER_BLOCK, Superblock};
use shale_nvm::{MapOptions, Path as CountPath};
use shale_volume::{View, Volume};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;
/// How often it is read again: a daemon may be writing.
const TRIES: usize = 3;

/// Reads bytes of a memory tier from a byte on, both multiples of 4096.
pub(super) type ReadTier<'r> = &'r mut dyn FnMut(u64, &mut [u8]) -> Result<()>;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The newer superblock.
    pub superblock: Superblock,
    /// The devices that the volume has.
    pub table: DeviceTable,
    /// Its last batch.
    pub txid: u64,
}

impl Head {
    /// Reads the head of a memory tier of `bytes` bytes.
    ///
    /// # Errors
    /// It is none, or damaged; as `read`.
    pub(super) fn read(bytes: u64, read: ReadTier<'_>) -> Result<Head> {
        let mut tries = 1;
        loop {
            match Self::read_once(bytes, read) {
                Err(_) if tries < TRIES => tries += 1,
                done => return done,
            }
        }
    }

    fn read_once(bytes: u64, read: ReadTier<'_>) -> Result<Head> {
        let map = Arc::new(MapOptions::new().anonymous(bytes as usize)?);
        let mut buffer = vec![0; READ_BYTES as usize];
        let mut load = |blocks: Range<u64>| -> Result<()> {
            let (mut at, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
            while at < end.min(bytes) {
                let part = &mut buffer[..(end.min(bytes) - at).min(READ_BYTES) as usize];
                read(at, part)?;
                map.on(CountPath::Structure).store(at as usize, part);
                at += part.len() as u64;
            }
            Ok(())
        };
        let last = bytes / BLOCK - 1;
        // One of two copies is enough.
        let heads = [SUPER_BLOCK, last].map(|block| load(block..block + 1));
        if let [Err(error), Err(_)] = heads {
            return Err(error);
        }
        load(ROOT_BLOCK..ROOT_BLOCK + 1)?;
        let sb = *View::open_head(map.clone())?.0.superblock();
        load(sb.journal_block..sb.journal_block + sb.journal_blocks)?;
        let table = sb.device_table_block();
        load(table..table + DEVICE_TABLE_COPIES)?;
        Volume::replay(map.clone())?;
        let view = View::open_head(map)?.0.of_quiet_volume();
        Ok(Head {
            superblock: *view.superblock(),
            table: view.device_table()?,
            txid: view.root()?.txid,
        })
    }
}
