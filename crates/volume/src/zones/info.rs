//! What is told of zones.

use crate::lower::ZonePlace;
use shale_format::TxId;

/// Kinds of data that are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    /// Likely to change or to be read soon.
    Hot = 0,
    /// Not likely.
    Cold = 1,
}

/// One zone as `status` and cleaning see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Where it is.
    pub place: ZonePlace,
    /// Blocks written since it was erased.
    pub written: u64,
    /// Blocks in use.
    pub live: u64,
    /// Hot or cold.
    pub heat: Heat,
    /// Last batch that linked blocks of it.
    pub txid: TxId,
    /// More will be written to it.
    pub open: bool,
    /// It is worn out: what is live in it should be moved, and nothing goes to it.
    pub worn: bool,
}

/// How a tier below NVM is used, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerSpace {
    /// All blocks in zones; of those that are worn out only what is in use.
    pub total: u64,
    /// In use.
    pub live: u64,
    /// Written, and not in use any more: until their zone is cleaned.
    pub dead: u64,
    /// Could be written now.
    pub writable: u64,
    /// May come into use besides what is: all others but the spare of devices that are written to.
    pub room: u64,
    /// Kept for cleaning: the spare of its devices, one empty zone at least.
    pub reserved: u64,
    /// Zones.
    pub zones: u64,
    /// Of these, empty.
    pub empty_zones: u64,
    /// Zones erased since the start.
    pub erased: u64,
    /// Blocks written since the start.
    pub written: u64,
    /// Writes that did not continue their zone: none, ever.
    pub out_of_order: u64,
}
