//! `shale import`: writes a volume file again, from what is on the volume's devices.

use crate::commands::rescue::scan::tell_unreadable;
use crate::failure::{Failure, Result};
use crate::mounts::known_volumes::KnownVolumes;
use crate::terminal::{Waiting, note, print_json, say};
use shale_pool::VolumeFile;
use shale_pool::scan::{FoundVolume, Member, MemberState, RebuildOptions, Scan};
use shale_pool::volume_file::{parse_uuid, uuid_text};
use shale_sys::size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale import VOLUME.toml
  shale import VOLUME.toml --uuid 6a5c2f0e-7d1b-4c83-9a55-0f6f3f0f8a11
  shale import VOLUME.toml /mnt/pmem/shale /srv/ssd.img /srv/hdd.img
  shale import VOLUME.toml --force            devices have other names now
  shale import VOLUME.toml --degraded         a device is gone

Without PATH it looks where shale scan does. With --force what is on no device is taken from the volume file that is there, if it is of the \
same volume. Else it is as mkfs has it unless it is asked: the name (--label), models, overprovision_percent, trusted_uids, migrate_at_percent, \
buffering, buffer_bytes, buffer_dir, memory_dir, zone_bytes. Devices are not changed.

Exit code 0: the file was written, or was right as it was; 1: nothing was written.";

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume file to write
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// Where its members are: NVM directory, image files, devices, or directories of which each entry is looked at; all of them are given
    /// then
    #[arg(value_name = "PATH")]
    places: Vec<PathBuf>,
    /// Which volume, if several are found
    #[arg(long, value_name = "UUID", value_parser = parse)]
    uuid: Option<[u8; 16]>,
    /// Name of the volume, for people [default: as in the file that is replaced, or the name of the volume file]
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Write it without devices that are missing, for shale mount --degraded
    #[arg(long)]
    degraded: bool,
    /// Replace a volume file that is there
    #[arg(long)]
    force: bool,
    /// Of a volume without NVM, where several places of its SSD look like its staging area: byte at which it begins
    #[arg(long, value_name = "BYTE")]
    area_at: Option<u64>,
    /// What was written as JSON
    #[arg(long)]
    json: bool,
}

fn parse(text: &str) -> std::result::Result<[u8; 16], String> {
    parse_uuid(text).ok_or_else(|| format!("'{text}' is not 32 hexadecimal digits"))
}

/// Imports.
pub fn run(args: &Args) -> Result<()> {
    let path = std::path::absolute(&args.volume);
    let path = path.map_err(Failure::because(args.volume.display()))?;
    let shown = args.volume.display();
    let exists = path.symlink_metadata().is_ok();
    if exists && !args.force {
        return Err(Failure::new(format!("{shown}: it is there already"))
            .advise("--force replaces it, and keeps of it what is on no device"));
    }
    let old = VolumeFile::load(&path).ok();
    let mut known = KnownVolumes::load();
    known.add(path.clone());
    let scan = {
        let _waiting = Waiting::start("reading devices");
        known.scan(&args.places, args.area_at)
    };
    tell_unreadable(&scan);
    let volume = choose(args, &scan, old.as_ref())?;
    let uuid = uuid_text(&volume.uuid);
    let old = old.filter(|old| uuid_text(&old.uuid_bytes()) == uuid);
    let rebuilt = volume.volume_file(&RebuildOptions {
        path: &path,
        name: args.label.clone(),
        old: old.as_ref(),
        degraded: args.degraded,
    });
    let file = rebuilt.map_err(Failure::of)?;
    let changed = old.as_ref() != Some(&file);
    if changed {
        file.save(&path).map_err(Failure::of)?;
    }
    let members = volume.members();
    if args.json {
        return print_json(&serde_json::json!({
            "volume": path,
            "uuid": uuid,
            "name": file.name,
            "written": changed,
            "members": members,
            "file": file,
        }));
    }
    match changed {
        true => say!("{shown}: volume '{}' ({uuid})", file.name),
        false => say!(
            "{shown}: it is right as it is: volume '{}' ({uuid})",
            file.name
        ),
    }
    members.iter().for_each(print_member);
    if old.is_none() {
        note!(
            "{shown}: name '{}', models, trusted users and other settings of mounts are on no device: set them again if they were set",
            file.name
        );
    }
    Ok(())
}

fn print_member(member: &Member) {
    let place = format!("{} {}", member.tier, member.place);
    let at = member.paths.iter().map(|path| path.display().to_string());
    let at = at.collect::<Vec<_>>().join(" and ");
    match member.state {
        MemberState::Missing => note!("without {}", member.name()),
        MemberState::Stranger => note!(
            "{at}: left out: it has the volume's label, and the volume does not have it (any more)"
        ),
        _ => say!("  {place:<8} {}  {at}", size::show(member.bytes)),
    }
}

/// The volume that is meant: which was said, or which the file is of that is replaced, or the only one.
fn choose<'s>(args: &Args, scan: &'s Scan, old: Option<&VolumeFile>) -> Result<&'s FoundVolume> {
    let find = |uuid: [u8; 16]| scan.volumes.iter().find(|volume| volume.uuid == uuid);
    if let Some(uuid) = args.uuid {
        return find(uuid).ok_or_else(|| {
            let text = format!("volume {}: it was not found", uuid_text(&uuid));
            Failure::new(text).advise(found(scan))
        });
    }
    if let Some(volume) = old.and_then(|old| find(old.uuid_bytes())) {
        return Ok(volume);
    }
    match &scan.volumes[..] {
        [one] => Ok(one),
        [] => Err(Failure::new("no volume was found")
            .advise("give the directories, images and devices that it may be on")),
        _ => Err(
            Failure::usage(format!("{}: which volume?", args.volume.display()))
                .advise(format!("--uuid UUID; {}", found(scan))),
        ),
    }
}

fn found(scan: &Scan) -> String {
    let all = scan.volumes.iter().map(|volume| uuid_text(&volume.uuid));
    match all.collect::<Vec<_>>() {
        all if all.is_empty() => "found: none; shale scan shows what there is".to_owned(),
        all => format!("found: {}", all.join(", ")),
    }
}
