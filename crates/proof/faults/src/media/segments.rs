//! Media that are missing, of another volume, in the wrong place, too short; versions and
//! features that this program does not know.

use std::path::{Path, PathBuf};

use shale_format::limits::{NVM_BYTES_MIN, SEGMENT_BYTES};
use shale_format::superblock::Superblock;
use shale_format::version;

use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, unlink, use_it};
use crate::volume::stage::{Checked, Stage, attach_to, close_all, fill, side};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::Snapshot;

/// Operations on a volume of two segments.
const ACTS: usize = 200;
const TWO_SEGMENTS: u64 = 2 * SEGMENT_BYTES;

/// Serves the volume: everything is as it was.
fn as_before(stage: &Stage, tree: &Snapshot) -> Checked<()> {
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let sight = Sight::of(&mut shale, tree);
    let used = use_it(&mut shale, b"fault-new");
    let gone = unlink(&mut shale, b"fault-new");
    close_all(&mut shale);
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    sight.within(&[])?;
    used?;
    gone
}

/// The start, `fsck` and repair all refuse and say `names`; nothing is written.
fn refused(stage: &Stage, what: &str, names: &str, also_fsck: bool) -> Result<Checked<()>> {
    let files = contents(stage)?;
    let mut refusals = vec![("start", stage.start().map(|_| ()))];
    if also_fsck {
        refusals.push(("fsck", stage.fsck().map(|_| ())));
        refusals.push(("repair", stage.repair().map(|_| ())));
    }
    for (who, refusal) in refusals {
        match refusal {
            Err(text) if text.contains(names) && !text.contains("panic") => {}
            other => {
                let text = format!("{what}: {who}: expected '{names}', found {other:?}");
                return Ok(Err(text));
            }
        }
    }
    match contents(stage)? == files {
        true => Ok(Ok(())),
        false => Ok(Err(format!("{what}: refused, but something was written"))),
    }
}

/// Names and contents of the segments.
fn contents(stage: &Stage) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for n in 0..3 {
        let path = stage.segment(n);
        if let Ok(content) = std::fs::read(&path) {
            files.push((path, content));
        }
    }
    Ok(files)
}

/// Copies of both segments with their labels, before the volume is mounted once more.
fn older(stage: &Stage, tree: &Snapshot) -> Result<Checked<PathBuf>> {
    let old = stage.dir().join("old");
    std::fs::create_dir(&old).map_err(BenchError::file(&old, "make"))?;
    for n in 0..2 {
        copy(&stage.segment(n), &old.join(format!("{n}")))?;
    }
    Ok(as_before(stage, tree).map(|()| old))
}

/// Copies a file with its attributes.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut cp = std::process::Command::new("cp");
    let done = cp.arg("-a").arg(from).arg(to).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        other => Err(BenchError::Program {
            program: "cp -a".to_owned(),
            found: format!("{other:?}"),
        }),
    }
}

/// Files in the place of others, with their labels: each is named.
fn moved(stage: &Stage, other: &Stage, old: &Path) -> Result<Checked<()>> {
    let aside = |n: usize| stage.dir().join(format!("aside-{n}"));
    let (first, second) = (stage.segment(0), stage.segment(1));
    let own = |stage: &Stage, n: usize| stage.segment(n);
    let cases: [(&str, [PathBuf; 2], &str); 5] = [
        (
            "swapped",
            [aside(1), aside(0)],
            "seg-0000: it was made as seg-0001",
        ),
        (
            "another's first",
            [own(other, 0), aside(1)],
            "seg-0000: it is of volume",
        ),
        (
            "another's second",
            [aside(0), own(other, 1)],
            "seg-0001: it is of volume",
        ),
        (
            "the first is stale",
            [old.join("0"), aside(1)],
            "seg-0000: it is older",
        ),
        (
            "the second is stale",
            [aside(0), old.join("1")],
            "seg-0001: it is older",
        ),
    ];
    for (n, path) in [&first, &second].into_iter().enumerate() {
        change(path.clone(), |path| std::fs::rename(path, aside(n)))?;
    }
    for (what, from, names) in cases {
        for (from, to) in from.iter().zip([&first, &second]) {
            let _ = std::fs::remove_file(to);
            copy(from, to)?;
        }
        kept!(refused(stage, what, names, false)?);
    }
    for (n, path) in [&first, &second].into_iter().enumerate() {
        change(aside(n), |aside| std::fs::rename(aside, path))?;
    }
    Ok(Ok(()))
}

fn change(path: PathBuf, act: impl FnOnce(&PathBuf) -> std::io::Result<()>) -> Result<()> {
    act(&path).map_err(BenchError::file(path, "change"))
}

