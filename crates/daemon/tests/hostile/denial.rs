//! x
use crate::Case;
pub const CASES: &[Case] = &[];
