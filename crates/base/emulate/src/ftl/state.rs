//! What a translation layer knows, in memory.

use super::cache::Cache;
use super::map::Map;
use super::place::Place;
use super::settings::FtlCounts;
use crate::zoned::PageAt;

pub(super) struct State {
    pub map: Map,
    pub place: Place,
    pub cache: Cache,
    /// Of the page programmed last.
    pub sequence: u64,
    /// By erase block: the sequence number of its last page.
    pub written_at: Vec<u64>,
    /// Blocks cleaned when wear was looked at last.
    pub wear_looked_at: u64,
    pub counts: FtlCounts,
    /// The page that was read last.
    pub page: Option<PageAt>,
    pub page_data: Vec<u8>,
}

impl State {
    /// Forgets the page that was read last: its block is erased.
    pub fn forget_page(&mut self) {
        self.page = None;
    }
}
