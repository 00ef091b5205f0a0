//! What a client says: messages one after the other, on a connection of its own, to a daemon that
//! has served others before. Each is one byte with its length and as many bytes.

use std::sync::Arc;

use parking_lot::Mutex;
use shale_daemon::Daemon;
use shale_proto::Request;
use shale_proto::message::decode;

use super::input::Input;
use super::users_volume::{USER, dir, users_volume};
use shale_bench::Result;
use shale_powercut::recovery::check::fsck;
use shale_powercut::volume::base::Base;
use shale_powercut::volume::place::Place;
use shale_powercut::volume::sessions::{clock, once_free};

/// Messages on one connection.
const MESSAGES_MAX: usize = 32;
/// After so many connections the daemon stops and the volume is checked.
const CONNECTIONS: u32 = 200;

struct Stage {
    base: Arc<Base>,
    place: Place,
    daemon: Arc<Daemon>,
    connections: u32,
}

impl Stage {
    fn new() -> Result<Stage> {
        let dir = &dir();
        let base = users_volume(dir)?;
        let place = Place::new(dir, &base)?;
        let daemon = once_free(|| Daemon::start(place.config(false, 0), clock()))?;
        Ok(Stage {
            base,
            place,
            daemon,
            connections: 0,
        })
    }

    /// Stops the daemon, checks what it leaves, and restarts.
    fn renew(&mut self) -> Result<()> {
        self.daemon.shutdown()?;
        assert_eq!(fsck(&self.place), Ok(()));
        self.place.reset(&self.base)?;
        self.daemon = once_free(|| Daemon::start(self.place.config(false, 0), clock()))?;
        self.connections = 0;
        Ok(())
    }
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

/// Says it all.
///
/// # Panics
/// If the daemon does, or the volume is not whole afterwards.
pub fn run(data: &[u8]) {
    let mut stage = STAGE.lock();
    let stage = stage.get_or_insert_with(|| Stage::new().expect("a volume in /dev/shm"));
    let client = stage.daemon.attach_as(USER, &[USER]);
    let mut input = Input::new(data);
    for _ in 0..MESSAGES_MAX {
        if input.is_over() {
            break;
        }
        let bytes = input.number(1) as usize;
        if let Ok(request) = decode::<Request>(input.take(bytes)) {
            drop(client.handle(request));
        }
    }
    drop(client);
    stage.connections += 1;
    if stage.connections == CONNECTIONS {
        stage.renew().expect("the daemon stops and starts");
    }
}

/// Has the volume checked now.
///
/// # Panics
/// If it is not whole.
pub fn check() {
    if let Some(stage) = STAGE.lock().as_mut() {
        stage.renew().expect("the daemon stops and starts");
    }
}

/// Removes the volume.
pub fn finish() {
    *STAGE.lock() = None;
}

#[cfg(test)]
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use shale_proto::{LeaseMode, LeaseRequestMode};
    let attach = Request::Attach {
        version: shale_proto::message::PROTO_VERSION,
        log_bytes: 0,
        durability: 0,
    };
    let lease = |ino, mode| Request::Lease {
        ino,
        mode,
        request_mode: LeaseRequestMode::Revoke,
    };
    let (parent, runs) = (1, 2);
    let (wanted, least) = (1 << 20, 4096);
    let usual = vec![
        attach.clone(),
        Request::Segments { first: 0 },
        lease(1, LeaseMode::Exclusive),
        Request::GrantInodes { parent, runs },
        Request::GrantBlocks { blocks: 64 },
        Request::Reserve { wanted, least },
        Request::Space,
        Request::Status,
        Request::Digest { upto: 0 },
        Request::ReserveForPage { bytes: 4096 },
        Request::ReturnCredit { bytes: 4096 },
        Request::Unlease { ino: 1 },
        Request::Notify,
        Request::HardenAll,
        Request::Freeze { max_ns: 1_000_000 },
        Request::Thaw,
        Request::Detach,
    ];
    let greedy = vec![
        attach,
        lease(16, LeaseMode::Shared),
        Request::GrantBlocks { blocks: u32::MAX },
        Request::Reserve {
            wanted: u64::MAX,
            least: 0,
        },
        Request::Digest { upto: u64::MAX },
        Request::ReturnBlocks {
            runs: vec![shale_proto::message::BlockRun { addr: 1, blocks: 9 }],
        },
    ];
    let said = |requests: Vec<Request>| {
        let one = |request: &Request| {
            let bytes = shale_proto::message::encode(request).unwrap();
            [&[bytes.len() as u8], &bytes[..]].concat()
        };
        requests.iter().flat_map(one).collect()
    };
    vec![("usual", said(usual)), ("greedy", said(greedy))]
}
