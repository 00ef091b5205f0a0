//! Two clients of one volume: what one has opened lives until it closes it, a caller that removes
//! its name; readers do not disturb each other; nothing is ever missing that has a name
//! all the time.

use crate::place::{Place, me, tree};
use shale_libfs::{Errno, InodeHandle, OFlags, Session, WriteFlags};
use shale_proto::shared_pages::daemon_page;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

fn moves(place: &Place) -> u64 {
    place.daemon().status_values().leases.moves
}

fn inodes(session: &Session) -> u64 {
    session.digest().unwrap();
    session.space().unwrap().inodes_used
}

#[test]
fn a_file_that_another_client_unlinks_lives_until_it_is_closed() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    let before = inodes(&a);
    for replaced in [false, true] {
        let file = tree(&a).open(b"/f", NEW, 0o644).unwrap();
        file.write(b"content").unwrap();
        if replaced {
            drop(tree(&b).open(b"/g", NEW, 0o644).unwrap());
            tree(&b).rename(b"/g", b"/f", 0).unwrap();
        }
        tree(&b).unlink(b"/f").unwrap();
        assert_eq!(tree(&a).stat(b"/f"), Err(Errno::NOENT));
        b.digest().unwrap();
        let mut back = [0; 7];
        assert_eq!(file.pread(0, &mut back), Ok(7));
        assert_eq!((&back, file.stat().unwrap().nlink), (b"content", 0));
        assert_eq!(file.link_at(b"/again"), Err(Errno::NOENT));
        assert_eq!(file.pwrite(7, b" more"), Ok(5));
        assert_eq!(inodes(&a), before + 1);
        drop(file);
        assert_eq!(inodes(&a), before, "closed");
    }
    // Without a user it is freed with its name.
    drop(tree(&a).open(b"/f", NEW, 0o644).unwrap());
    tree(&b).unlink(b"/f").unwrap();
    assert_eq!(inodes(&b), before);
    drop((a, b));
}

#[test]
fn what_two_clients_have_open_the_last_one_frees() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    let before = inodes(&a);
    let one = tree(&a).open(b"/f", NEW, 0o644).unwrap();
    let two = tree(&b).open(b"/f", OFlags::RDWR, 0).unwrap();
    tree(&a).unlink(b"/f").unwrap();
    drop(one);
    assert_eq!(two.write(b"x"), Ok(1));
    assert_eq!(inodes(&b), before + 1);
    drop(two);
    assert_eq!(inodes(&b), before);
}

#[test]
fn what_a_killed_client_had_open_is_swept() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    let before = inodes(&a);
    let file = tree(&b).open(b"/f", NEW, 0o644).unwrap();
    tree(&a).unlink(b"/f").unwrap();
    a.digest().unwrap();
    let swept = || a.sweep_orphans().unwrap();
    assert_eq!(swept().freed, 0, "its user lives");
    b.detach().unwrap();
    // The process is gone before it closes anything.
    std::mem::forget(file);
    assert_eq!((swept().freed, swept().referred), (1, vec![]));
    assert_eq!(inodes(&a), before);
}

#[test]
fn readers_share() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    tree(&a).mkdir(b"/d", 0o755).unwrap();
    let file = tree(&a).open(b"/d/f", NEW, 0o644).unwrap();
    file.write(b"one").unwrap();
    let mut back = [0; 3];
    let other = tree(&b).open(b"/d/f", OFlags::RDWR, 0).unwrap();
    assert_eq!(other.pread(0, &mut back), Ok(3));
    let before = moves(&place);
    let accessed = tree(&a).stat(b"/d/f").unwrap().atime;
    for n in 0..50 {
        assert_eq!(file.pread(0, &mut back), Ok(3));
        assert_eq!(other.pread(0, &mut back), Ok(3));
        assert_eq!(tree(&b).stat(b"/d/f").unwrap().size, 3, "{n}");
        assert_eq!(tree(&a).read_dir(b"/d").unwrap().count(), 1);
    }
    assert_eq!(moves(&place), before, "no lease has moved");
    assert_eq!(tree(&a).stat(b"/d/f").unwrap().atime, accessed);
    other.pwrite(0, b"two").unwrap();
    assert_eq!(file.pread(0, &mut back), Ok(3));
    assert_eq!(&back, b"two");
    assert!(moves(&place) > before);
    // Alone, a reader notes that it has read.
    drop((other, b));
    a.digest().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let new = tree(&a).open(b"/d/g", NEW, 0o644).unwrap();
    new.write(b"x").unwrap();
    let lone = tree(&a).open(b"/d/g", OFlags::RDONLY, 0).unwrap();
    let old = lone.stat().unwrap().atime;
    std::thread::sleep(std::time::Duration::from_millis(20));
    lone.pread(0, &mut back).unwrap();
    assert!(lone.stat().unwrap().atime > old);
}

