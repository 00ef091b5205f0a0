//! Lower tiers that fail, are full, or do not hold what was written.

use std::collections::BTreeSet;

use rustix::io::Errno;
use shale_block::Ask;
use shale_daemon::Daemon;
use shale_daemon::tiering::Speed;
use shale_format::TierId;
use shale_format::limits::BLOCK_BYTES;
use shale_libfs::OFlags;
use shale_proto::Request;

use crate::lower_tiers::tiered_volume::{Failure, Live, NAMES, Tiered, compare, down, make};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, unlink, use_it};
use crate::volume::stage::{Checked, attach_to, close_all, side};
use shale_bench::Result;
use shale_hostile::served::Hand;
use shale_model::{Act, FileAct, Fill, Side};

/// Requests of one kind that are let fail, each by itself, at most.
const REQUESTS: u64 = 400;
/// The reader slot of a call that goes on.
const READER_SLOT: usize = 3;

/// Every failure of a kind of request, one after the other, until fewer come.
fn each(
    trial: &mut Trial<'_>,
    kinds: &[(usize, Ask)],
    mut one: impl FnMut(Failure) -> Result<Checked<u64>>,
) -> Result<Checked<()>> {
    let mut failed = 0;
    let mut open: Vec<(usize, Ask)> = kinds.to_vec();
    'all: for after in 0..REQUESTS {
        for (device, ask) in open.clone() {
            for ever in [false, true] {
                if !trial.next_case() {
                    break 'all;
                }
                let failure = Failure {
                    device,
                    ask,
                    after,
                    ever,
                };
                let happened =
                    kept!(one(failure)?.map_err(|wrong| format!("{failure:?}: {wrong}")));
                failed += happened;
                if happened == 0 {
                    open.retain(|kind| *kind != (device, ask));
                }
            }
        }
    }
    trial.seen = format!("{failed} requests failed");
    match failed {
        0 => Ok(Err("nothing was asked of the devices".to_owned())),
        _ => Ok(Ok(())),
    }
}

/// Paths that lead to a block of a device.
fn paths(live: &[Live], device: Option<usize>) -> BTreeSet<Vec<u8>> {
    let mine = live
        .iter()
        .filter(|l| device.is_none_or(|n| l.device() == n));
    mine.map(|l| l.path.clone()).collect()
}

/// All names of files that have one of `paths`.
pub(crate) fn with_links(t: &Tiered, paths: &BTreeSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let first = |path: &Vec<u8>| match t.tree.paths.get(path) {
        Some(facts) => facts.same_as.clone().unwrap_or(path.clone()),
        None => path.clone(),
    };
    let wanted: BTreeSet<Vec<u8>> = paths.iter().map(first).collect();
    let all = t.tree.paths.keys();
    all.filter(|path| wanted.contains(&first(path)))
        .cloned()
        .collect()
}

/// The n-th read fails, for clients and when zones are emptied.
pub fn reads(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let live = kept!(t.live());
    each(trial, &[(0, Ask::Read), (1, Ask::Read)], |failure| {
        t.restore()?;
        let may_fail = with_links(&t, &paths(&live, Some(failure.device)));
        let look = t.serve(|daemon, shale, _| {
            t.fail(Some(failure));
            let sight = Sight::of(shale, &t.tree);
            let happened = t.fail(None);
            sight.within(&may_fail)?;
            let name = NAMES[failure.device];
            let named = daemon.status_values().bad_blocks;
            if sight.failed.is_empty() != named.is_empty() || named.iter().any(|b| b.tier != name) {
                return Err(format!("{} EIO, named: {named:?}", sight.failed.len()));
            }
            Sight::of(shale, &t.tree)
                .within(&[])
                .map_err(|wrong| format!("when it is read again: {wrong}"))?;
            Ok(happened)
        });
        let asked = kept!(look);
        t.restore()?;
        Ok(moving(&t, failure).map(|moved| asked + moved))
    })
}

/// Something fails while zones are emptied and more comes down; nothing is lost by it.
fn moving(t: &Tiered, failure: Failure) -> Checked<u64> {
    let mut made = Vec::new();
    let happened = t.serve(|daemon, shale, _| {
        for n in 0..4 {
            make(&mut made, shale, &format!("fault-{n}"))?;
        }
        daemon.quiesce();
        t.fail(Some(failure));
        let moved = down(daemon);
        let happened = t.fail(None);
        let name = NAMES[failure.device];
        match &moved {
            Err(e) if !e.contains(name) => return Err(format!("{name} is not named: {e}")),
            _ => {}
        }
        Sight::of(shale, &t.tree)
            .within(&[])
            .map_err(|wrong| format!("after it: {wrong}"))?;
        compare(&made, shale)?;
        down(daemon).map_err(|e| format!("once more: {e}"))?;
        compare(&made, shale)?;
        for (name, _) in &made {
            unlink(shale, name.as_bytes())?;
        }
        Ok(happened)
    })?;
    t.is_whole(&t.tree).map(|()| happened)
}

