//! Logs in memory of buffered clients that a killed daemon left, damaged before recovery: where that log is not the one that the table names,
//! the one in NVM counts, which has what was synced.

use crate::metadata::update_logs::{self, Left, noted};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::stage::Checked;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_format::log::LogHeader;

/// Damages the header of a log, or has it be another log's. Says how.
fn spoil(log: &mut Vec<u8>, case: u64, chance: &mut Chance) -> String {
    type Change = fn(&mut LogHeader);
    let others: [(&str, Change); 4] = [
        ("another volume's", |h| h.uuid[0] ^= 1),
        ("of another salt", |h| h.salt ^= 1),
        ("of another slot", |h| h.slot += 1),
        ("of another length", |h| h.ring_bytes += 4096),
    ];
    let half = log.len() / 2;
    match case as usize {
        n if n < others.len() => {
            let (what, change) = others[n];
            if let Ok(mut header) = LogHeader::decode(&log[..LogHeader::BYTES]) {
                change(&mut header);
                log[..LogHeader::BYTES].copy_from_slice(&header.encode());
            }
            what.to_owned()
        }
        4 => {
            log.truncate(half);
            "cut in the middle".to_owned()
        }
        5 => {
            log.clear();
            "empty".to_owned()
        }
        _ => {
            let byte = chance.below(LogHeader::BYTES as u64) as usize;
            log[byte] ^= 1 << chance.below(8);
            format!("with another bit in byte {byte} of its header")
        }
    }
}

/// The log in memory is not the one that the table names.
pub fn header(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    trial.buffered = true;
    let left = kept!(Left::make(trial)?);
    let (last, synced) = (left.trees.len() - 1, left.synced());
    if synced >= last {
        return Ok(Err("everything was synced".to_owned()));
    }
    left.put(Some(&left.log.1))?;
    match left.recover() {
        Ok((at, problems)) if at == last && problems.is_empty() => {}
        other => return noted("whole", format!("{other:?}")),
    }
    while trial.next_case() {
        let mut log = left.log.1.clone();
        let what = spoil(&mut log, trial.cases - 1, &mut trial.chance);
        left.put(Some(&log))?;
        let (at, problems) = match left.recover() {
            Ok(recovered) => recovered,
            Err(wrong) => return noted(&what, wrong),
        };
        let path = left.log.0.display().to_string();
        if at != synced {
            let wrong = format!("{at} of {last} operations, of which {synced} were synced");
            return noted(&what, wrong);
        }
        if !problems.iter().any(|problem| problem.starts_with(&path)) {
            return noted(&what, format!("it is not named: {problems:?}"));
        }
    }
    // A power cut: nothing is wrong.
    left.put(None)?;
    match left.recover() {
        Ok((at, problems)) if at == synced && problems.is_empty() => {}
        other => return noted("missing", format!("{other:?}")),
    }
    trial.seen = format!("the log in NVM, {synced} of {last} operations");
    Ok(Ok(()))
}

/// Records of a log in memory.
pub fn records(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    trial.buffered = true;
    update_logs::records(trial)
}
