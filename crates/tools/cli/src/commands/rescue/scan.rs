//! `shale scan`: finds volumes by what is on devices, whether their volume files are there or not.

use crate::failure::{Failure, Result};
use crate::mounts::known_volumes::KnownVolumes;
use crate::terminal::{Waiting, note, print_json, say};
use serde::Serialize;
use shale_pool::scan::{FoundVolume, Member, MemberState, Scan, Unreadable};
use shale_pool::volume_file::uuid_text;
use shale_status::fields::count;
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale scan
  shale scan --json
  shale scan /srv/images /mnt/pmem/shale /dev/sdb

Without PATH it looks at the block devices of the machine and where the volume files in /etc/shale say that media are. Nothing is written, \
and volumes may be mounted meanwhile. A volume file that was lost is written again by shale import.

Exit code 0: a volume was found; 1: none was, or a PATH cannot be read.";

/// Arguments of `scan`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, devices, NVM directories, or directories of which each entry is looked at
    #[arg(value_name = "PATH")]
    places: Vec<PathBuf>,
    /// All that was found as JSON
    #[arg(long)]
    json: bool,
}

/// A volume, as `scan --json` has it.
#[derive(Serialize)]
struct Found {
    uuid: String,
    /// From a volume file; null: none is known.
    name: Option<String>,
    /// Null: its memory tier was not found.
    durability: Option<&'static str>,
    /// Null: it is not known.
    has_nvm: Option<bool>,
    complete: bool,
    members: Vec<Member>,
    mounted_on: Vec<PathBuf>,
    volume_files: Vec<PathBuf>,
    trouble: Vec<String>,
}

/// Scans.
pub fn run(args: &Args) -> Result<()> {
    let known = KnownVolumes::load();
    let scan = {
        let _waiting = Waiting::start("reading devices");
        known.scan(&args.places, None)
    };
    let volumes: Vec<Found> = scan.volumes.iter().map(|v| Found::of(v, &known)).collect();
    if args.json {
        let unreadable: Vec<_> = { scan.unreadable.iter() }
            .map(|u| serde_json::json!({"path": u.path, "why": u.why, "in_use": u.in_use}))
            .collect();
        let answer = serde_json::json!({"volumes": volumes, "unreadable": unreadable});
        print_json(&answer)?;
    } else {
        volumes.iter().for_each(Found::print);
        tell_unreadable(&scan);
    }
    match (unread(&scan, args), volumes.is_empty()) {
        (Some(one), _) => Err(Failure::new(one.why.clone())),
        (None, true) => Err(Failure::new("no volume was found")
            .advise("give the directories, images and devices that it may be on")),
        (None, false) => Ok(()),
    }
}

/// A place that was given and cannot be read.
fn unread<'s>(scan: &'s Scan, args: &Args) -> Option<&'s Unreadable> {
    let given = |u: &&Unreadable| args.places.contains(&u.path) && !u.in_use;
    scan.unreadable.iter().find(given)
}

/// Says of what nothing is known.
pub fn tell_unreadable(scan: &Scan) {
    let denied = scan.unreadable.iter().filter(|u| u.denied).count();
    if denied > 0 {
        let advice = match rustix::process::geteuid().is_root() {
            true => "",
            false => ": run it as root",
        };
        note!("{} may not be read{advice}", count(denied as u64, "device"));
    }
    let named = |u: &&Unreadable| !u.denied && !u.is_member;
    for one in scan.unreadable.iter().filter(named) {
        note!("{}", one.why);
    }
}

impl Found {
    fn of(volume: &FoundVolume, known: &KnownVolumes) -> Self {
        let head = volume.head();
        Self {
            uuid: uuid_text(&volume.uuid),
            name: { known.files_of(&volume.uuid) }
                .next()
                .map(|(_, file)| file.name.clone()),
            durability: head.map(|head| head.superblock.policy().name()),
            has_nvm: head.map(|_| !volume.nvm.is_empty()),
            complete: volume.is_complete(),
            members: volume.members(),
            mounted_on: known.mounted_on(volume),
            volume_files: { known.files_of(&volume.uuid) }
                .map(|(path, _)| path.to_path_buf())
                .collect(),
            trouble: volume.trouble.clone(),
        }
    }

    fn print(&self) {
        let name = { self.name.as_ref() }.map_or(String::new(), |name| format!(" '{name}'"));
        let nvm = match self.has_nvm {
            Some(true) => ", with NVM",
            Some(false) => ", without NVM",
            None => "",
        };
        let policy = self
            .durability
            .map_or(String::new(), |d| format!("{d}{nvm}, "));
        let whole = if self.complete {
            "complete"
        } else {
            "NOT COMPLETE"
        };
        let mounted = match &self.mounted_on[..] {
            [] => "not mounted".to_owned(),
            places => {
                let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
                format!("mounted on {}", places.join(", "))
            }
        };
        say!("volume {}{name}: {policy}{whole}, {mounted}", self.uuid);
        self.members.iter().for_each(print_member);
        for file in &self.volume_files {
            say!("  volume file  {}", file.display());
        }
        for trouble in &self.trouble {
            say!("  trouble      {trouble}");
        }
    }
}

fn print_member(member: &Member) {
    let place = format!("{} {}", member.tier, member.place);
    let mut words: Vec<String> = Vec::new();
    if member.bytes > 0 {
        words.push(size::show(member.bytes));
    }
    match member.state {
        MemberState::Present | MemberState::Stranger => {}
        MemberState::Missing if !member.paths.is_empty() => words.push("NOT WHOLE".to_owned()),
        MemberState::Missing => words.push(format!("MISSING: {}", member.name())),
        MemberState::Copies => words.push("COPIES".to_owned()),
    }
    let paths = member.paths.iter().map(|path| path.display().to_string());
    words.extend(Some(paths.collect::<Vec<_>>().join(" and ")).filter(|text| !text.is_empty()));
    words.extend(member.note.clone());
    say!("  {place:<12} {}", words.join("  "));
}
