//! `shale device add VOLUME.toml --nvm DIR:SIZE`.

use crate::recovered::recover_quietly;
use shale_pool::VolumeFile;
use shale_pool::staged::to_nvm::{NvmAdded, add_nvm, is_in_checkpoint};
use shale_pool::volume_file::NvmEntry;
use shale_sys::size;
use shale_verb::failure::{Failure, Result};
use shale_verb::terminal::{Waiting, print_json, say};
use std::path::Path;

/// Gives a volume without NVM the NVM that is named, and says what it did.
///
/// # Errors
/// It is in use, or cannot be recovered; as [`add_nvm`]: the volume is as before.
pub fn add(path: &Path, entry: &NvmEntry, json: bool) -> Result<()> {
    let file = VolumeFile::load(path).map_err(Failure::of)?;
    if file.is_staged() && !is_in_checkpoint(&file).map_err(Failure::of)? {
        recover_quietly(path, &file)?;
    }
    let bar = Waiting::for_progress(Some("{wide_bar} {bytes} of {total_bytes}"));
    let added = add_nvm(path, entry, &mut |done, of| bar.done(done, of), &|_| ());
    drop(bar);
    let added = added.map_err(Failure::of)?;
    if json {
        return print_json(&added);
    }
    tell(path, &added);
    Ok(())
}

fn tell(path: &Path, added: &NvmAdded) {
    let (dir, device) = (added.dir.display(), added.device.display());
    say!("{dir}: NVM of {} added", size::show(added.size_bytes));
    let (area, gained) = (
        size::show(added.area_bytes),
        size::show(added.tier_gained_bytes),
    );
    match added.tier_gained_bytes {
        0 => say!("  {device}: its area of {area} is of no use any more, and not part of the tier"),
        _ => say!("  {device}: its area of {area} is gone, and the SSD tier has {gained} more"),
    }
    say!(
        "  durability stays {}: {}",
        added.durability,
        added.power_cut
    );
    if added.durability != "strict" {
        let path = path.display();
        say!("  shale tune {path} durability=strict has each call durable when it returns");
    }
}