/// Segments missing and of other lengths.
fn lengths(trial: &mut Trial<'_>, stage: &Stage, image: &[u8]) -> Result<Checked<()>> {
    let resize = |n: usize, bytes: u64| {
        change(stage.segment(n), |path| {
            std::fs::File::options()
                .write(true)
                .open(path)?
                .set_len(bytes)
        })
    };
    let remove = |n| change(stage.segment(n), |path| std::fs::remove_file(path));
    for (n, name) in [(0, "seg-0000"), (1, "seg-0001")] {
        remove(n)?;
        kept!(refused(stage, "a segment is missing", name, n == 0)?);
        stage.put(image)?;
        for bytes in [0, 4096, SEGMENT_BYTES - 4096, SEGMENT_BYTES + 4096] {
            resize(n, bytes)?;
            kept!(refused(stage, "a segment of another length", name, n == 0)?);
            stage.put(image)?;
            trial.cases += 1;
        }
        trial.cases += 1;
    }
    Ok(Ok(()))
}

/// Segments missing, short, long, swapped, of another volume.
pub fn segments(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = Stage::new(&trial.options.dir, TWO_SEGMENTS, *b"two segments one")?;
    let other = Stage::new(&trial.options.dir, TWO_SEGMENTS, *b"two segments two")?;
    let (load, seed) = (trial.filled.load, trial.options.seed);
    let tree = kept!(fill(&stage, load, seed, ACTS));
    kept!(fill(&other, load, seed + 1, ACTS));
    let old = kept!(older(&stage, &tree)?);
    kept!(moved(&stage, &other, &old)?);
    trial.cases += 5;
    let (image, foreign) = (stage.image()?, other.image()?);
    kept!(lengths(trial, &stage, &image)?);
    let half = SEGMENT_BYTES as usize;
    let join = |first: &[u8], second: &[u8]| [first, second].concat();
    // Contents without their labels: the superblocks tell.
    let uuid = "74776f20-7365-676d-656e-7473206f6e65";
    let mixed = [
        (
            "swapped",
            join(&image[half..], &image[..half]),
            "superblock",
        ),
        (
            "the first is another's",
            join(&foreign[..half], &image[half..]),
            "two volumes",
        ),
        (
            "the second is another's",
            join(&image[..half], &foreign[half..]),
            "two volumes",
        ),
        ("all of another volume", foreign.clone(), uuid),
    ];
    for (what, mixed, names) in mixed {
        stage.put(&mixed)?;
        kept!(refused(&stage, what, names, false)?);
        trial.cases += 1;
    }
    stage.put(&image)?;
    kept!(as_before(&stage, &tree));
    let nvm = stage.nvm();
    let aside = nvm.with_extension("aside");
    change(nvm.clone(), |path| std::fs::rename(path, &aside))?;
    kept!(refused(
        &stage,
        "the directory is missing",
        "missing",
        false
    )?);
    change(aside, |path| std::fs::rename(path, &nvm))?;
    kept!(as_before(&stage, &tree));
    trial.seen =
        "two segments: missing, four lengths each, swapped, another volume's, stale".to_owned();
    Ok(Ok(()))
}

/// The lowest feature bit that is none of ours.
const UNKNOWN: u64 = 1 << (!version::INCOMPATIBLE).trailing_zeros();

/// Versions and feature bits of a newer program.
pub fn versions(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    let image = &trial.filled.image;
    let now = kept!(Superblock::decode(&image[..1024], 0).map_err(|e| e.to_string())).0;
    let last = NVM_BYTES_MIN - 4096;
    let mut both = |changed: Superblock, copies: &[u64]| -> Result<()> {
        stage.put(image)?;
        for &at in copies {
            stage.store(at, &changed.encode())?;
        }
        trial.cases += 1;
        Ok(())
    };
    for bit in [UNKNOWN, 1 << 31, 1 << 63] {
        let compatible = Superblock {
            compatible: bit,
            ..now
        };
        both(compatible, &[0, last])?;
        kept!(as_before(&stage, &trial.filled.tree));
        let kept_bits = stage.view()?.superblock().compatible;
        if kept_bits != bit {
            return Ok(Err("an unknown compatible bit was not kept".to_owned()));
        }
        let read_only = Superblock {
            ro_compatible: bit,
            ..now
        };
        both(read_only, &[0, last])?;
        kept!(refused(
            &stage,
            "read-only-compatible",
            "only be read",
            false
        )?);
        let found = kept!(stage.fsck());
        if found.errors > 0 || !found.complete {
            return Ok(Err(format!(
                "a volume that can be read is not checked:\n{found}"
            )));
        }
        let newer = Superblock {
            incompatible: bit,
            ..now
        };
        // One copy is enough: the other is of the older program.
        for copies in [&[0, last][..], &[0], &[last]] {
            both(newer, copies)?;
            kept!(refused(
                &stage,
                "incompatible",
                "incompatible features",
                false
            )?);
        }
    }
    let version = now.version + 1;
    both(Superblock { version, ..now }, &[0, last])?;
    kept!(refused(
        &stage,
        "a newer version",
        "use a newer shale",
        false
    )?);
    stage.put(image)?;
    kept!(as_before(&stage, &trial.filled.tree));
    trial.seen = "three bits of each kind, in either copy and both; version + 1".to_owned();
    Ok(Ok(()))
}
