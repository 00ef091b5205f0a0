//! Making a volume (mkfs): on NVM, or without it on devices alone.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`options`] | what is to be made, and what was made |
//! | `checks` | what is refused before anything is made |
//! | `contents` | the volume itself, and its file |
//! | `nvm` | a volume in an NVM directory |
//! | `staged` | a volume without NVM; `sizes`: of its memory tier and staging area |

mod checks;
mod contents;
mod nvm;
pub mod options;
mod sizes;
mod staged;

use crate::error::Result;
pub(crate) use contents::default_log_bytes;
pub use options::{Made, MakeOptions, StagedSizes};
use shale_sys::Clock;
pub(crate) use sizes::staging as staging_bytes;
pub(crate) use staged::{ALIGN_MAX, allocate};

/// Makes a volume (mkfs). Everything that was in it is lost.
///
/// # Errors
/// A volume is there and `force` is not given, a daemon serves it, there is no
/// space; a name, a directory or a device cannot be used. Nothing is left of a volume that is refused or half made.
pub fn make_volume(options: &MakeOptions, clock: &dyn Clock) -> Result<Made> {
    match &options.nvm {
        Some(nvm) => nvm::make(options, nvm, clock),
        None => staged::make(options, clock),
    }
}
