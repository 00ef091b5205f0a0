//! `shale mkfs`: makes a volume.

use crate::commands::device::divided;
use crate::failure::{Failure, Result};
use crate::terminal::{note, say};
use shale_format::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN};
use shale_format::{Durability, TierId};
use shale_persist::Domain;
use shale_pool::volume_file::arguments::{parse_device, parse_model, parse_nvm};
use shale_pool::volume_file::{DeviceFile, NvmEntry};
use shale_pool::{LowerTiers, Made, MakeOptions, StagedSizes, make_volume};
use shale_sys::SystemClock;
use shale_sys::size;
use shale_verb::user::parse_user;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  shale mkfs VOLUME.toml --ssd /dev/nvme0n1p3:200G
  shale mkfs VOLUME.toml --ssd /srv/ssd.img:20G --hdd /dev/sdb:4T

  What fsync promises, and how much memory a mount takes:
  shale mkfs VOLUME.toml --ssd /dev/nvme0n1p3:200G --durability strict
  shale mkfs VOLUME.toml --ssd /dev/nvme0n1p3:200G --memory 2G

  NVM on a DAX file system, and emulated by memory:
  shale mkfs VOLUME.toml --nvm /mnt/pmem/shale:16G
  shale mkfs VOLUME.toml --nvm /dev/shm/shale:1G

  Three tiers, of devices or image files:
  shale mkfs VOLUME.toml --nvm /mnt/pmem/shale:16G \\
      --ssd /dev/nvme0n1:512G --hdd /srv/hdd.img:4T

  As slow as NVM, an SSD and a disk, for measurements:
  shale mkfs V.toml --nvm /dev/shm/v:1G --model nvm=hinfs
  shale mkfs V.toml --nvm /dev/shm/v:1G --ssd /tmp/s.img:4G \\
      --hdd /tmp/h.img:16G --model ssd=flash --model hdd=disk

  Emulated raw flash; ZNS and SMR devices, which are found to be host-managed:
  shale mkfs VOLUME.toml --nvm /dev/shm/shale:64M \\
      --ssd /srv/flash.img:1G,kind=open-channel
  shale mkfs VOLUME.toml --nvm /mnt/pmem/shale:16G \\
      --ssd /dev/nvme1n1:2T --hdd /dev/sdb:8T

  Two users beside the owner whom shale run serves:
  shale mkfs VOLUME.toml --nvm /mnt/pmem/shale:16G --trust ann --trust 1001

Without --nvm the memory tier, where files are written first, lies in shared memory while the volume is mounted. What is to survive a power \
cut is staged on the first SSD that can be written anywhere, and checkpoints of the memory tier are kept there.