/// The n-th write, flush or discard fails while blocks move.
pub fn writes(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let asks = [Ask::Write, Ask::Flush, Ask::Discard];
    let kinds: Vec<_> = [0, 1]
        .iter()
        .flat_map(|&n| asks.map(|ask| (n, ask)))
        .collect();
    each(trial, &kinds, |failure| {
        t.restore()?;
        Ok(moving(&t, failure))
    })
}

/// Both tiers are full: what does not fit stays, and when half is removed there is space.
pub fn full(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    while trial.next_case() {
        t.restore()?;
        let done = t.serve(|daemon, shale, _| {
            let mut made = Vec::new();
            let mut moved = u64::MAX;
            for n in 0..60 {
                make(&mut made, shale, &format!("fault-{n}"))?;
                moved = down(daemon)?;
                if moved == 0 {
                    break;
                }
            }
            let space = [TierId::Ssd, TierId::Hdd].map(|t| daemon.volume().lower_space(t));
            if moved > 0 {
                return Err(format!("both tiers never were full: {space:?}"));
            }
            Sight::of(shale, &t.tree).within(&[])?;
            compare(&made, shale)?;
            let held = made.len();
            let (gone, rest): (Vec<_>, Vec<_>) =
                made.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
            for (_, (name, _)) in &gone {
                unlink(shale, name.as_bytes())?;
            }
            let mut made: Vec<_> = rest.into_iter().map(|(_, one)| one).collect();
            make(&mut made, shale, "fault-again")?;
            if down(daemon)? == 0 {
                return Err("half was removed, and there is no room".to_owned());
            }
            compare(&made, shale)?;
            for (name, _) in &made {
                unlink(shale, name.as_bytes())?;
            }
            use_it(shale, b"fault-after")?;
            unlink(shale, b"fault-after")?;
            Ok(held)
        });
        let held = kept!(done);
        kept!(t.is_whole(&t.tree));
        trial.seen = format!("{held} large files until both were full");
    }
    Ok(Ok(()))
}

/// Blocks that are not what was written: bits flipped, another's, zeros.
pub fn rot(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    let live = kept!(t.live());
    let mut failed = 0;
    while trial.next_case() {
        t.restore()?;
        let one = &live[trial.chance.below(live.len() as u64) as usize];
        let other = &live[trial.chance.below(live.len() as u64) as usize];
        let at = one.byte() as usize;
        let mut bytes = t.contents[one.device()][at..at + BLOCK_BYTES].to_vec();
        match trial.cases % 3 {
            0 => bytes.fill(0),
            1 => bytes[trial.chance.below(4096) as usize] ^= 1 << trial.chance.below(8),
            _ => {
                let from = other.byte() as usize;
                let found = &t.contents[other.device()][from..from + BLOCK_BYTES];
                bytes.copy_from_slice(found);
            }
        }
        if bytes == t.contents[one.device()][at..at + BLOCK_BYTES] {
            continue;
        }
        t.devices[one.device()].spoil(one.byte(), &bytes);
        let path = String::from_utf8_lossy(&one.path);
        let checked = spoiled(&t, one).map_err(|wrong| format!("{path}, {:?}: {wrong}", one.addr));
        failed += kept!(checked);
    }
    trial.seen = format!("{failed} paths EIO");
    Ok(Ok(()))
}

