//! The same operations on two sides: every answer has to be the same, and now and then
//! the whole trees.

use super::act::{Act, Side};
use super::random::{Abilities, Acts};
use super::snapshot::Snapshot;

/// Two sides that do not agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Number of the operation, from 0.
    pub at: u64,
    /// The operation; none: the trees differ after it.
    pub act: Option<Act>,
    /// What is different.
    pub how: String,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.act {
            Some(act) => write!(f, "operation {}, {act:?}: {}", self.at, self.how),
            None => write!(f, "trees after operation {}: {}", self.at, self.how),
        }
    }
}

/// Compares the trees of two sides.
///
/// # Errors
/// What is different.
pub fn trees(expected: &mut dyn Side, found: &mut dyn Side) -> Result<(), String> {
    let walk = |side: &mut dyn Side| Snapshot::of(side).map_err(|e| format!("the walk: {e}"));
    let (expected, found) = (walk(expected)?, walk(found)?);
    match expected == found {
        true => Ok(()),
        false => Err(expected.differences(&found).join("\n  ")),
    }
}

/// Does `count` operations of `seed` on both sides. After every `trees_every` the trees are
/// compared, and at the end.
///
/// # Errors
/// The first disagreement.
pub fn run(
    expected: &mut dyn Side,
    found: &mut dyn Side,
    (seed, count): (u64, u64),
    abilities: Abilities,
    trees_every: u64,
) -> Result<(), Box<Disagreement>> {
    let mut acts = Acts::new(seed, abilities);
    for at in 0..count {
        let act = acts.next_act();
        let (should, did) = (expected.act(&act), found.act(&act));
        if should != did {
            let how = format!("expected {}, found {}", shown(&should), shown(&did));
            let act = Some(act);
            return Err(Box::new(Disagreement { at, act, how }));
        }
        if (at + 1) % trees_every == 0 || at + 1 == count {
            trees(expected, found).map_err(|how| Box::new(Disagreement { at, act: None, how }))?;
        }
    }
    Ok(())
}

/// An outcome without pages of bytes.
pub fn shown(outcome: &super::Outcome) -> String {
    let mut text = format!("{outcome:?}");
    if text.len() > 300 {
        text.truncate(300);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Memory, Shale};
    use super::*;
    use shale_bench::scratch::{Scratch, ScratchOptions};

    const COUNT: u64 = 3_000;

    fn superuser() -> bool {
        let is = rustix::process::geteuid().is_root();
        if !is {
            eprintln!("skipped: the model knows the superuser only");
        }
        is
    }

    fn model() -> Memory {
        Memory::new(0o755)
    }

    #[test]
    fn the_model_is_tmpfs() {
        if !superuser() {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::set_permissions(
            dir.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let mut kernel = Kernel::new(dir.path().to_path_buf());
        let abilities = Abilities { ranges: false };
        let done = run(&mut model(), &mut kernel, (1, COUNT), abilities, 500);
        assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn shale_is_the_model() {
        if !superuser() {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = ScratchOptions {
            nvm_bytes: 64 << 20,
            log_bytes: shale_format::limits::LOG_BYTES_MIN,
        };
        let scratch = Scratch::new(dir.path(), options).unwrap();
        let mut shale = Shale::new(scratch.tree());
        let abilities = Abilities { ranges: true };
        let done = run(&mut model(), &mut shale, (2, COUNT), abilities, 500);
        assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    #[test]
    fn a_wrong_side_is_found() {
        let mut other = Memory::new(0o700);
        let abilities = Abilities { ranges: true };
        let found = run(&mut model(), &mut other, (3, 10), abilities, 10).unwrap_err();
        assert!(found.to_string().contains("mode"), "{found}");
    }
}
