//! Reports of reads (Strata §3.3): which pieces of files this client read recently, so that
//! migration knows what is hot. In volumes with several tiers only.
//!
//! There is no message: pieces are noted in a table of 4 KiB on the client page, and the daemon
//! looks there. A piece that is read again and again costs one load.

use crate::daemon_link::DaemonLink;
use shale_format::Ino;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, slot_of};
use shale_nvm::SharedWords;
use shale_proto::shared_pages::client_page::{self, Read};

/// log2 of the bytes of a piece.
const PIECE_SHIFT: u32 = 20;

/// Where reads are noted.
pub struct AccessSampling {
    table: SharedWords,
    daemon: DaemonLink,
}

impl AccessSampling {
    /// `table`: the client page.
    pub(crate) fn new(table: SharedWords, daemon: DaemonLink) -> Self {
        Self { table, daemon }
    }

    /// Whether it is to be noted in a file's inode that it was read.
    #[inline]
    pub fn notes_access(&self) -> bool {
        self.daemon.notes_access()
    }

    /// Notes that bytes `from..to` of a file were read, `below` NVM or in it.
    #[inline]
    pub fn note_read(&self, ino: u64, from: u64, to: u64, below: bool) {
        if !self.daemon.is_tiered() {
            return;
        }
        for piece in from >> PIECE_SHIFT..=(to - 1) >> PIECE_SHIFT {
            self.note(Read { ino, piece, below });
        }
    }

    /// Notes that an inode was read, in a block that lies below NVM.
    pub(crate) fn note_inode(&self, ino: Ino) {
        self.note(Read {
            ino: Ino::NONE.0,
            piece: slot_of(ino).0.0,
            below: true,
        });
    }

    /// Notes that a directory was read, which may have leaves below NVM.
    pub fn note_directory(&self, dir: &Inode) {
        if self.daemon.is_tiered() {
            self.note(Read {
                ino: dir.ino,
                piece: 0,
                below: dir.root[0].kind == root_kind::TREE && dir.root[0].len > 0,
            });
        }
    }

    fn note(&self, read: Read) {
        let (at, word) = (client_page::reads(read.ino, read.piece), read.word());
        if self.table.load_u64(at) != word {
            self.table.store_u64(at, word);
        }
    }
}
