//! `shale device remove VOLUME.toml --nvm`.

use crate::recovered::{recover, recover_quietly};
use shale_pool::VolumeFile;
use shale_pool::staged::from_nvm::{NvmRemoved, find_place, has_logs, remove_nvm};
use shale_sys::size;
use shale_verb::failure::{Failure, Result};
use shale_verb::terminal::{Waiting, note, print_json, say};
use std::path::Path;

/// Takes a volume's NVM away, and says what it did. `staging`: bytes of its staging area, if some were asked for.
///
/// # Errors
/// It is in use, or cannot be recovered; what has to move finds no place; as [`remove_nvm`]: the volume is as before.
pub fn remove(path: &Path, staging: Option<u64>, json: bool) -> Result<()> {
    let file = VolumeFile::load(path).map_err(Failure::of)?;
    if has_logs(path).map_err(Failure::of)? {
        recover_quietly(path, &file)?;
    }
    let place = find_place(path, staging).map_err(Failure::of)?;
    if place.live_blocks > 0 {
        note!("{}: its end is emptied", place.device.display());
        recover(path, &file, &mut |daemon| {
            let emptied = daemon.empty_end(&place.device, place.blocks[1]);
            emptied.map_err(Failure::of)
        })?;
    }
    let bar = Waiting::for_progress(Some("{wide_bar} {bytes} of {total_bytes}"));
    let mut show = |done, of| bar.done(done, of);
    let removed = remove_nvm(path, staging, &mut show, &|_| ());
    drop(bar);
    let removed = removed.map_err(Failure::of)?;
    if json {
        return print_json(&removed);
    }
    tell(&removed);
    Ok(())
}

fn tell(removed: &NvmRemoved) {
    let (dir, place) = (removed.dir.display(), &removed.place);
    say!("{dir}: NVM of {} removed", size::show(place.memory_bytes));
    say!(
        "  {}: an area of {} from byte {}: a staging area of {}, and the memory tier twice",
        place.device.display(),
        size::show(removed.area_bytes),
        place.at_byte,
        size::show(place.staging_bytes)
    );
    if removed.tier_lost_bytes > 0 {
        let lost = size::show(removed.tier_lost_bytes);
        say!("  the SSD tier has {lost} less");
    }
    let memory = size::show(place.memory_bytes);
    say!("  a mount takes {memory} of shared memory, and its logs");
    say!(
        "  durability stays {}: {}",
        removed.durability,
        removed.power_cut
    );
}