Models: flash answers in 10 µs and reads 2.2, writes 0.9 GB/s; disk seeks for 10 ms where requests do not \
adjoin, and moves 0.1 GB/s (Strata, Table 1). Of NVM: hinfs takes 200 ns for each line of 64 bytes that is written, or NS of 50 to 800, \
and lets so many threads write at a time that 1 GB/s are moved (HiNFS, section 5.1); strata adds 200 ns to each read and has an eighth of a memory of \
62.8 GB/s (Strata, section 5). They are in VOLUME.toml (model = \"disk\"), and can be changed \
there for the next mount.";

/// Arguments of `mkfs`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume file to write; it says where the media are
    #[arg(value_name = "VOLUME.toml")]
    volume: PathBuf,
    /// NVM tier: a directory and its size in bytes (K, M, G, T: powers of 1024) [default: no NVM, and an SSD]
    #[arg(long, value_name = "DIR:SIZE", value_parser = parse_nvm)]
    nvm: Option<NvmEntry>,
    /// Without NVM: bytes of shared memory that a mount takes for the memory tier [default: a 128th of SSDs and disks, at least 64M, at
    /// most a quarter of the machine's memory and what /dev/shm has free]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "nvm")]
    memory: Option<u64>,
    /// Without NVM: bytes of the staging area on the SSD, 32M to 512M [default: 128M, less on an SSD below 1G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "nvm")]
    staging: Option<u64>,
    /// Flash tier: a block device or an image file, its size, and the size of its zones where the erase block
    /// is known better than the device tells (a multiple of it); may be given several times: the devices are joined. Kinds: conventional,
    /// host-managed (zoned block devices, SMR or ZNS; found without being said, and so are their zones),
    /// open-channel (emulated raw flash in a file, which the volume erases itself). Of the part
    /// to spare nothing comes into use, so that zones are emptier when they are cleaned: 10 of raw flash, else 0
    #[arg(long, value_name = "PATH:SIZE[,zone=SIZE][,kind=KIND][,overprovision=PERCENT]", value_parser = parse_device)]
    ssd: Vec<DeviceFile>,
    /// Disk tier, likewise
    #[arg(long, value_name = "PATH:SIZE[,zone=SIZE][,kind=KIND][,overprovision=PERCENT]", value_parser = parse_device)]
    hdd: Vec<DeviceFile>,
    /// Make a tier as slow as a model of a medium: nvm with strata, hinfs or hinfs-NS, ssd and hdd with flash or disk
    #[arg(long, value_name = "TIER=MODEL", value_parser = parse_model)]
    model: Vec<(TierId, String)>,
    /// When a write is durable: strict (when the call returns), buffered (when fsync returns, or by itself within seconds, with NVM
    /// within a minute), ordered (by itself, within a second, in the order of the calls; fsync and O_SYNC do not wait). With buffered,
    /// chattr +S makes a file or a tree strict [default: strict with NVM, buffered without]
    #[arg(long, value_name = "POLICY")]
    durability: Option<String>,
    /// Size of each client's update log [default: 256M for the mount, 64M for each process under
    /// shale run or with libshale, less on a small volume]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_bytes: Option<u64>,
    /// Name of the volume, for people [default: name of the volume file]
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Let this user's processes map the volume, as its owner's and root's may: under shale run they are
    /// served without system calls. They can READ EVERY BYTE of the volume then, whatever the modes of
    /// files say; they change only what modes let them. USER is a name or a number; may be
    /// given several times [default: nobody]. Later: trusted_uids in VOLUME.toml, for the next mount
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    trust: Vec<u32>,
    /// Destroy a volume that is there, and make one that takes more than there is of memory or of a file system
    #[arg(long)]
    force: bool,
    /// Say what was made as JSON
    #[arg(long)]
    json: bool,
}

/// The devices of a tier, with the model that was asked for.
fn devices(args: &Args, tier: TierId) -> Result<Vec<DeviceFile>> {
    let (name, devices) = match tier {
        TierId::Hdd => ("hdd", &args.hdd),
        _ => ("ssd", &args.ssd),
    };
    let model = args.model.iter().rfind(|(of, _)| *of == tier);
    if let (Some((_, model)), true) = (model, devices.is_empty()) {
        return Err(Failure::usage(format!(
            "--model {name}={model}: the volume has no device there; add --{name}"
        )));
    }
    let modelled = |device: &DeviceFile| DeviceFile {
        model: model.map(|(_, name)| name.clone()),
        ..device.clone()
    };
    Ok(devices.iter().map(modelled).collect())
}

/// NVM, with the model that was asked for.
fn nvm(args: &Args) -> Result<Option<NvmEntry>> {
    let model = args.model.iter().rfind(|(of, _)| *of == TierId::Nvm);
    let model = model.map(|(_, name)| name.clone());
    match (&args.nvm, model) {
        (None, Some(model)) => Err(Failure::usage(format!(
            "--model nvm={model}: the volume has no NVM; add --nvm"
        ))),
        (nvm, model) => Ok(nvm.clone().map(|nvm| NvmEntry { model, ..nvm })),
    }
}

