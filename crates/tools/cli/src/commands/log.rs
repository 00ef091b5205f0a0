//! `shale log`: what is in the update logs of a volume. Reads only, mounted or not.

use crate::failure::{Failure, Result};
use crate::terminal::say;
use serde_json::{Value, json};
use shale_format::LogPos;
use shale_format::limits::{BLOCK_BYTES, LOG_SLOTS};
use shale_format::log::{LogSlot, RING_AT, TAIL_AT, file_name, slot_state};
use shale_format::superblock::LOG_TABLE_BLOCK;
use shale_nvm::{Access, Map, MapOptions, Path as CountPath};
use shale_oplog::{Op, Record, Scan};
use shale_pool::VolumeFile;
use shale_pool::nvm_dir::{segment_name, segment_sizes};
use shale_status::fields::count;
use shale_sys::size;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  shale log show VOLUME.toml
  shale log show VOLUME.toml --slot 3 --limit 20 --json

Shows the records that each log still keeps, oldest first. Those before 'digested' are in the volume already \
and are kept only to answer requests once. A mounted volume goes on while it is read: what is shown may be \
gone a moment later.";

/// Arguments of `log`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Shows the records of the update logs
    Show(Show),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Show {
    /// The volume file
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// Only the log in this slot of the log table
    #[arg(long, value_name = "N")]
    slot: Option<u32>,
    /// At most this many records of each log
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// One JSON object for each log
    #[arg(long)]
    json: bool,
}

