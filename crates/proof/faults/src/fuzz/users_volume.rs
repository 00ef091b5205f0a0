//! A volume of a user who is trusted with nothing, where inputs find it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::Superblock;
use zerocopy::FromBytes;

use shale_bench::Result;
use shale_powercut::volume::base::{Base, More};

/// Whose volume it is: somebody who is not trusted with more than any user is with his own.
pub(crate) const USER: u32 = 1000;

/// Where volumes are: a directory on tmpfs. They stay when the process ends, so a caller that starts it
/// removes them.
pub(crate) fn dir() -> PathBuf {
    std::env::var_os("SHALE_FUZZ_DIR").map_or("/dev/shm".into(), PathBuf::from)
}

/// The small tree on a volume of [`USER`]'s, in a directory in `dir` for the time being.
pub(crate) fn users_volume(dir: &Path) -> Result<Arc<Base>> {
    let mut base = Base::make(dir, More::Nothing)?;
    let made = Arc::get_mut(&mut base).expect("it was just made");
    let (first, _) = Superblock::read_from_prefix(&made.segment).expect("longer than a block");
    let second = first.second_block() as usize * BLOCK_BYTES;
    for at in [0, second] {
        let bytes = &mut made.segment[at..at + Superblock::BYTES];
        let mut superblock = Superblock::read_from_bytes(bytes).expect("as many bytes");
        superblock.owner_uid = USER;
        bytes.copy_from_slice(&superblock.encode());
    }
    Ok(base)
}
