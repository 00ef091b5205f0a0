//! What was granted to one client and not used yet: inode numbers and blocks.
//!
//! Granted things have left the volume's free space in memory only. A digested record
//! that uses one takes it out of here; what is left when the client goes returns to the volume.

use shale_digest::RunSet;
use shale_format::Ino;
use shale_volume::Volume;
use std::collections::HashSet;

/// What one client has been granted and has not used.
#[derive(Default)]
pub struct Grants {
    /// Inode numbers that it may create.
    pub inos: HashSet<u64>,
    /// Blocks that it may steal.
    pub blocks: RunSet,
}

impl Grants {
    /// Returns everything to the volume.
    pub fn give_back(&mut self, volume: &Volume) {
        for run in std::mem::take(&mut self.blocks).iter() {
            volume.give_back(run);
        }
        let inos: Vec<Ino> = self.inos.drain().map(Ino).collect();
        volume.return_inodes(&inos);
    }
}