#[test]
fn a_lease_is_given_back_and_taken_in_time() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    let file = tree(&a).open(b"/f", NEW, 0o644).unwrap();
    file.write(b"from a").unwrap();
    a.give_back(file.ino()).unwrap();
    let before = moves(&place);
    b.lease(file.ino(), shale_libfs::LeaseMode::Exclusive)
        .unwrap();
    assert_eq!(moves(&place), before, "nobody had it");
    b.write(&me(), file.ino(), 0, b"from b", Default::default())
        .unwrap();
    let mut back = [0; 6];
    assert_eq!(file.pread(0, &mut back), Ok(6));
    assert_eq!(&back, b"from b");
    assert_eq!(
        a.lease(file.ino() + 1, shale_libfs::LeaseMode::Shared),
        Err(Errno::NOENT),
        "a number that is granted and not used"
    );
}

#[test]
fn a_name_that_is_replaced_is_never_missing() {
    let place = Place::new();
    let sessions = [
        place.attach(false),
        place.attach(false),
        place.attach(false),
    ];
    let put = |session: &Arc<Session>, n: u64| {
        let fresh = format!("/fresh-{}", session.client()).into_bytes();
        let file = tree(session).open(&fresh, NEW, 0o644).unwrap();
        file.write(&n.to_le_bytes()).unwrap();
        drop(file);
        tree(session).rename(&fresh, b"/f", 0).unwrap();
    };
    put(&sessions[0], 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, put) = (&done, &put);
        let [one, two, reader] = &sessions;
        let writers: Vec<_> = [one, two]
            .into_iter()
            .map(|s| scope.spawn(move || (0..200).for_each(|n| put(s, n))))
            .collect();
        let reader = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let file = tree(reader).open(b"/f", OFlags::RDONLY, 0).expect("a name");
                assert_eq!(file.pread(0, &mut [0; 8]), Ok(8), "whole files only");
            }
        });
        for w in writers {
            w.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// Two clients make and remove a lock file, as fast as they can or each in its turn.
fn lock_file(in_turn: bool) {
    let rounds = crate::number("SHALE_ROUNDS", 2_000);
    let place = Place::new();
    let sessions = [place.attach(false), place.attach(false)];
    let (inside, held) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (who, session) in sessions.iter().enumerate() {
            let (inside, held) = (&inside, &held);
            let tree = tree(session);
            scope.spawn(move || {
                loop {
                    let now = held.load(Ordering::SeqCst);
                    if now >= rounds {
                        return;
                    }
                    if in_turn && now % 2 != who as u64 {
                        std::thread::yield_now();
                        continue;
                    }
                    match tree.open(b"/lock", NEW, 0o644) {
                        Ok(file) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            drop(file);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            tree.unlink(b"/lock").unwrap();
                            held.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(e) => assert!(e == Errno::EXIST && !in_turn, "{e}"),
                    }
                }
            });
        }
    });
    let rate = held.into_inner() as f64 / begun.elapsed().as_secs_f64();
    let moves = moves(&place);
    println!("in turn: {in_turn}: {rate:.0} rounds/s, leases moved {moves} times");
    assert!(!in_turn || moves >= rounds - 1);
}

#[test]
fn a_lock_file_keeps_others_out() {
    lock_file(false);
}

