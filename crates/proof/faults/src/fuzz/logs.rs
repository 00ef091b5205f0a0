//! The log of a client of another user, which its daemon left: any records, with positions and
//! checksums that fit, recovered. Whatever is refused, the volume is whole.
//!
//! A record is: kind, flags, bytes of the body, bytes behind it (two), inode and offset (eight
//! each), space (two); then the body and what is behind it.

use std::sync::Arc;

use parking_lot::Mutex;
use shale_daemon::recover_only;
use shale_format::limits::{BLOCK_BYTES, RECORD_BYTES_MAX};
use shale_format::log::{LogHeader, RING_AT, file_name};
use shale_format::record::{RecordHeader, record_bytes};
use shale_libfs::{Caller, Recent, Session, SessionOptions};
use shale_proto::InProcess;
use zerocopy::{FromZeros, IntoBytes};

use super::images::findings;
use super::input::Input;
use super::users_volume::{USER, dir, users_volume};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::Snapshot;
use shale_powercut::volume::base::Base;
use shale_powercut::volume::place::Place;
use shale_powercut::volume::sessions::{attach, clock, once_free};

/// Flag of the input: the length is another eight bytes of it.
const OWN_LENGTH: u8 = 1 << 7;
const RECORDS_MAX: usize = 64;
const TIME_NS: i64 = 1_700_000_000_000_000_000;

/// A volume on which a client has just attached when its daemon was killed.
struct Stage {
    base: Base,
    place: Place,
    /// What is in front of the ring.
    head: Vec<u8>,
    salt: u64,
}

/// The same, with the client still there.
struct Left {
    base: Arc<Base>,
    place: Place,
    daemon: Arc<shale_daemon::Daemon>,
    session: Arc<Session>,
}

impl Left {
    fn new() -> Result<Left> {
        let dir = &dir();
        let base = users_volume(dir)?;
        let place = Place::new(dir, &base)?;
        let config = || shale_daemon::Daemon::start(place.config(false, 0), clock());
        let daemon = once_free(config)?;
        let failed = |what| BenchError::call("libfs", what);
        let root = attach(&daemon, &place.maps(0), false)?;
        let tree = root.tree(Caller::default());
        let names = Snapshot::of(&mut base.model.clone()).map_err(failed("walk the model"))?;
        for path in names.paths.keys() {
            let path: &[u8] = if path.is_empty() { b"." } else { path };
            tree.chown(path, Some(USER), Some(USER), false)
                .map_err(|e| failed("chown")(e))?;
        }
        drop(tree);
        root.detach().map_err(|e| failed("detach")(e))?;
        drop(root);
        let channel = Arc::new(InProcess(daemon.attach_as(USER, &[USER])));
        let options = SessionOptions {
            log_all: true,
            ..SessionOptions::default()
        };
        let maps = place.maps(0);
        let session = Session::attach_mapped(channel, clock(), Recent::default(), options, &maps)
            .map_err(|e| failed("attach")(e))?;
        Ok(Left {
            base,
            place,
            daemon,
            session,
        })
    }

    /// The user's paths.
    #[cfg(test)]
    fn side(&self) -> shale_model::Shale {
        shale_model::Shale::new(self.session.tree(Caller {
            uid: USER,
            gid: USER,
            ..Caller::default()
        }))
    }

    /// The client's log.
    fn log(&self) -> Result<Vec<u8>> {
        let path = self.place.nvm_dir().join(file_name(0));
        std::fs::read(&path).map_err(BenchError::file(path, "read"))
    }

    fn kill(self) -> Result<Stage> {
        let log = self.log()?;
        self.daemon.abandon();
        drop(self.session);
        let header = LogHeader::decode(&log).map_err(|e| BenchError::Program {
            program: "the daemon".to_owned(),
            found: e.to_string(),
        })?;
        let mut segment = vec![0; self.base.segment.len()];
        self.place.segment.load(0, &mut segment);
        let base = Base {
            logs: Vec::new(),
            id: 0,
            segment,
            model: self.base.model.clone(),
            tree: self.base.tree.clone(),
            empty_blocks: self.base.empty_blocks,
            below: None,
            policy: shale_format::Durability::Strict,
            flags: std::collections::BTreeMap::new(),
            full: false,
        };
        Ok(Stage {
            place: Place::new(&dir(), &base)?,
            base,
            head: log[..RING_AT].to_vec(),
            salt: header.salt,
        })
    }
}