/// Makes a volume.
pub fn run(args: &Args) -> Result<()> {
    if args.nvm.is_none() && args.ssd.is_empty() {
        return Err(Failure::usage("a volume needs NVM or an SSD").advise(format!(
            "without NVM: shale mkfs {0} --ssd /dev/nvme0n1p3:200G; with it: shale mkfs {0} --nvm /mnt/pmem/shale:16G",
            args.volume.display()
        )));
    }
    let options = MakeOptions {
        file: args.volume.clone(),
        name: args.label.clone().unwrap_or_else(|| {
            let stem = args.volume.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        }),
        nvm: nvm(args)?,
        staged: StagedSizes {
            memory_bytes: args.memory,
            staging_bytes: args.staging,
        },
        lower: LowerTiers {
            ssd: devices(args, TierId::Ssd)?,
            hdd: devices(args, TierId::Hdd)?,
        },
        log_bytes: log_bytes(args)?,
        durability: durability(args.durability.as_deref(), args.nvm.is_some())?,
        owner_uid: rustix::process::geteuid().as_raw(),
        owner_gid: rustix::process::getegid().as_raw(),
        root_mode: 0o755,
        trusted_uids: args.trust.clone(),
        force: args.force,
    };
    let made = make_volume(&options, &SystemClock::new()).map_err(Failure::of)?;
    if args.json {
        say!("{}", json(args, &made));
    } else {
        print(args, &made);
    }
    if made.domain == Domain::Emulated && !made.host.is_memory {
        let (dir, kind) = (made.file.nvm_dir().display(), &made.host.kind);
        note!(
            "{dir}: it lies on {kind} without DAX, which is no NVM: a power cut loses the volume, or leaves it damaged"
        );
    }
    Ok(())
}

/// The policy; `has_nvm`: of a volume with NVM.
fn durability(word: Option<&str>, has_nvm: bool) -> Result<Durability> {
    let default = match has_nvm {
        true => Durability::Strict,
        false => Durability::Buffered,
    };
    let policy = word.map_or(Ok(default), str::parse);
    policy.map_err(|why: String| Failure::usage(format!("--durability: {why}")))
}

/// The log's bytes; 0: as the size of the volume has it.
fn log_bytes(args: &Args) -> Result<u64> {
    match args.log_bytes {
        Some(bytes) if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) => {
            Err(Failure::usage(format!(
                "--log-bytes: {bytes} is not between {} and {}",
                size::show(LOG_BYTES_MIN),
                size::show(LOG_BYTES_MAX)
            )))
        }
        said => Ok(said.unwrap_or(0)),
    }
}

/// What a fence is worth there, in words. `kind`: the file system of the NVM directory.
pub fn explain(persistence: &str, kind: &str, is_memory: bool) -> String {
    match (persistence, is_memory) {
        ("dax", _) => "DAX: survives a power cut".to_owned(),
        (_, true) => "emulated by memory: survives every process, not a power cut".to_owned(),
        _ => format!(
            "NOT NVM: files of {kind} without DAX survive every process, and a power cut LOSES the volume"
        ),
    }
}

fn power_cut(made: &Made) -> &'static str {
    let policy = made.file.durability.parse().unwrap_or_default();
    made.domain.lost_by_power_cut(made.host.is_memory, policy)
}

fn json(args: &Args, made: &Made) -> serde_json::Value {
    let staged = made.file.staged.as_ref().map(|staged| {
        serde_json::json!({
            "memory_dir": staged.memory_dir,
            "memory_bytes": staged.memory_bytes,
            "device": staged.device,
            "at_byte": staged.at_byte,
            "staging_bytes": staged.staging_bytes,
            "area_bytes": made.area_bytes,
        })
    });
    serde_json::json!({
        "volume": args.volume,
        "name": made.file.name,
        "uuid": made.file.uuid,
        "durability": made.file.durability,
        "power_cut": power_cut(made),
        "staged": staged,
        "nvm_dir": made.file.nvm_dir(),
        "nvm_bytes": made.file.nvm_bytes(),
        "segments": made.segments,
        "ssd": made.file.ssd,
        "hdd": made.file.hdd,
        "divided": {"ssd": made.divided[0], "hdd": made.divided[1]},
        "log_bytes": made.file.log_bytes,
        "client_log_bytes": made.file.client_log_bytes.unwrap_or(made.file.log_bytes),
        "trusted_uids": made.file.trusted_uids,
        "persistence": made.domain.name(),
        "nvm_host": made.host,
        "needs": made.need,
        "needs_bytes": made.need.bytes(),
        "huge_pages": made.huge_pages,
    })
}