#[test]
fn a_lock_file_ping_pongs() {
    lock_file(true);
}

/// A short way to an inode number leads to what the number means now, a caller that wrote,
/// removed, or made a file of that number meanwhile.
#[test]
fn a_short_way_never_leads_to_what_was() {
    let place = Place::new();
    let a = place.attach(true);
    let read = |found: &mut InodeHandle| {
        let mut back = [0; 16];
        let n = a.read_found(&me(), found, 0, &mut back)?;
        Ok(String::from_utf8_lossy(&back[..n]).into_owned())
    };
    let mut met_again = 0;
    let mut found: Vec<InodeHandle> = Vec::new();
    for round in 0..20 {
        // A new client is granted the numbers that the last one gave back.
        let b = place.attach(false);
        let text = format!("round {round}");
        let file = tree(&b).open(b"/f", NEW, 0o644).unwrap();
        let ino = file.ino();
        file.write(text.as_bytes()).unwrap();
        match found.iter_mut().find(|f| f.ino() == ino) {
            Some(_) => met_again += 1,
            None => found.push(InodeHandle::new(ino)),
        }
        let way = found.iter_mut().find(|f| f.ino() == ino).unwrap();
        assert_eq!(read(way), Ok(text), "inode {ino}");
        // Written through the short way, seen by the other, and the other way round.
        let flags = WriteFlags::default();
        let mut at = 0;
        assert_eq!(a.write_handle(&me(), way, &mut at, b"ROUND", flags), Ok(5));
        assert_eq!(at, 5);
        let mut back = [0; 5];
        assert_eq!(file.pread(0, &mut back), Ok(5));
        assert_eq!(&back, b"ROUND");
        file.pwrite(0, b"again").unwrap();
        assert_eq!(read(way), Ok(format!("again {round}")));
        drop(file);
        tree(&b).unlink(b"/f").unwrap();
        b.digest().unwrap();
        assert_eq!(read(way), Err(Errno::NOENT), "removed");
        assert_eq!(a.read(&me(), ino, 0, &mut [0; 4]), Err(Errno::NOENT));
        b.detach().unwrap();
    }
    assert!(met_again > 0, "no number was ever used again");
}

#[test]
fn a_number_that_another_client_has_made_a_file_of_is_that_file() {
    let place = Place::new();
    let (a, b) = (place.attach(false), place.attach(false));
    let make = |session: &Arc<Session>, name: &str| {
        let file = tree(session).open(name.as_bytes(), NEW, 0o644);
        file.unwrap().ino()
    };
    let kept: Vec<u64> = (0..9000).map(|n| make(&a, &format!("/kept{n}"))).collect();
    // Freed here, and digested; from memory they go only when something else is freed.
    let freed = (0..200).map(|n| {
        let name = format!("/old{n}");
        let ino = make(&a, &name);
        tree(&a).unlink(name.as_bytes()).unwrap();
        ino
    });
    let freed: Vec<u64> = freed.collect();
    a.digest().unwrap();
    // The number of one of them is given again, and the lease word that it shares with another file changes.
    let (name, other) = (0..20_000)
        .find_map(|n| {
            let name = format!("/new{n}");
            let ino = make(&b, &name);
            let bucket = |&of: &u64| daemon_page::bucket(of) == daemon_page::bucket(ino);
            let other = freed.contains(&ino).then(|| kept.iter().position(bucket));
            Some((name, other??))
        })
        .expect("numbers are given again");
    let path = name.as_bytes();
    let other = format!("/kept{other}");
    tree(&b).chmod(other.as_bytes(), 0o640).unwrap();
    // The client that has freed that number once changes the file. Something else is freed, and nothing of the change gets lost.
    tree(&a).chmod(path, 0o600).unwrap();
    make(&a, "/last");
    tree(&a).unlink(b"/last").unwrap();
    assert_eq!(tree(&a).stat(path).unwrap().mode & 0o777, 0o600);
    tree(&a).unlink(path).unwrap();
    assert_eq!(tree(&a).stat(path), Err(Errno::NOENT));
    a.digest().unwrap();
    drop((a, b));
}