impl Stage {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        for page in at / BLOCK_BYTES..=(at + bytes.len() - 1) / BLOCK_BYTES {
            self.place.touch(1, page * BLOCK_BYTES);
        }
        self.place.map(1).store(at, bytes);
    }

    fn recover(&mut self, data: &[u8]) -> Result<()> {
        let ring = ring_of(data, self.salt);
        let head = self.head.clone();
        self.put(0, &head);
        self.put(RING_AT, &ring);
        self.place.link_logs(1)?;
        let recovered = once_free(|| recover_only(&self.place.config(false, 0), &*clock()))?;
        assert_eq!(recovered.1.logs_left, 0, "{:?}", recovered.1.problems);
        drop(recovered);
        assert_eq!(findings(&self.place), Vec::<String>::new());
        self.place.reset(&self.base)
    }
}

/// The records of an input, one after the other.
fn ring_of(data: &[u8], salt: u64) -> Vec<u8> {
    let mut input = Input::new(data);
    let mut ring = Vec::new();
    for _ in 0..RECORDS_MAX {
        if input.is_over() {
            break;
        }
        let (kind, flags) = (input.number(1) as u8, input.number(1) as u8);
        let (body, behind) = (input.number(1) as usize, input.number(2) as usize);
        let mut header = RecordHeader::new_zeroed();
        header.kind = kind;
        header.flags = flags & !OWN_LENGTH;
        header.body_bytes = body as u16;
        header.payload_bytes = behind as u32;
        header.pos = ring.len() as u64;
        (header.ino, header.offset) = (input.number(8), input.number(8));
        header.reserve = input.number(2) as u32;
        header.time_ns = TIME_NS;
        let whole = record_bytes(body, behind);
        header.bytes = match flags & OWN_LENGTH {
            0 => whole as u32,
            _ => input.number(4) as u32,
        };
        let (mut body_bytes, mut bytes) = (vec![0; body], vec![0; behind]);
        for into in [&mut body_bytes, &mut bytes] {
            let found = input.take(into.len());
            into[..found.len()].copy_from_slice(found);
        }
        header.crc = header.checksum(salt, &body_bytes, &bytes);
        let at = ring.len();
        ring.extend_from_slice(header.as_bytes());
        ring.extend_from_slice(&body_bytes);
        ring.extend_from_slice(&bytes);
        let step = (header.bytes as usize).clamp(RecordHeader::BYTES, RECORD_BYTES_MAX);
        ring.resize(at + whole.max(step), 0);
    }
    ring
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

/// Recovers a log with these records.
///
/// # Panics
/// If recovery does, or the volume is not whole afterwards.
pub fn run(data: &[u8]) {
    let mut stage = STAGE.lock();
    let new = || Left::new().and_then(Left::kill);
    let stage = stage.get_or_insert_with(|| new().expect("a volume in /dev/shm"));
    stage.recover(data).expect("recovery");
}

/// Removes the volume.
pub fn finish() {
    *STAGE.lock() = None;
}

/// The inputs that are the logs of a few workloads.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(String, Vec<u8>)> {
    use shale_format::LogPos;
    use shale_model::Side;
    use shale_model::workload::alphabet::{OPEN, act_at, alphabet};
    use shale_oplog::Scan;

    struct File(Vec<u8>);
    impl shale_oplog::LogReader for File {
        fn bytes(&self) -> usize {
            self.0.len()
        }
        fn load(&self, at: usize, into: &mut [u8]) -> bool {
            let found = self.0.get(at..at + into.len());
            found.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    let items = alphabet().len();
    let seed = |part: usize| {
        let left = Left::new().unwrap();
        let mut side = left.side();
        for (slot, (path, flags)) in OPEN.into_iter().enumerate() {
            let act = shale_model::Act::Open(slot, path.as_bytes().to_vec(), flags, 0);
            side.act(&act).unwrap();
        }
        for item in (part..items).step_by(9) {
            // What is refused leaves no record.
            let _ = side.act(&act_at(item, part));
        }
        drop(side);
        let log = left.log().unwrap();
        let header = LogHeader::decode(&log).unwrap();
        let log = File(log);
        let mut bytes = Vec::new();
        for record in Scan::new(&log, header.salt, header.ring_bytes, LogPos(0)) {
            let h = &record.header;
            if h.payload_bytes > 600 {
                continue;
            }
            bytes.extend([h.kind, h.flags, h.body_bytes as u8]);
            bytes.extend((h.payload_bytes as u16).to_le_bytes());
            bytes.extend(h.ino.to_le_bytes());
            bytes.extend(h.offset.to_le_bytes());
            bytes.extend((h.reserve as u16).to_le_bytes());
            bytes.extend(record.body());
            bytes.extend(record.payload());
        }
        left.daemon.abandon();
        (format!("workload-{part}"), bytes)
    };
    (0..9).map(seed).collect()
}
