//! How a session is opened, and how it maps what it is handed.

use crate::log::benefit_model::LineCosts;
use shale_format::Durability;
use shale_nvm::MapOptions;
use shale_sys::Memory;

/// How a session is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionOptions {
    /// Bytes of the update log; 0: the volume's default.
    pub log_bytes: u64,
    /// The durability policy that is wanted; `None`: the volume's.
    pub durability: Option<Durability>,
    /// The kernel holds references to inodes (FUSE): an inode that loses its last
    /// name lives on until it is forgotten.
    pub kernel_references: bool,
    /// The session stays for long: all of its log is made present at once, so that no
    /// call has to wait for a page of it.
    pub present: bool,
    /// Whole blocks go through the log too, instead of directly to granted blocks.
    pub log_all: bool,
    /// No call waits until its records are hardened: the caller does, before it says that what [`Promise`] names
    /// is done ([`ClientLog::to_harden`], [`ClientLog::wait_hardened`]), and may do other calls meanwhile.
    ///
    /// [`Promise`]: crate::log::client_log::Promise
    /// [`ClientLog::to_harden`]: crate::log::client_log::ClientLog::to_harden
    /// [`ClientLog::wait_hardened`]: crate::log::client_log::ClientLog::wait_hardened
    pub hardens_later: bool,
    /// The caller can do a call through the mount instead: a call for a file that others
    /// use as well may fail with [`crate::errno::MEDIATED`], having changed nothing.
    pub yields: bool,
    /// What a buffered client takes a line of memory and of NVM to cost; `None`: it measures both when it attaches.
    pub line_costs: Option<LineCosts>,
    /// The program's allocator, if it is this one: calls are refused with `ENOMEM` while it is short
    /// ([`Memory::is_short`]), having changed nothing. Without it a program that uses up its memory is ended,
    /// as Rust's allocation has it.
    pub memory: Option<&'static Memory>,
}

/// How a session maps what it is handed (recorder, timing model, protection key).
#[derive(Clone, Default)]
pub struct SessionMaps {
    /// The NVM tier.
    pub nvm: MapOptions,
    /// Its update log in NVM, or in memory that is staged.
    pub log: MapOptions,
    /// Its update log in memory, of a buffered client on a volume with NVM.
    pub buffer: MapOptions,
    /// Its control page.
    pub client_page: MapOptions,
}
