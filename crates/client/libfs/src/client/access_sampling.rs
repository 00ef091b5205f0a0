//! Reports of reads (Strata §3.3): which pieces of files this client read recently, so that
//! migration knows what is hot. In volumes with several tiers only.
//!
//! There is no message: pieces are noted in a table of 4 KiB on the client page, and the daemon
//! looks there. A piece that is read again and again costs one load.

use crate::client::session::Session;
use shale_format::Ino;
use shale_format::extent::root_kind;
use shale_format::inode::{Inode, slot_of};
use shale_proto::shared_pages::client_page::{self, Read};
use shale_proto::shared_pages::daemon_page;

/// log2 of the bytes of a piece.
const PIECE_SHIFT: u32 = 20;

impl Session {
    /// Whether the volume has lower tiers. Inside the read section the answer holds: nothing lies below
    /// before every thread has left the call in which it heard that nothing does.
    pub(crate) fn is_tiered(&self) -> bool {
        self.daemon_words.load_u64(daemon_page::TIERS) != 0
    }

    /// Notes that bytes `from..to` of a file were read, `below` NVM or in it.
    pub(crate) fn note_read(&self, ino: u64, from: u64, to: u64, below: bool) {
        if !self.is_tiered() {
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
    pub(crate) fn note_directory(&self, dir: &Inode) {
        if self.is_tiered() {
            self.note(Read {
                ino: dir.ino,
                piece: 0,
                below: dir.root[0].kind == root_kind::TREE && dir.root[0].len > 0,
            });
        }
    }

    fn note(&self, read: Read) {
        let (at, word) = (client_page::reads(read.ino, read.piece), read.word());
        let words = self.client_words();
        if words.load_u64(at) != word {
            words.store_u64(at, word);
        }
    }
}
