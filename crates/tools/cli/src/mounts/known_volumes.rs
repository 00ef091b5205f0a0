//! Volume files that this machine knows of: those of `/etc/shale`, and those of mounts. They give volumes that are found on devices
//! their names.

use crate::boot::registered;
use crate::mounts::state::StateDir;
use shale_pool::VolumeFile;
use shale_pool::scan::{FoundVolume, Scan, block_devices, places_of};
use shale_pool::volume_file::uuid_text;
use std::fs;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug, Default)]
pub struct KnownVolumes {
    /// Each with where it is.
    files: Vec<(PathBuf, VolumeFile)>,
    /// Mounts that there are: mount point, volume file, directory of the memory tier.
    mounts: Vec<(PathBuf, PathBuf, PathBuf)>,
}

impl KnownVolumes {
    /// All that can be read.
    pub fn load() -> Self {
        let mut known = Self::default();
        for path in registered::all_in(Path::new(registered::DIRECTORY)) {
            known.add(path);
        }
        for dir in StateDir::all() {
            let state = dir.state;
            if state.is_mounted().unwrap_or(false) {
                known.add(state.volume.clone());
                let mount = (state.mountpoint, state.volume, state.nvm_dir);
                known.mounts.push(mount);
            }
        }
        known
    }

    /// One more volume file, if it can be read.
    pub fn add(&mut self, path: PathBuf) {
        let is_new = self.files.iter().all(|(other, _)| *other != path);
        if let (true, Ok(file)) = (is_new, VolumeFile::load(&path)) {
            self.files.push((path, file));
        }
    }

    /// Looks at these places, or else at the block devices of the machine and at where the files say that media are.
    pub fn scan(&self, places: &[PathBuf], area_at: Option<u64>) -> Scan {
        let files: Vec<VolumeFile> = self.files.iter().map(|(_, file)| file.clone()).collect();
        let mut all = places.to_vec();
        if places.is_empty() {
            // The names that a volume file has come first. One that is not there is missing; it need not be named twice.
            let named = files.iter().flat_map(places_of);
            all.extend(named.filter(|place| place.exists()));
            all.extend(block_devices());
        }
        Scan::of(&all, &files, area_at)
    }

    /// The volume files of a volume.
    pub fn files_of(&self, uuid: &[u8; 16]) -> impl Iterator<Item = (&Path, &VolumeFile)> {
        let text = uuid_text(uuid);
        let of = move |file: &VolumeFile| uuid_text(&file.uuid_bytes()) == text;
        let files = self.files.iter().filter(move |(_, file)| of(file));
        files.map(|(path, file)| (&**path, file))
    }

    /// Where a volume is mounted, also if its volume file has gone.
    pub fn mounted_on(&self, volume: &FoundVolume) -> Vec<PathBuf> {
        let real = |path: &Path| fs::canonicalize(path).ok();
        let segments = volume.nvm.iter().chain(&volume.memory);
        let dirs: Vec<PathBuf> = segments.filter_map(|found| real(&found.dir)).collect();
        let is_of = |file: &Path, dir: &Path| {
            self.files_of(&volume.uuid).any(|(path, _)| path == file)
                || real(dir).is_some_and(|dir| dirs.contains(&dir))
        };
        let mounts = self.mounts.iter().filter(|(_, file, dir)| is_of(file, dir));
        mounts.map(|(place, ..)| place.clone()).collect()
    }
}
