//! Devices of lower tiers that are missing, in another's place, another volume's, or from a
//! backup.

use std::path::{Path, PathBuf};

use shale_daemon::DaemonConfig;
use shale_format::Durability;
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_pool::DeviceKind;
use shale_pool::LowerTiers;
use shale_pool::MakeOptions;
use shale_pool::make_volume;
use shale_pool::volume_file::DeviceFile;
use shale_sys::SystemClock;

use crate::lower_tiers::tiered_volume::{down, large};
use crate::media::segments::copy;
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::Sight;
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::{Memory, Snapshot};

/// Operations of the workload.
const ACTS: usize = 200;
pub(crate) const ZONE_BYTES: u64 = 64 * BLOCK_BYTES as u64;
const ZONES: u64 = 6;
/// Bytes of a device.
pub(crate) const DEVICE_BYTES: u64 = LABEL_AREA_BYTES + ZONES * ZONE_BYTES;
pub(crate) const DEVICES: [&str; 3] = ["flash-0", "flash-1", "disk-0"];
/// Large files, with and without devices.
const LARGE: [u8; 2] = [28, 4];

/// A volume with two flash devices and a disk, which are files; or with NVM alone.
pub(crate) struct Three {
    stage: Stage,
    place: PathBuf,
    config: DaemonConfig,
}

impl Three {
    pub(crate) fn new(trial: &Trial<'_>) -> Result<Three> {
        Self::made(trial, |device| LowerTiers {
            ssd: vec![device(DEVICES[0]), device(DEVICES[1])],
            hdd: vec![device(DEVICES[2])],
        })
    }

    /// None of the three yet.
    pub(crate) fn alone(trial: &Trial<'_>) -> Result<Three> {
        Self::made(trial, |_| LowerTiers::default())
    }

    fn made(
        trial: &Trial<'_>,
        lower: impl FnOnce(&dyn Fn(&str) -> DeviceFile) -> LowerTiers,
    ) -> Result<Three> {
        let stage = trial.stage()?;
        let place = stage.dir().join("volume");
        std::fs::create_dir(&place).map_err(BenchError::file(&place, "make"))?;
        let device = |name: &str| DeviceFile {
            path: place.join(name),
            size_bytes: DEVICE_BYTES,
            zone_bytes: Some(ZONE_BYTES),
            model: None,
            kind: DeviceKind::Conventional,
            overprovision_percent: None,
        };
        let options = MakeOptions {
            file: place.join("VOLUME.toml"),
            name: "faults".to_owned(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                place.join("nvm"),
                NVM_BYTES_MIN,
            )),
            staged: Default::default(),
            lower: lower(&device),
            log_bytes: LOG_BYTES_MIN,
            durability: Durability::Strict,
            owner_uid: rustix::process::geteuid().as_raw(),
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        let made = make_volume(&options, &SystemClock::new())?;
        let config = DaemonConfig {
            digest_threads: 1,
            ..DaemonConfig::new(made.file)
        };
        Ok(Three {
            stage,
            place,
            config,
        })
    }

    pub(crate) fn fill(&self, trial: &Trial<'_>) -> Checked<Snapshot> {
        let daemon = self.stage.start_with(self.config.clone())?;
        let session = attach_to(&daemon)?;
        let (mut shale, mut model) = (side(&session), Memory::new(0o755));
        let acts = trial.filled.load.acts(trial.options.seed).take(ACTS);
        for act in acts {
            both(&mut model, &mut shale, &act)?;
        }
        close_all(&mut shale);
        close_all(&mut model);
        let alone = !self.is_tiered();
        for n in 0..LARGE[usize::from(alone)] {
            for act in large(&format!("large-{n}"), n) {
                both(&mut model, &mut shale, &act)?;
            }
            down(&daemon)?;
        }
        let live = daemon.volume().lower_space(shale_format::TierId::Hdd);
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        match alone || live.is_some_and(|space| space.live > 0) {
            true => tree(&mut model),
            false => Err("nothing is on the disk".to_owned()),
        }
    }

    pub(crate) fn as_before(&self, tree: &Snapshot) -> Checked<()> {
        let daemon = self.stage.start_with(self.config.clone())?;
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let sight = Sight::of(&mut shale, tree);
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        sight.within(&[])
    }

    /// Whether it was made with devices.
    pub(crate) fn is_tiered(&self) -> bool {
        self.file(0).exists()
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// The directory of it all.
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// How daemons serve it.
    pub(crate) fn config(&self) -> &DaemonConfig {
        &self.config
    }

    /// How daemons serve it from now on.
    pub(crate) fn set_config(&mut self, config: DaemonConfig) {
        self.config = config;
    }

    /// Where a device is.
    pub(crate) fn file(&self, n: usize) -> PathBuf {
        self.place.join(DEVICES[n])
    }

    /// All media, byte by byte.
    fn contents(&self) -> Vec<Option<Vec<u8>>> {
        let segment = self.place.join("nvm").join("seg-0000");
        let all = (0..DEVICES.len()).map(|n| self.file(n)).chain([segment]);
        all.map(|path| std::fs::read(path).ok()).collect()
    }

    /// The start is refused and says `names`; nothing is written.
    fn refused(&self, config: &DaemonConfig, names: &[&str]) -> Checked<()> {
        let before = self.contents();
        match self.stage.start_with(config.clone()) {
            Err(text) if names.iter().all(|name| text.contains(name)) => {}
            Err(text) => return Err(format!("expected {names:?}, found '{text}'")),
            Ok(_) => return Err("served".to_owned()),
        }
        match self.contents() == before {
            true => Ok(()),
            false => Err("refused, but something was written".to_owned()),
        }
    }
}

/// Changes a file.
pub(crate) fn change(path: &Path, act: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    act(path).map_err(BenchError::file(path, "change"))
}

/// Zeros or ones over a copy of a label.
pub(crate) fn spoil(path: &Path, copy: u64, byte: u8) -> Result<()> {
    change(path, |path| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(path)?;
        file.write_all_at(&[byte; 64], copy * BLOCK_BYTES as u64)
    })
}

