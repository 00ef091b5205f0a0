//! Images that are damaged in several places at once, behind checksums that fit or not: each is
//! served or refused, checked and repaired, in bounded time and memory, by a process of its own.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shale_check::{CheckOptions, RepairReport, check_volume_dir, repair_volume_dir};
use shale_daemon::Daemon;
use shale_format::limits::BLOCK_BYTES;
use shale_libfs::OFlags;
use shale_nvm::{Access, Map};
use shale_pool::nvm_dir::segment_name;
use shale_sys::SystemClock;
use shale_volume::View;

use crate::fuzz::images::{BYTES_MAX, CHANGES_MAX, change};
use crate::fuzz::input::Input;
use crate::processes::child::Process;
use crate::trial::QUICK_CASES;
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::use_it;
use crate::volume::stage::{Checked, attach_to, caught, config_of, side};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::{Act, FileAct, Said, Side, Snapshot};
use shale_powercut::recovery::rot::structure;
use shale_powercut::volume::sessions::once_free;

/// Longest that anything with one image may take.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Private memory of the process, in KiB, stacks of threads included.
const MEMORY_MAX: u64 = 96 << 10;
/// Images of each workload at least: 300 in all.
const IMAGES_MIN: u64 = 100;
/// Paths of a damaged image that are looked at.
const LOOKS_MAX: usize = 2_000;
/// Images that share a process.
const EACH: u64 = 10;

/// Bytes that say what is changed: as many as there can be.
fn input(seed: u64) -> Vec<u8> {
    let mut chance = Chance::new(seed);
    let changes = 1 + chance.below(CHANGES_MAX as u64);
    chance.bytes((changes * (6 + BYTES_MAX / 2)) as usize)
}

/// The place of a child that looks at damaged images.
struct Gallery<'p> {
    nvm: &'p Path,
    whole: Map,
    map: Arc<Map>,
    parts: Vec<Vec<Range<usize>>>,
}

