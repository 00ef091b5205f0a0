//! Power cuts while a volume is made where there was one before.
//!
//! Whatever survives is the old volume as it was, no volume, or the new one, empty. When
//! `mkfs` has returned it is the new one, whole.

use shale_nvm::Access;
use shale_record::Recorded;
use shale_volume::{MkfsOptions, View, Volume, VolumeError};

use crate::images::Image;
use crate::recording::track::{Parts, parts};
use crate::recovery::check::{fsck, tree};
use crate::volume::base::{Base, mkfs_options};
use crate::volume::place::Place;
use crate::wrong::Wrong;
use shale_bench::Result;

/// Identity of the new volume.
const NEW: [u8; 16] = *b"crash explorer 2";

/// Makes a volume over the base at `place`; what was stored. The base is put back.
///
/// # Errors
/// The outer error: it could not be tried. The inner one: what is wrong.
pub fn record(place: &mut Place, base: &Base) -> Result<std::result::Result<Vec<Recorded>, Wrong>> {
    let path = place.nvm_dir().join(crate::volume::media::medium_name(0));
    let options = MkfsOptions {
        uuid: NEW,
        ..mkfs_options()
    };
    let map = place.maps(0).nvm.open_files(&[path], Access::ReadWrite)?;
    let made = Volume::create(map.into(), &options).map(drop);
    let events = place.recording.take_events();
    place.touch_all(&events);
    place.reset(base)?;
    Ok(made
        .map(|()| events)
        .map_err(|e: VolumeError| format!("mkfs: {e}")))
}

/// Looks at what a cut left at `place`, which holds the base otherwise. `done`: after `mkfs`
/// had returned.
///
/// # Errors
/// The outer error: it could not be looked at. The inner one: what is wrong.
pub fn look_at(
    place: &mut Place,
    base: &Base,
    image: &Image,
    done: bool,
) -> Result<std::result::Result<(), Wrong>> {
    for (key, value) in image.units() {
        place.touch(key.medium(), key.offset());
        place.map(key.medium()).store(key.offset(), &value);
    }
    let wrong = judged(place, base, done);
    place.reset(base)?;
    Ok(wrong)
}

fn judged(place: &Place, base: &Base, done: bool) -> std::result::Result<(), Wrong> {
    let view = match View::open(place.segment.clone()) {
        Ok((view, _)) => view,
        Err(e) if done => return Err(format!("after mkfs there is no volume: {e}")),
        Err(_) => return Ok(()),
    };
    let is_new = view.superblock().uuid == NEW;
    let open = Volume::open(place.segment.clone());
    open.map_err(|e| format!("mkfs: there is a superblock, but no volume: {e}"))?;
    let found = tree(&view).map_err(|e| format!("mkfs: the tree: {e}"))?;
    let right: Parts = parts(&base.tree);
    match (is_new, done) {
        (true, _) if found.paths.len() != 1 => Err("mkfs: the new volume is not empty".to_owned()),
        (true, false) => Ok(()),
        (true, true) => fsck(place),
        (false, true) => Err("after mkfs the old volume is there".to_owned()),
        (false, false) if parts(&found) != right => {
            Err("mkfs: the old volume is there, with another tree".to_owned())
        }
        (false, false) => Ok(()),
    }
}