/// The NVM tier, or what a volume without NVM has in its place.
fn print_first_tier(made: &Made) {
    let (bytes, dir) = (
        size::show(made.file.nvm_bytes()),
        made.file.nvm_dir().display(),
    );
    let Some(staged) = &made.file.staged else {
        say!(
            "  nvm         {bytes} in {dir} ({} segments)",
            made.segments
        );
        return;
    };
    say!("  memory      {bytes} in {dir} while it is mounted");
    say!(
        "  area        {} of {} from byte {}: a staging area of {}, and the memory tier twice",
        size::show(made.area_bytes),
        staged.device.display(),
        staged.at_byte,
        size::show(staged.staging_bytes)
    );
}

fn as_slow_as(model: Option<&str>) -> String {
    model.map_or(String::new(), |name| format!(", as slow as model '{name}'"))
}

fn print(args: &Args, made: &Made) {
    say!(
        "{}: volume '{}' made",
        args.volume.display(),
        made.file.name
    );
    say!("  uuid        {}", made.file.uuid);
    say!(
        "  durability  {}: {}",
        made.file.durability,
        power_cut(made)
    );
    print_first_tier(made);
    let tiers = [("ssd", &made.file.ssd), ("hdd", &made.file.hdd)];
    for ((tier, devices), how) in tiers.into_iter().zip(&made.divided) {
        for (device, how) in devices.iter().zip(how) {
            let model = device.model.as_deref();
            say!(
                "  {tier}         {} in {} ({}{})",
                size::show(device.size_bytes),
                device.path.display(),
                device.kind.name(),
                as_slow_as(model)
            );
            say!("              {}", divided(how));
        }
    }
    match made.file.is_staged() {
        true => say!(
            "  takes       {} of shared memory while it is mounted",
            made.need.text()
        ),
        false => {
            say!("  takes       {}", made.need.text());
            let (kind, is_memory) = (&made.host.kind, made.host.is_memory);
            let is = explain(made.domain.name(), kind, is_memory);
            let model = made.file.nvm_model().map(|(name, _)| name);
            say!("  nvm is      {is}{}", as_slow_as(model));
        }
    }
    let policy = made.file.durability.parse::<Durability>();
    if policy.is_ok_and(Durability::has_buffer) && !made.file.is_staged() {
        say!(
            "  buffer      the same logs once more in memory, in {} while it is mounted",
            made.file.buffer_dir().display()
        );
    }
    let (mount, other) = (made.file.log_bytes, made.file.client_log_bytes);
    match other.filter(|&other| other != mount) {
        None => say!("  update log  {} for each client", size::show(mount)),
        Some(other) => say!(
            "  update log  {} for the mount, {} for each program under shale run",
            size::show(mount),
            size::show(other)
        ),
    }
    for uid in &made.file.trusted_uids {
        say!("  trusted     user {uid}: may read every byte of the volume");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        let policy = |word: &str, has_nvm| durability(Some(word), has_nvm);
        assert_eq!(durability(None, true).unwrap(), Durability::Strict);
        assert_eq!(durability(None, false).unwrap(), Durability::Buffered);
        for (word, expected) in [
            ("strict", Durability::Strict),
            ("buffered", Durability::Buffered),
            ("ordered", Durability::Ordered),
        ] {
            for has_nvm in [false, true] {
                assert_eq!(policy(word, has_nvm).unwrap(), expected);
            }
        }
        for has_nvm in [false, true] {
            let unknown = policy("lazy", has_nvm).unwrap_err();
            assert!(unknown.to_string().contains("lazy"));
        }
    }

    #[test]
    fn what_a_volume_needs_is_said_with_an_example() {
        let args = |words: &[&str]| {
            #[derive(clap::Parser)]
            struct Mkfs {
                #[command(flatten)]
                args: Args,
            }
            let all = ["mkfs", "V.toml"].iter().chain(words);
            <Mkfs as clap::Parser>::try_parse_from(all).map(|m| m.args)
        };
        let refused = run(&args(&[]).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("--ssd /dev/nvme0n1p3:200G"), "{refused}");
        let sizes = args(&["--ssd", "/s:1G", "--memory", "64M", "--staging", "32M"]).unwrap();
        assert_eq!(
            (sizes.memory, sizes.staging),
            (Some(64 << 20), Some(32 << 20))
        );
        for option in ["--memory", "--staging"] {
            let both = args(&["--nvm", "/n:1G", option, "64M"]).unwrap_err();
            assert!(both.to_string().contains("cannot be used with"), "{both}");
        }
    }
}
