//! The NVM tier as a check reads it: the mapping, with the batch that waits in the
//! journal laid over it.
//!
//! Invariant: every address is checked before it becomes an offset; nothing is written.

use super::lower_metadata::{Below, Devices};
use shale_format::BlockAddr;
use shale_format::device_table::DeviceTable;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::RootBlock;
use shale_nvm::{Map, Path};
use std::sync::Arc;

/// Bytes of one block.
pub(super) type Block = [u8; BLOCK_BYTES];

/// A part of a batch inside one block.
struct Patch {
    /// Byte in the tier.
    offset: u64,
    bytes: u32,
    /// Where its bytes begin in the batch's body.
    from: u32,
}

/// A batch that was not (or not known to be) written in place: its body and 16 bytes
/// for each range and block.
#[derive(Default)]
pub(super) struct Patches {
    body: Vec<u8>,
    /// By block; inside one block in the order of the batch: later ones win.
    list: Vec<Patch>,
}

impl Patches {
    pub(super) fn new(body: Vec<u8>) -> Self {
        Patches {
            body,
            list: Vec::new(),
        }
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Adds the range of `bytes` bytes at `offset`, whose contents begin at `from`.
    pub(super) fn push(&mut self, mut offset: u64, bytes: usize, mut from: usize) {
        let mut left = bytes as u64;
        while left > 0 {
            let n = left.min(BLOCK_BYTES as u64 - offset % BLOCK_BYTES as u64);
            self.list.push(Patch {
                offset,
                bytes: n as u32,
                from: from as u32,
            });
            offset += n;
            from += n as usize;
            left -= n;
        }
    }

    pub(super) fn sort(&mut self) {
        self.list.sort_by_key(Patch::block);
    }

    fn apply(&self, block: u64, into: &mut Block) {
        let first = self.list.partition_point(|p| p.block() < block);
        for p in self.list[first..].iter().take_while(|p| p.block() == block) {
            let (at, n) = ((p.offset % BLOCK_BYTES as u64) as usize, p.bytes as usize);
            into[at..at + n].copy_from_slice(&self.body[p.from as usize..][..n]);
        }
    }

    /// Blocks that are touched, ascending.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let mut last = None;
        let all = self.list.iter().map(Patch::block);
        all.filter(move |&b| last.replace(b) != Some(b))
    }
}

impl Patch {
    fn block(&self) -> u64 {
        self.offset / BLOCK_BYTES as u64
    }
}

/// Reads blocks.
pub(super) struct Media {
    map: Arc<Map>,
    blocks: u64,
    patches: Patches,
    below: Devices,
}

impl Media {
    /// All of a mapping.
    pub(super) fn new(map: Arc<Map>) -> Self {
        let blocks = (map.bytes() / BLOCK_BYTES) as u64;
        Media {
            map,
            blocks,
            patches: Patches::default(),
            below: Devices::default(),
        }
    }

    /// Opens the devices below NVM of the tiers where structure lies; if that is not known all.
    pub(super) fn open_below(
        &mut self,
        root: Option<&RootBlock>,
        table: &DeviceTable,
        below: &Below,
    ) {
        self.below = Devices::of(root, table, below);
    }

    /// Why a device is not there that holds structure, if one is not.
    pub(super) fn missing_below(&self) -> Option<&str> {
        self.below.missing()
    }

    /// Reads a block of structure below NVM.
    pub(super) fn read_below(&self, addr: BlockAddr, into: &mut Block) -> Result<(), String> {
        self.below.read(self, addr, into)
    }

    /// Reads a block below NVM, whatever its checksum says.
    #[must_use]
    pub(super) fn load_unsure(&self, addr: BlockAddr, into: &mut Block) -> bool {
        self.below.read_unsure(addr, into).is_ok()
    }

    /// Gives the blocks below NVM that are in use, as far as they can be read.
    pub(super) fn each_below(&self, f: &mut dyn FnMut(BlockAddr, &Block)) {
        self.below.each_in_use(self, f);
    }

    /// Blocks of the mapping.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Copies out one block, by its address; `false`: there is no such block, and `into` is unchanged,
    /// or below NVM it cannot be read.
    #[must_use]
    pub(super) fn load(&self, block: u64, into: &mut Block) -> bool {
        match block < self.blocks {
            true => self.load_nvm(block, into),
            false => self.read_below(BlockAddr::from_raw(block), into).is_ok(),
        }
    }

    /// The same of NVM alone.
    #[must_use]
    pub(super) fn load_nvm(&self, block: u64, into: &mut Block) -> bool {
        if block >= self.blocks {
            return false;
        }
        let at = block as usize * BLOCK_BYTES;
        self.map.on(Path::Structure).load(at, into);
        self.patches.apply(block, into);
        true
    }

    /// Copies out what lies in consecutive blocks from `block` on; `false`: they are not
    /// all there.
    #[must_use]
    pub(super) fn load_run(&self, block: u64, into: &mut [u8]) -> bool {
        let mut buffer = [0; BLOCK_BYTES];
        for (n, part) in (0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            if !self.load(block.saturating_add(n), &mut buffer) {
                return false;
            }
            part.copy_from_slice(&buffer[..part.len()]);
        }
        true
    }

    /// Lays a batch over the mapping and tells whether that changes anything.
    pub(super) fn lay_over(&mut self, patches: Patches) -> bool {
        let mut differs = false;
        for block in patches.blocks() {
            let mut before = [0; BLOCK_BYTES];
            if self.load(block, &mut before) {
                let mut after = before;
                patches.apply(block, &mut after);
                differs |= after != before;
            }
        }
        self.patches = patches;
        differs
    }
}
