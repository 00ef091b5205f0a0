//! A volume that may be damaged is mounted, walked and written to by a client.
//!
//! Whatever is damaged, calls end, with an error or without; of a volume that `fsck` calls whole
//! they all succeed, and it stays whole.

use shale_daemon::Daemon;
use shale_libfs::OFlags;

use super::images::findings;
use shale_model::{Act, FileAct, Said, Shale, Side};
use shale_powercut::recovery::check::use_it;
use shale_powercut::volume::place::Place;
use shale_powercut::volume::sessions::{attach, clock, once_free, side};

/// Names that are visited: directories may go round in circles.
const NAMES_MAX: usize = 300;
/// Bytes that are read of a file at a time, and how often.
const READ_BYTES: usize = 64 << 10;
const READS: u64 = 4;

/// Serves the volume at `place` and stops. `whole`: nothing may fail.
///
/// # Panics
/// If something does.
pub(super) fn serve(place: &Place, whole: bool) {
    let started = once_free(|| Daemon::start(place.config(false, 0), clock()));
    let daemon = match started {
        Ok(daemon) => daemon,
        Err(e) => return assert!(!whole, "a whole volume is refused: {e}"),
    };
    match attach(&daemon, &place.maps(0), false) {
        Ok(session) => {
            let mut shale = side(&session);
            let failed = walk(&mut shale).or_else(|| use_it(&mut shale).err());
            assert!(!whole || failed.is_none(), "a whole volume: {failed:?}");
            drop(shale);
            let stopped = session.detach().is_ok() && daemon.shutdown().is_ok();
            assert!(!whole || stopped, "a whole volume's daemon does not stop");
        }
        Err(e) => assert!(!whole, "a whole volume lets nobody attach: {e}"),
    }
    daemon.abandon();
    if whole {
        assert_eq!(findings(place), Vec::<String>::new());
    }
}

/// Reads names, attributes and contents; the first thing that fails.
fn walk(side: &mut Shale) -> Option<String> {
    let mut failed = None;
    let mut left = vec![b".".to_vec()];
    let mut names = 0;
    while let Some(dir) = left.pop() {
        let found = match side.act(&Act::List(dir.clone())) {
            Ok(Said::Names(found)) => found,
            other => {
                failed.get_or_insert(format!("list {}: {other:?}", dir.escape_ascii()));
                continue;
            }
        };
        for (name, _) in found {
            names += 1;
            if names > NAMES_MAX {
                return failed;
            }
            let path = [&dir[..], b"/", &name].concat();
            match side.act(&Act::Stat(path.clone(), false)) {
                Ok(Said::Stat(stat)) => match stat.mode & 0o170_000 {
                    0o040_000 => left.push(path),
                    0o100_000 => failed = failed.or_else(|| read(side, &path)),
                    _ => {}
                },
                other => {
                    failed.get_or_insert(format!("stat {}: {other:?}", path.escape_ascii()));
                }
            }
        }
    }
    failed
}

fn read(side: &mut Shale, path: &[u8]) -> Option<String> {
    let shown = |e| Some(format!("read {}: {e}", path.escape_ascii()));
    if let Err(e) = side.act(&Act::Open(0, path.to_vec(), OFlags::RDONLY, 0)) {
        return shown(e);
    }
    let reads = (0..READS).map(|n| FileAct::Read(n * READ_BYTES as u64, READ_BYTES));
    let failed = reads
        .map(|read| side.act(&Act::File(0, read)))
        .find_map(Result::err);
    let _ = side.act(&Act::File(0, FileAct::Close));
    failed.and_then(shown)
}