impl<'p> Gallery<'p> {
    fn open(nvm: &'p Path, image: &Path) -> Checked<Gallery<'p>> {
        let open = |path: &Path, access| {
            Map::open_files(&[path.to_path_buf()], access).map_err(|e| e.to_string())
        };
        let map = Arc::new(open(&nvm.join(segment_name(0)), Access::ReadWrite)?);
        let (view, _) = View::open(map.clone()).map_err(|e| e.to_string())?;
        Ok(Gallery {
            nvm,
            whole: open(image, Access::ReadOnly)?,
            map,
            parts: structure(&view).map_err(|e| e.to_string())?,
        })
    }

    fn damage(&self, seed: u64) {
        let bytes = input(seed);
        let mut input = Input::new(&bytes);
        while !input.is_over() {
            if let Some((at, block)) = change(&self.map, &self.parts, &mut input) {
                self.map.store(at, &block[..]);
            }
        }
    }

    fn restore(&self) -> Checked<()> {
        let list = std::fs::read_dir(self.nvm).map_err(|e| e.to_string())?;
        for entry in list.flatten() {
            if !entry.file_name().to_string_lossy().starts_with("seg-") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let (mut now, mut right) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        for at in (0..self.map.bytes()).step_by(BLOCK_BYTES) {
            self.map.load(at, &mut now);
            self.whole.load(at, &mut right);
            if now != right {
                self.map.store(at, &right);
            }
        }
        Ok(())
    }

    /// Serves it if it can be served: nothing panics, whatever it says.
    fn serve(&self, whole: bool) -> Checked<()> {
        let start = || Daemon::start(config_of(self.nvm), Arc::new(SystemClock::new()));
        let daemon = match once_free(start) {
            Ok(daemon) => daemon,
            Err(e) if whole => return Err(format!("start: {e}")),
            Err(_) => return Ok(()),
        };
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let walked = match whole {
            true => Snapshot::of(&mut shale).map(|_| ()),
            false => {
                glance(&mut shale);
                Ok(())
            }
        };
        let walked = walked.map_err(|e| format!("the walk: {e}"));
        let used = use_it(&mut shale, b"fault-new");
        // It may be there from before.
        let _ = crate::volume::sight::unlink(&mut shale, b"fault-new");
        drop(shale);
        let left = session.detach().map_err(|e| format!("detach: {e}"));
        let ended = daemon.shutdown().map_err(|e| format!("shutdown: {e}"));
        match whole {
            true => walked.and(used).and(left).and(ended),
            false => Ok(()),
        }
    }

    fn repair(&self) -> Checked<Option<RepairReport>> {
        let uuid = config_of(self.nvm).volume.uuid;
        let options = CheckOptions::default();
        match repair_volume_dir(self.nvm, &uuid, &options, &mut |_| ()) {
            Ok(report) if report.clean() => Ok(Some(report)),
            Ok(report) => Err(format!("not whole after repair:\n{report}")),
            // It has to say why; that it is of another volume, say.
            Err(e) if e.to_string().is_empty() => Err("refused without a word".to_owned()),
            Err(_) => Ok(None),
        }
    }

    /// Everything with one image. Gives whether it could be repaired.
    fn look(&self, seed: u64) -> Checked<bool> {
        self.damage(seed);
        let begun = Instant::now();
        let repaired = caught(|| {
            let options = CheckOptions::default();
            check_volume_dir(self.nvm, &options, &mut |_| ()).map_err(|e| e.to_string())?;
            self.serve(false)?;
            let Some(_) = self.repair()? else {
                return Ok(false);
            };
            self.serve(true)?;
            let report =
                check_volume_dir(self.nvm, &options, &mut |_| ()).map_err(|e| e.to_string())?;
            match report.clean() {
                true => Ok(true),
                false => Err(format!("fsck at the end:\n{report}")),
            }
        });
        let took = begun.elapsed();
        self.restore()?;
        match repaired {
            Ok(_) if took > TIME_MAX => Err(format!("it took {took:?}")),
            other => other,
        }
    }
}

/// Looks at some paths, whatever comes of it. In a damaged volume a directory can be below itself, and
/// a file of any length.
fn glance(side: &mut dyn Side) {
    let mut open = vec![Vec::new()];
    let mut looked = 0;
    while let Some(dir) = open.pop() {
        let path = if dir.is_empty() {
            b".".to_vec()
        } else {
            dir.clone()
        };
        let Ok(Said::Names(names)) = side.act(&Act::List(path)) else {
            continue;
        };
        for (name, kind) in names {
            looked += 1;
            if looked > LOOKS_MAX {
                return;
            }
            let path = match dir.is_empty() {
                true => name,
                false => [&dir[..], b"/", &name].concat(),
            };
            // What each of them says does not matter: it says something.
            let _ = side.act(&Act::Stat(path.clone(), false));
            let _ = side.act(&Act::GetXattr(path.clone(), b"user.flags".to_vec()));
            match kind {
                4 => open.push(path),
                10 => drop(side.act(&Act::Readlink(path))),
                _ if side.act(&Act::Open(0, path, OFlags::RDONLY, 0)).is_ok() => {
                    for at in [0, 1 << 20, u64::MAX >> 2] {
                        let _ = side.act(&Act::File(0, FileAct::Read(at, 50_000)));
                    }
                    let _ = side.act(&Act::File(0, FileAct::Close));
                }
                _ => {}
            }
        }
    }
}

/// Private memory of this process now, in KiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmData:"));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// What a child does that looks at images. Gives its exit status.
pub fn look(nvm: &Path, image: &Path, seeds: Range<u64>) -> i32 {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let (mut most, mut mended, count) = (0, 0, seeds.end - seeds.start);
    let done = Gallery::open(nvm, image).and_then(|gallery| {
        for seed in seeds {
            eprintln!("image {seed}");
            let repaired = gallery.look(seed);
            mended += u64::from(repaired.map_err(|wrong| format!("image {seed}: {wrong}"))?);
            most = most.max(memory());
        }
        Ok(())
    });
    println!("{count} {mended} {most}");
    crate::processes::child::noted(done)
}

/// Damaged images, some in each process.
pub fn damaged(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    stage.put(&trial.filled.image)?;
    let image = stage.dir().join("whole");
    std::fs::write(&image, &trial.filled.image).map_err(BenchError::file(&image, "write"))?;
    let least = match trial.options.quick {
        true => QUICK_CASES,
        false => IMAGES_MIN,
    };
    let limit = format!("ulimit -d {MEMORY_MAX};");
    let (mut mended, mut most) = (0, 0);
    let mut next = trial.options.seed * 100_000;
    while trial.cases < least || !trial.is_over() {
        let each = EACH.min(least);
        let seeds = next..next + each;
        next += each;
        let mut child = Process::images(&stage, &limit, &image, seeds)?;
        child.end();
        let output = child.output()?;
        let status = kept!(child.status());
        if !status.success() {
            let errors = child.errors();
            let lines: Vec<&str> = errors.lines().rev().take(12).collect();
            let said = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            return Ok(Err(format!("{status}: {said}")));
        }
        let mut numbers = output
            .split_whitespace()
            .map(|n| n.parse().unwrap_or(0_u64));
        let mut number = || numbers.next().unwrap_or(0);
        trial.cases += number();
        mended += number();
        most = most.max(number());
    }
    trial.seen = format!("{mended} repaired; most private memory {most} KiB of {MEMORY_MAX}");
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use shale_format::inode::{Inode, flag};
    use zerocopy::FromBytes;

    use super::*;
    use crate::metadata::structures::{Kind, parts};
    use crate::volume::load::Load;
    use crate::volume::stage::{Filled, Stage};

    /// A file that has a name and counts as an orphan: each run of an open finds that what it
    /// looked up must have changed.
    #[test]
    fn a_call_that_finds_no_sense_in_a_name_ends() {
        let dir = Path::new("/dev/shm");
        let filled = Filled::make(dir, Load::Mail, 3, 60).unwrap().unwrap();
        let stage = Stage::small(dir).unwrap();
        stage.put(&filled.image).unwrap();
        let is_file = |ino: &u64| filled.reach(*ino).iter().any(|path| path.contains(&b'.'));
        let all = parts(&stage.view().unwrap()).unwrap();
        let mut of_files = all
            .iter()
            .filter(|p| p.kind == Kind::Inode && is_file(&p.ino));
        let part = *of_files.next_back().unwrap();
        let mut inode = Inode::read_from_bytes(part.of(&filled.image)).unwrap();
        inode.flags |= flag::ORPHAN;
        stage.store(part.at, &inode.encode()).unwrap();
        let daemon = stage.start().unwrap();
        let session = attach_to(&daemon).unwrap();
        let mut shale = side(&session);
        let begun = Instant::now();
        for path in filled.reach(part.ino) {
            let open = shale.act(&Act::Open(0, path, OFlags::RDONLY, 0));
            assert_eq!(open, Err(rustix::io::Errno::IO));
        }
        assert!(begun.elapsed() < TIME_MAX);
        drop(shale);
        session.detach().unwrap();
        daemon.shutdown().unwrap();
    }
}
