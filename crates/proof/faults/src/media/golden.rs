//! Images of every release, as they were then: served and whole, or refused by name.
//!
//! They lie in `crates/proof/faults/golden`, each with the tree that it has to show. An image is
//! made once, when a release fixes a format (`shale-harness golden-make`), and never again: that
//! it can still be read is what it is for. In the file, packed by gzip: for each file of the
//! NVM directory its name, its length, and every block that is not all zeros.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shale_format::checksum::crc32c;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::Superblock;

use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::load::Load;
use crate::volume::sight::{unlink, use_it};
use crate::volume::stage::{Checked, Stage, attach_to, both, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::{Memory, Snapshot};

/// Operations of each workload in an image.
const ACTS: usize = 60;
/// Bits of features that no release has given a meaning.
const UNKNOWN: u64 = 1 << 40;

/// What a program of today does with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It serves it.
    Served,
    /// It recovers it, then serves it.
    Recovered,
    /// It refuses to serve it, for a reason that has these words, and checks it.
    Checked(&'static str),
    /// It refuses it altogether, for a reason that has these words.
    Refused(&'static str),
}

/// All images.
const IMAGES: [(&str, Fate); 6] = [
    ("1-clean", Fate::Served),
    ("1-left", Fate::Recovered),
    ("1-compatible", Fate::Served),
    ("1-read-only", Fate::Checked("only be read")),
    ("1-incompatible", Fate::Refused("incompatible features")),
    ("2-newer", Fate::Refused("use a newer shale")),
];

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn gzip(arguments: &[&str], bytes: Vec<u8>) -> Result<Vec<u8>> {
    let failed = |found: String| BenchError::Program {
        program: "gzip".to_owned(),
        found,
    };
    let mut child = Command::new("gzip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let input = child.stdin.take();
    let writer = std::thread::spawn(move || input.map(|mut input| input.write_all(&bytes)));
    let output = child
        .wait_with_output()
        .map_err(|e| failed(e.to_string()))?;
    let written = writer.join();
    match output.status.success() && matches!(written, Ok(Some(Ok(())))) {
        true => Ok(output.stdout),
        false => Err(failed(output.status.to_string())),
    }
}

/// Everything in an NVM directory, as it is kept.
fn pack(nvm: &Path) -> Result<Vec<u8>> {
    let list = std::fs::read_dir(nvm).map_err(BenchError::file(nvm, "list"))?;
    let mut files: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut packed = Vec::new();
    for path in files {
        let bytes = std::fs::read(&path).map_err(BenchError::file(&path, "read"))?;
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        packed.push(name.len() as u8);
        packed.extend_from_slice(name);
        packed.extend((bytes.len() as u64).to_le_bytes());
        for (n, block) in (0_u64..).zip(bytes.chunks(BLOCK_BYTES)) {
            if block.iter().any(|&b| b != 0) {
                packed.extend(n.to_le_bytes());
                packed.extend_from_slice(block);
                packed.resize(packed.len() + BLOCK_BYTES - block.len(), 0);
            }
        }
        packed.extend(u64::MAX.to_le_bytes());
    }
    Ok(packed)
}

/// Takes the next `n` bytes.
fn take<'b>(from: &mut &'b [u8], n: usize) -> Option<&'b [u8]> {
    let (now, rest) = from.split_at_checked(n)?;
    *from = rest;
    Some(now)
}

fn number(from: &mut &[u8]) -> Option<u64> {
    take(from, 8).and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?)))
}

/// The files that `packed` holds.
fn unpack(mut packed: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    while let Some(&[bytes]) = take(&mut packed, 1) {
        let name = String::from_utf8(take(&mut packed, bytes.into())?.to_vec()).ok()?;
        let mut content = vec![0; number(&mut packed)? as usize];
        loop {
            let n = number(&mut packed)?;
            if n == u64::MAX {
                break;
            }
            let block = take(&mut packed, BLOCK_BYTES)?;
            let at = n as usize * BLOCK_BYTES;
            let into = content.get_mut(at..)?;
            let bytes = into.len().min(BLOCK_BYTES);
            into[..bytes].copy_from_slice(&block[..bytes]);
        }
        files.push((name, content));
    }
    Some(files)
}

/// A tree in words, one path a line, so that it can be compared without this program.
fn words(tree: &Snapshot) -> String {
    let line = |(path, facts): (&Vec<u8>, &shale_model::snapshot::Facts)| {
        let stat = &facts.stat;
        let mut line = format!(
            "/{} {:o} {} {} {} {} {:08x}",
            path.escape_ascii(),
            stat.mode,
            stat.nlink,
            stat.uid,
            stat.gid,
            stat.size,
            crc32c(&facts.data),
        );
        for (name, value) in &facts.xattrs {
            line += &format!(" {}={:08x}", name.escape_ascii(), crc32c(value));
        }
        line + "\n"
    };
    tree.paths.iter().map(line).collect()
}

fn put(stage: &Stage, name: &str) -> Result<()> {
    let path = dir().join(format!("{name}.gz"));
    let bytes = std::fs::read(&path).map_err(BenchError::file(&path, "read"))?;
    let files = unpack(&gzip(&["-dc"], bytes)?).ok_or_else(|| BenchError::Program {
        program: path.display().to_string(),
        found: "not as it was packed".to_owned(),
    })?;
    stage.put(&[])?;
    for (name, content) in files {
        let path = stage.nvm().join(name);
        // The segment of the stage has a label of its own: that of the image is not in it.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, content).map_err(BenchError::file(&path, "write"))?;
    }
    Ok(())
}