/// As many devices are tried: one, where it has to be quick.
fn tried(trial: &Trial<'_>) -> usize {
    if trial.options.quick {
        1
    } else {
        DEVICES.len()
    }
}

/// Devices that are missing or too short.
fn lengths(trial: &mut Trial<'_>, t: &Three) -> Result<Checked<()>> {
    for (n, name) in DEVICES.iter().enumerate().take(tried(trial)) {
        let (path, aside) = (t.file(n), t.stage.dir().join("moved"));
        change(&path, |path| std::fs::rename(path, &aside))?;
        let missing = t.refused(&t.config, &[name]);
        for bytes in [0, 4096, DEVICE_BYTES - 4096] {
            copy(&aside, &path)?;
            change(&path, |path| {
                let file = std::fs::File::options().write(true).open(path);
                file.and_then(|file| file.set_len(bytes))
            })?;
            let short = t.refused(&t.config, &[name]);
            kept!(short.map_err(|wrong| format!("{name} has {bytes} bytes: {wrong}")));
            change(&path, |path| std::fs::remove_file(path))?;
            trial.cases += 1;
        }
        change(&aside, |aside| std::fs::rename(aside, &path))?;
        kept!(missing.map_err(|wrong| format!("{name} is missing: {wrong}")));
        trial.cases += 1;
    }
    Ok(Ok(()))
}

/// What a device is in the place of: its name, and what the refusal has to say.
type Case<'c> = (&'c str, Vec<(usize, PathBuf)>, [&'c str; 2]);

/// Devices missing, short, swapped, of another volume, stale, without labels.
pub fn labels(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let (t, other) = (Three::new(trial)?, Three::new(trial)?);
    let tree = kept!(t.fill(trial));
    let old = t.stage.dir().join("old");
    let aside = t.stage.dir().join("aside");
    for (dir, again) in [(&old, true), (&aside, false)] {
        std::fs::create_dir(dir).map_err(BenchError::file(dir, "make"))?;
        for (n, name) in DEVICES.iter().enumerate() {
            copy(&t.file(n), &dir.join(name))?;
        }
        if again {
            kept!(t.as_before(&tree));
        }
    }
    let own = |n: usize| aside.join(DEVICES[n]);
    let mut cases: Vec<Case<'_>> = vec![
        (
            "flash swapped",
            vec![(0, own(1)), (1, own(0))],
            ["flash-0", "are devices swapped?"],
        ),
        (
            "flash and disk swapped",
            vec![(0, own(2)), (2, own(0))],
            ["flash-0", "it is hdd 0"],
        ),
    ];
    for (n, name) in DEVICES.iter().enumerate().take(tried(trial)) {
        cases.push((
            "another volume's",
            vec![(n, other.file(n))],
            [name, "it is of volume"],
        ));
        cases.push(("stale", vec![(n, old.join(name))], [name, "it is older"]));
    }
    for (what, files, names) in cases {
        for (n, from) in &files {
            change(&t.file(*n), |path| std::fs::remove_file(path))?;
            copy(from, &t.file(*n))?;
        }
        let done = t.refused(&t.config, &names);
        kept!(done.map_err(|wrong| format!("{what}: {wrong}")));
        for (n, _) in files {
            change(&t.file(n), |path| std::fs::remove_file(path))?;
            copy(&own(n), &t.file(n))?;
        }
        trial.cases += 1;
    }
    kept!(t.as_before(&tree));
    kept!(lengths(trial, &t)?);
    kept!(t.as_before(&tree));
    let mut fewer = t.config.clone();
    fewer.volume.ssd.pop();
    kept!(t.refused(&fewer, &["ssd", "the volume has 2 devices"]));
    trial.cases += 1;
    kept!(without(trial, &t, &tree)?);
    trial.seen = "missing, short, swapped, another volume's, stale, without labels".to_owned();
    Ok(Ok(()))
}

/// One label of a device is damaged, then both.
fn without(trial: &mut Trial<'_>, t: &Three, tree: &Snapshot) -> Result<Checked<()>> {
    for (n, name) in DEVICES.iter().enumerate().take(tried(trial)) {
        for first in [0, 1] {
            spoil(&t.file(n), first, 0xff)?;
            kept!(t.as_before(tree));
            trial.cases += 1;
        }
        let whole = std::fs::read(t.file(n)).map_err(BenchError::file(&t.file(n), "read"))?;
        spoil(&t.file(n), 0, 0)?;
        spoil(&t.file(n), 1, 0)?;
        kept!(t.refused(&t.config, &[name, "it has no label"]));
        change(&t.file(n), |path| std::fs::write(path, &whole))?;
        trial.cases += 1;
    }
    Ok(t.as_before(tree))
}
