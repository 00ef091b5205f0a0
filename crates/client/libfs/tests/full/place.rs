//! A small volume whose daemon digests only when it has to, and is killed at will.

use shale_check::{CheckOptions, check_volume_dir};
use shale_daemon::{Daemon, DaemonConfig};
use shale_format::log::file_name as log_file_name;
use shale_format::{Durability, TierId};
use shale_libfs::{Caller, Session, SessionOptions};
use shale_pool::DeviceKind;
use shale_pool::MakeOptions;
use shale_pool::VolumeFile;
use shale_pool::make_volume;
use shale_pool::volume_file::DeviceFile;
use shale_proto::InProcess;
use shale_sys::SystemClock;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Whose calls these are: root's.
pub const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    pid: 0,
    umask: 0,
    request: 0,
};

/// A volume in memory that goes when it is dropped.
pub struct Place {
    daemon: Option<Arc<Daemon>>,
    file: PathBuf,
    clock: Arc<SystemClock>,
    dir: TempDir,
}

impl Place {
    pub fn new(mib: u64) -> Self {
        let dir = TempDir::with_prefix_in("shale-full-", "/dev/shm").expect("a directory");
        let clock = Arc::new(SystemClock::new());
        let options = MakeOptions {
            file: dir.path().join("VOLUME.toml"),
            name: "full".into(),
            nvm: Some(shale_pool::volume_file::NvmEntry::new(
                dir.path().join("nvm"),
                mib << 20,
            )),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: 16 << 20,
            durability: Durability::Strict,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: Vec::new(),
            force: false,
        };
        make_volume(&options, &*clock).expect("a volume");
        let mut place = Self {
            daemon: None,
            file: options.file,
            clock,
            dir,
        };
        place.start();
        place
    }

    /// Starts a daemon as a fresh mount does.
    pub fn start(&mut self) {
        let volume = VolumeFile::load(&self.file).expect("a volume file");
        let config = DaemonConfig {
            digest_threads: 2,
            digest_at_percent: 100,
            volume_path: Some(self.file.clone()),
            ..DaemonConfig::new(volume)
        };
        self.daemon = Some(Daemon::start(config, self.clock.clone()).expect("a daemon"));
    }

    pub fn daemon(&self) -> &Arc<Daemon> {
        self.daemon.as_ref().expect("the daemon runs")
    }

    /// Makes flash a tier of the volume, which is served; `false`: no blocks in a row for its tables.
    pub fn add_flash(&self, mib: u64) -> bool {
        self.add(TierId::Ssd, mib)
    }

    /// The same with an image of `mib` MiB that is flash or a disk.
    pub fn add(&self, tier: TierId, mib: u64) -> bool {
        let device = DeviceFile {
            path: self.dir.path().join("flash.img"),
            size_bytes: mib << 20,
            zone_bytes: None,
            model: None,
            kind: DeviceKind::Conventional,
            overprovision_percent: None,
        };
        let added = self.daemon().add_device(tier, &device, false);
        match added {
            Ok(_) => true,
            Err(e) if e.to_string().contains("in a row") => false,
            Err(e) => panic!("{e}"),
        }
    }

    /// Bytes that this process has in its page tables of mappings of a log in NVM: the daemon's and the client's.
    pub fn log_bytes_mapped(&self, slot: u32) -> u64 {
        let name = self.dir.path().join("nvm").join(log_file_name(slot));
        let name = name.to_str().expect("a name in ASCII");
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("mappings");
        let (mut of_log, mut kib) = (false, 0);
        for line in maps.lines() {
            // A mapping begins with its addresses.
            if line
                .split(' ')
                .next()
                .is_some_and(|word| word.contains('-'))
            {
                of_log = line.ends_with(name);
            }
            if let Some(rest) = line.strip_prefix("Rss:").filter(|_| of_log) {
                let number = rest.trim().trim_end_matches(" kB");
                kib += number.parse::<u64>().expect("a number");
            }
        }
        kib << 10
    }

    /// Where a block of the only flash device is in its image.
    pub fn flash_byte(&self, block: u64) -> u64 {
        let view = self.daemon().volume().view();
        let devices = view.device_table().expect("a device table");
        devices.of(0)[0].byte_of(block)
    }

    /// Changes a bit of the flash; no daemon may run.
    pub fn flip(&self, byte: u64) {
        let path = self.dir.path().join("flash.img");
        let mut how = std::fs::File::options();
        let image = how.read(true).write(true).open(path).expect("flash");
        let mut bits = [0];
        image.read_exact_at(&mut bits, byte).expect("a read");
        image.write_all_at(&[bits[0] ^ 1], byte).expect("a write");
    }

    /// Ends the daemon as a kill would.
    pub fn kill(&mut self) {
        self.daemon.take().expect("the daemon runs").abandon();
    }

    /// Ends the daemon as an unmount does.
    pub fn stop(&mut self) {
        let daemon = self.daemon.take().expect("the daemon runs");
        daemon.shutdown().expect("a clean stop");
    }

    /// Checks every invariant of the volume; no daemon may run.
    #[track_caller]
    pub fn check(&self) {
        let nvm = self.dir.path().join("nvm");
        let options = CheckOptions::of(&VolumeFile::load(&self.file).expect("a volume file"));
        let report = check_volume_dir(&nvm, &options, &mut |_| {}).expect("fsck");
        assert!(report.clean(), "{:#?}", report.findings);
        let totals = &report.totals;
        assert_eq!((totals.logs, totals.blocks_leaked), (0, 0), "{totals:?}");
    }

    /// A client as the kernel's front end is one, or as a program is one.
    pub fn attach(&self, kernel_references: bool) -> Arc<Session> {
        self.attach_with(SessionOptions {
            kernel_references,
            ..SessionOptions::default()
        })
    }

    pub fn attach_with(&self, options: SessionOptions) -> Arc<Session> {
        // As a client of another process is: each record must keep to what it reserved.
        let channel = Arc::new(InProcess(self.daemon().attach_as(0, &[0])));
        Session::attach(channel, self.clock.clone(), Default::default(), options)
            .expect("a session")
    }
}