fn served(stage: &Stage, expected: &str) -> Checked<()> {
    for turn in ["at first", "again"] {
        let daemon = stage.start()?;
        if let Some(problem) = daemon.recovery().problems.first() {
            return Err(format!("{turn}: recovery: {problem}"));
        }
        let session = attach_to(&daemon)?;
        let mut shale = side(&session);
        let found = words(&tree(&mut shale)?);
        if found != expected {
            let differs = found.lines().zip(expected.lines()).find(|(a, b)| a != b);
            return Err(format!("{turn}: another tree: {differs:?}"));
        }
        use_it(&mut shale, b"fault-new")?;
        unlink(&mut shale, b"fault-new")?;
        close_all(&mut shale);
        drop(shale);
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        let report = stage.fsck()?;
        if !report.clean() {
            return Err(format!("{turn}: fsck:\n{report}"));
        }
    }
    Ok(())
}

fn refused(stage: &Stage, words: &str) -> Checked<()> {
    match stage.start() {
        Err(text) if text.contains(words) && !text.contains("panic") => Ok(()),
        other => Err(format!("expected '{words}', found {:?}", other.map(|_| ()))),
    }
}

fn one(stage: &Stage, fate: Fate, expected: &str) -> Checked<()> {
    let before = stage.image().map_err(|e| e.to_string())?;
    match fate {
        Fate::Served | Fate::Recovered => return served(stage, expected),
        Fate::Checked(words) => {
            refused(stage, words)?;
            let report = stage.fsck()?;
            if report.errors > 0 || !report.complete {
                return Err(format!("not checked:\n{report}"));
            }
        }
        Fate::Refused(words) => {
            refused(stage, words)?;
            match stage.repair() {
                Err(text) if !text.contains("panic") => {}
                other => return Err(format!("repair: {other:?}")),
            }
        }
    }
    match stage.image().map_err(|e| e.to_string())? == before {
        true => Ok(()),
        false => Err("refused, but something was written".to_owned()),
    }
}

/// Every image; for as long as there is time, again.
pub fn images(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    for (name, fate) in IMAGES {
        let path = dir().join(format!("{name}.tree"));
        let expected = std::fs::read_to_string(&path).map_err(BenchError::file(&path, "read"))?;
        put(&stage, name)?;
        trial.cases += 1;
        kept!(one(&stage, fate, &expected).map_err(|wrong| format!("{name}: {wrong}")));
    }
    trial.seen = format!("{} images", IMAGES.len());
    Ok(Ok(()))
}

/// Makes all images that are not there yet, of the format of this program.
///
/// # Errors
/// What is around could not do it, or Shale is wrong.
pub fn make(at: &Path) -> Result<()> {
    let failed = |found: String| BenchError::Program {
        program: "a workload".to_owned(),
        found,
    };
    std::fs::create_dir_all(dir()).map_err(BenchError::file(dir(), "make"))?;
    for (name, fate) in IMAGES {
        let path = dir().join(format!("{name}.gz"));
        if path.exists() {
            continue;
        }
        let stage = Stage::small(at)?;
        let tree = fill(&stage, fate == Fate::Recovered).map_err(failed)?;
        let image = stage.image()?;
        let now = Superblock::decode(&image[..Superblock::BYTES], 0);
        let mut changed = now.map_err(|e| failed(e.to_string()))?.0;
        match name {
            "1-compatible" => changed.compatible = UNKNOWN,
            "1-read-only" => changed.ro_compatible = UNKNOWN,
            "1-incompatible" => changed.incompatible = UNKNOWN,
            "2-newer" => changed.version += 1,
            _ => {}
        }
        for block in [0, changed.second_block()] {
            stage.store(block * BLOCK_BYTES as u64, &changed.encode())?;
        }
        let packed = gzip(&["-9nc"], pack(&stage.nvm())?)?;
        std::fs::write(&path, packed).map_err(BenchError::file(&path, "write"))?;
        let path = dir().join(format!("{name}.tree"));
        std::fs::write(&path, words(&tree)).map_err(BenchError::file(&path, "write"))?;
    }
    Ok(())
}

/// Some of each workload. `left`: the second half of it is in a log that is not digested.
fn fill(stage: &Stage, left: bool) -> Checked<Snapshot> {
    let mut model = Memory::new(0o755);
    let mut daemon = stage.start()?;
    let mut session = attach_to(&daemon)?;
    let mut shale = side(&session);
    for (n, load) in (0..).zip(Load::ALL) {
        for act in load.acts(n).take(ACTS) {
            both(&mut model, &mut shale, &act)?;
        }
        close_all(&mut shale);
        close_all(&mut model);
        if n == 1 {
            drop(shale);
            session.detach().map_err(|e| format!("detach: {e}"))?;
            daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
            daemon = stage.start()?;
            session = attach_to(&daemon)?;
            shale = side(&session);
        }
    }
    drop(shale);
    if left {
        daemon.abandon();
    } else {
        session.detach().map_err(|e| format!("detach: {e}"))?;
        daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    }
    tree(&mut model)
}