/// Shows logs.
pub fn run(args: &Args) -> Result<()> {
    let Verb::Show(show) = &args.verb;
    let file = VolumeFile::load(&show.volume).map_err(Failure::of)?;
    let slots = log_table(&file)?;
    let mut shown = 0;
    for (number, slot) in slots {
        if show.slot.is_some_and(|only| only != number) {
            continue;
        }
        let log = match open(&file, number, &slot) {
            Ok(log) => log,
            // A client that left meanwhile has taken its log along.
            Err(failure) if show.slot.is_none() => {
                eprintln!("shale log: {failure}");
                continue;
            }
            Err(failure) => return Err(failure),
        };
        shown += 1;
        if show.json {
            say!("{}", log.json(show.limit));
        } else {
            log.print(show.limit);
        }
    }
    match (shown, show.slot) {
        (0, Some(slot)) => Err(Failure::new(format!(
            "{}: there is no log in slot {slot}",
            show.volume.display()
        ))),
        (0, None) if !show.json => {
            say!(
                "{}: there are no logs: everything is in the volume",
                show.volume.display()
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The logs in the table, by slot, as last committed.
fn log_table(file: &VolumeFile) -> Result<Vec<(u32, LogSlot)>> {
    let dir = file.nvm_dir();
    if file.is_staged() && !dir.exists() {
        let text = format!(
            "{}: logs of a volume without NVM lie in memory while it is mounted, and it is not; shale fsck says what waits in its \
             staging area",
            dir.display()
        );
        return Err(Failure::new(text).advise("shale mount VOLUME.toml MOUNTPOINT"));
    }
    let sizes = segment_sizes(file.nvm_bytes());
    let paths: Vec<PathBuf> = (0..sizes.len())
        .map(|n| dir.join(segment_name(n)))
        .collect();
    for (path, expected) in paths.iter().zip(sizes) {
        let found = std::fs::metadata(path)
            .map_err(Failure::because(path.display()))?
            .len();
        if found != expected {
            let text = format!("{}: {found} bytes, expected {expected}", path.display());
            let key = match file.is_staged() {
                true => "staged.memory_bytes",
                false => "nvm.size_bytes",
            };
            return Err(Failure::new(text).advise(format!("is {key} of the volume file right?")));
        }
    }
    let map = Map::open_files(&paths, Access::ReadOnly).map_err(Failure::of)?;
    let map = Arc::new(map);
    let (view, _) =
        shale_volume::View::open(map.clone()).map_err(Failure::because(dir.display()))?;
    file.check_superblock(view.superblock())
        .map_err(Failure::of)?;
    let mut slots = Vec::new();
    for number in 0..LOG_SLOTS {
        let at = LOG_TABLE_BLOCK as usize * BLOCK_BYTES + number as usize * LogSlot::BYTES;
        let bytes = map
            .on(CountPath::Structure)
            .load_array::<{ LogSlot::BYTES }>(at);
        let slot = LogSlot::decode(&bytes, number)
            .map_err(Failure::because(format!("{}: log table", dir.display())))?;
        if slot.state == slot_state::LIVE {
            slots.push((number, slot));
        }
    }
    Ok(slots)
}

/// One log, open for reading.
struct Shown {
    number: u32,
    slot: LogSlot,
    map: Map,
    tail: u64,
}

fn open(file: &VolumeFile, number: u32, slot: &LogSlot) -> Result<Shown> {
    // Of a buffered client the log in memory has more than the one in NVM.
    let in_memory = (!file.is_staged()).then(|| file.buffer_dir().join(file_name(number)));
    let path = in_memory
        .filter(|path| path.is_file())
        .unwrap_or_else(|| file.nvm_dir().join(file_name(number)));
    let map = MapOptions::new()
        .path(CountPath::Log)
        .open_files(&[&path], Access::ReadOnly)
        .map_err(Failure::of)?;
    let expected = RING_AT as u64 + slot.ring_bytes;
    if (map.bytes() as u64) < expected {
        let text = format!(
            "{}: {} bytes, expected {expected}",
            path.display(),
            map.bytes()
        );
        return Err(Failure::new(text));
    }
    // The tail is the client's own word: one that cannot be is not followed.
    let tail = map.load_u64(TAIL_AT);
    let possible = tail <= slot.digested && tail + slot.ring_bytes >= slot.digested;
    Ok(Shown {
        number,
        slot: *slot,
        tail: if possible { tail } else { slot.digested },
        map,
    })
}

impl Shown {
    fn records(&self, limit: usize) -> (Vec<Record>, bool) {
        let scan = Scan::new(
            self.map.on(CountPath::Log),
            self.slot.salt,
            self.slot.ring_bytes,
            LogPos(self.tail),
        );
        let mut records: Vec<Record> = scan.take(limit.saturating_add(1)).collect();
        let more = records.len() > limit;
        records.truncate(limit);
        (records, more)
    }

    fn json(&self, limit: usize) -> Value {
        let (records, more) = self.records(limit);
        let records: Vec<Value> = records.iter().map(|r| self.record_json(r)).collect();
        json!({
            "slot": self.number,
            "uid": self.slot.uid,
            "ring_bytes": self.slot.ring_bytes,
            "tail": self.tail,
            "digested": self.slot.digested,
            "connection": format!("{:016x}", self.slot.connection),
            "records": records,
            "more": more,
        })
    }

    fn record_json(&self, record: &Record) -> Value {
        let h = &record.header;
        json!({
            "pos": h.pos,
            "kind": format!("{:?}", record.kind()),
            "ino": h.ino,
            "offset": h.offset,
            "bytes": h.bytes,
            "payload_bytes": h.payload_bytes,
            "flags": h.flags,
            "time_ns": h.time_ns,
            "request": h.request,
            "digested": h.pos < self.slot.digested,
            "what": what(record),
        })
    }

    fn print(&self, limit: usize) {
        let (records, more) = self.records(limit);
        say!(
            "slot {}: log of user {}, {} ring, tail {}, digested {}",
            self.number,
            self.slot.uid,
            size::show(self.slot.ring_bytes),
            self.tail,
            self.slot.digested
        );
        for record in &records {
            let in_volume = if record.pos().0 < self.slot.digested {
                "digested"
            } else {
                ""
            };
            let chained = if record.more() { "+" } else { "" };
            say!(
                "  {:>14} {:>8} {in_volume:<8} {}{chained}",
                record.pos().0,
                record.header.bytes,
                what(record)
            );
        }
        if more {
            say!("  … and more (--limit {limit})");
        }
    }
}

/// The operation in words.
fn what(record: &Record) -> String {
    let op = match Op::decode(record) {
        Ok(op) => op,
        Err(error) => return format!("damaged: {error}"),
    };
    let ino = op.ino().0;
    let text = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
    match &op {
        Op::Create {
            dir, body, name, ..
        } => {
            let (name, mode) = (text(name), body.mode);
            format!("create {name} in {}: inode {ino}, mode {mode:o}", dir.0)
        }
        Op::Link { dir, name, .. } => format!("link {} in {}: inode {ino}", text(name), dir.0),
        Op::Unlink { dir, name, .. } => format!("unlink {} in {}: inode {ino}", text(name), dir.0),
        Op::Rename {
            dir,
            body,
            old,
            new,
            ..
        } => {
            let (old, new, to) = (text(old), text(new), body.new_parent);
            format!("rename {old} in {} to {new} in {to}: inode {ino}", dir.0)
        }
        Op::Write { offset, len, .. } => format!("write inode {ino}: {len} bytes at {offset}"),
        Op::Steal { offset, blocks, .. } => {
            format!(
                "steal for inode {ino}: {} at {offset}",
                count((*blocks).into(), "block")
            )
        }
        Op::Truncate { size, .. } => format!("truncate inode {ino} to {size}"),
        Op::SetAttr { body, .. } => format!("set attributes of inode {ino}: {:#x}", body.valid),
        Op::SetXattr { name, value, .. } => {
            let bytes = value.len();
            format!("set xattr {} of inode {ino}: {bytes} bytes", text(name))
        }
        Op::RemoveXattr { name, .. } => format!("remove xattr {} of inode {ino}", text(name)),
        Op::Fallocate {
            offset,
            bytes,
            mode,
            ..
        } => format!("fallocate inode {ino}: {bytes} bytes at {offset}, mode {mode}"),
        Op::Free { .. } => format!("free inode {ino}"),
    }
}