/// One block cannot be read: its file alone is EIO there, and says so in `status`; rewritten
/// it is whole.
pub(crate) fn spoiled(t: &Tiered, one: &Live) -> Checked<usize> {
    let paths = with_links(t, &BTreeSet::from([one.path.clone()]));
    let failed = t.serve(|daemon, shale, _| {
        let sight = Sight::of(shale, &t.tree);
        sight.within(&paths)?;
        if !sight.failed.contains(&one.path) {
            return Err("nothing is EIO".to_owned());
        }
        let status = daemon.status_values().bad_blocks;
        let (name, block) = (NAMES[one.device()], one.addr.index());
        if status.len() != 1 || (status[0].tier.as_str(), status[0].block) != (name, block) {
            return Err(format!("status names {status:?}"));
        }
        // It cannot be moved either, and nothing else suffers from that.
        let _ = down(daemon);
        Sight::of(shale, &t.tree).within(&paths)?;
        let facts = &t.tree.paths[&one.path];
        let data = FileAct::WriteBytes(0, facts.data.clone());
        for act in [
            Act::Open(0, one.path.clone(), OFlags::RDWR, 0),
            Act::File(0, data),
            Act::File(0, FileAct::Close),
        ] {
            shale.act(&act).map_err(|e| format!("rewritten: {e}"))?;
        }
        Ok(sight.failed.len())
    })?;
    t.is_whole(&t.tree).map(|()| failed)
}

/// Blocks of NVM that stay free while others write it full.
const LEFT_FREE: u64 = 120;
/// Bytes of one write of those.
const WRITE_BYTES: usize = 128 << 10;

/// Who has read files reads them where they are now, though others have written what was free
/// since: nothing but the move tells it.
pub fn moved(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    while trial.next_case() {
        t.restore()?;
        let done = t.serve(|daemon, shale, _| {
            let paused = Speed {
                paused: true,
                limit: 0,
            };
            daemon.set_speed(paused);
            let second = attach_to(daemon)?;
            let mut other = side(&second);
            let flags = OFlags::RDWR | OFlags::CREATE;
            let open = Act::Open(0, b"fault-other".to_vec(), flags, 0o600);
            other.act(&open).map_err(|e| format!("{open:?}: {e}"))?;
            let mut made = Vec::new();
            for n in 0..4 {
                make(&mut made, shale, &format!("fault-{n}"))?;
            }
            daemon.quiesce();
            compare(&made, shale)?;
            let bytes = down(daemon)?;
            let mut at = 0;
            let free = || second.space().map_or(0, |space| space.free);
            while free() > LEFT_FREE {
                let fill = Fill {
                    seed: 200,
                    len: WRITE_BYTES,
                };
                let write = Act::File(0, FileAct::Write(at, fill));
                match other.act(&write) {
                    Ok(_) => at += WRITE_BYTES as u64,
                    // The rest is reserved for others.
                    Err(Errno::NOSPC) => break,
                    Err(e) => return Err(format!("{write:?}: {e}")),
                }
            }
            compare(&made, shale)?;
            close_all(&mut other);
            drop(other);
            second.detach().map_err(|e| format!("detach: {e}"))?;
            for name in made.iter().map(|m| &*m.0).chain(["fault-other"]) {
                unlink(shale, name.as_bytes())?;
            }
            match bytes {
                0 => Err("nothing moved".to_owned()),
                _ => Ok(at),
            }
        });
        let written = kept!(done);
        kept!(t.is_whole(&t.tree));
        trial.seen = format!("{written} bytes written over what was free");
    }
    Ok(Ok(()))
}

/// A zone in which nothing is live is not erased while a call goes on that may see it.
pub fn held(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let t = kept!(Tiered::new(trial)?);
    while trial.next_case() {
        t.restore()?;
        let done = t.serve(|daemon, shale, session| {
            let hand = Hand::in_process(daemon);
            hand.set_reader_slot(READER_SLOT, 1);
            let done = remove_below(&t, shale).and_then(|()| {
                session.digest().map_err(|e| format!("digest: {e}"))?;
                match erased(daemon)? {
                    0 => Ok(()),
                    n => Err(format!("{n} zones were erased while a call could see them")),
                }
            });
            hand.set_reader_slot(READER_SLOT, 2);
            hand.ask(Request::Detach);
            done?;
            daemon.quiesce();
            match erased(daemon)? {
                0 => Err("no zone was erased when the call had left".to_owned()),
                n => Ok(n),
            }
        });
        let zones = kept!(done);
        trial.seen = format!("{zones} zones erased after the call");
    }
    Ok(Ok(()))
}

fn erased(daemon: &Daemon) -> Checked<u64> {
    let erase = |tier| daemon.volume().erase_zones(tier).map_err(|e| e.to_string());
    Ok(erase(TierId::Ssd)? + erase(TierId::Hdd)?)
}

/// Removes every file that has blocks below NVM.
fn remove_below(t: &Tiered, shale: &mut dyn Side) -> Checked<()> {
    for path in with_links(t, &paths(&t.live()?, None)) {
        match shale.act(&Act::Unlink(path)) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(format!("unlink: {e}")),
        }
    }
    Ok(())
}
