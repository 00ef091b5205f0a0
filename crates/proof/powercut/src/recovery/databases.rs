//! Recovered files of a database, handed to the real `sqlite3`: whole, sums as ever, and every
//! transaction that was answered is there (`scripts/crash/trace-sqlite.py` tells which there are).

use std::path::Path;
use std::process::Command;

use crate::wrong::Wrong;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::Snapshot;

const PROGRAM: &str = "sqlite3";
/// What all accounts have together.
const SUM: &str = "600";
const TABLES: &str = "SELECT count(*) FROM sqlite_master WHERE name IN ('accounts', 'done');";
const CONTENT: &str = "SELECT sum(balance) FROM accounts; SELECT count(*), max(n) FROM done;";

/// Whether databases can be opened at all.
pub fn can_be_opened() -> bool {
    let version = Command::new(PROGRAM).arg("-version").output();
    version.is_ok_and(|output| output.status.success())
}

/// Opens the database in `tree`; gives how many transactions are in it. `dir`: on tmpfs.
///
/// # Errors
/// The outer error: it could not be tried. The inner one: what is wrong with it.
pub fn transactions(tree: &Snapshot, dir: &Path) -> Result<std::result::Result<u64, Wrong>> {
    let failed = BenchError::file(dir, "make a directory in");
    let place = tempfile::tempdir_in(dir).map_err(failed)?;
    for (path, facts) in &tree.paths {
        if path.starts_with(b"t.db") {
            let path = place.path().join(String::from_utf8_lossy(path).as_ref());
            let failed = BenchError::file(&path, "write");
            std::fs::write(&path, &facts.data).map_err(failed)?;
        }
    }
    let ask = |text: &str| -> Result<std::result::Result<Vec<String>, Wrong>> {
        let asked = Command::new(PROGRAM)
            .arg(place.path().join("t.db"))
            .arg(text)
            .output()
            .map_err(BenchError::file(PROGRAM, "run"))?;
        let lines = String::from_utf8_lossy(&asked.stdout);
        let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        let errors = String::from_utf8_lossy(&asked.stderr);
        match asked.status.success() && errors.is_empty() {
            true => Ok(Ok(lines)),
            false => Ok(Err(format!("{PROGRAM}: {errors}{}", lines.join("; ")))),
        }
    };
    let (whole, tables) = match ask(&format!("PRAGMA integrity_check; {TABLES}"))? {
        Ok(lines) => (lines.first().cloned(), lines.get(1).cloned()),
        Err(wrong) => return Ok(Err(wrong)),
    };
    if whole.as_deref() != Some("ok") {
        return Ok(Err(format!(
            "integrity_check: {}",
            whole.unwrap_or_default()
        )));
    }
    match tables.as_deref() {
        Some("0") => return Ok(Ok(0)),
        Some("2") => {}
        other => return Ok(Err(format!("{} of 2 tables", other.unwrap_or_default()))),
    }
    let lines = match ask(CONTENT)? {
        Ok(lines) => lines,
        Err(wrong) => return Ok(Err(wrong)),
    };
    let rows = lines.get(1).and_then(|line| line.split_once('|'));
    let number = |text: &str| text.parse::<u64>().ok();
    let rows = rows.and_then(|(count, last)| Some((number(count)?, number(last)?)));
    match (lines.first().map(String::as_str), rows) {
        (Some(SUM), Some((count, last))) if count == last + 1 => Ok(Ok(count)),
        _ => Ok(Err(format!("accounts and rows: {}", lines.join("; ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_model::workload::programs::{PROGRAMS, Program};
    use shale_model::{Memory, Side};

    fn tree_after(program: Program, steps: usize) -> Snapshot {
        let mut model = Memory::new(0o755);
        for act in &program.acts()[..steps] {
            model.act(act).unwrap();
        }
        Snapshot::of(&mut model).unwrap()
    }

    #[test]
    fn a_database_tells_its_transactions_and_its_damage() {
        if !can_be_opened() {
            return;
        }
        let open = |tree: &Snapshot| transactions(tree, "/dev/shm".as_ref()).unwrap();
        for number in 0..PROGRAMS {
            let program = Program::numbered(number);
            let all = program.acts().len();
            assert_eq!(open(&tree_after(program, all)), Ok(9), "{}", program.name());
            let half = open(&tree_after(program, all / 2)).unwrap();
            assert!((1..9).contains(&half) && half >= program.answered(all / 2));
            let mut short = tree_after(program, all);
            let data = &mut short.paths.get_mut(&b"t.db"[..]).unwrap().data;
            data.truncate(data.len() - 512);
            assert!(open(&short).is_err(), "{}", program.name());
        }
    }
}
