//! What a front end of the kernel relies on: requests that are sent again after the
//! serving process was killed are done once, and inodes without names live until the
//! kernel forgets them.

use crate::place::{Place, me};
use shale_libfs::{Attr, Caller, Errno, RENAME_EXCHANGE, RENAME_WHITEOUT, Session, SetAttr};
use std::sync::Arc;

const ROOT: u64 = 1;

fn ask(request: u64) -> Caller {
    Caller { request, ..me() }
}

/// A request, to be made under a number.
type Asked<'a> = Box<dyn Fn(&Caller) -> Answer + 'a>;
/// The inode that it made or changed, if it has an answer.
type Answer = Result<Option<Attr>, Errno>;

/// Does the requests, the first with number 1, and tells what each answered.
fn requests(s: &Session, only: Option<u64>, known: &[u64]) -> Vec<Answer> {
    let attr = |r: Result<Attr, Errno>| r.map(Some);
    let done = |r: Result<(), Errno>| r.map(|()| None);
    let [dir, file] = [known[0], known[1]];
    let all: Vec<Asked<'_>> = vec![
        Box::new(|c| attr(s.mkdir(c, ROOT, b"made", 0o755))),
        Box::new(|c| attr(s.create(c, dir, b"new", 0o644, libc::O_EXCL as u32))),
        Box::new(|c| attr(s.symlink(c, dir, b"sym", b"to"))),
        Box::new(|c| attr(s.link(c, file, dir, b"second"))),
        Box::new(|c| attr(s.tmpfile(c, dir, 0o600, 0))),
        Box::new(|c| done(s.rename(c, (dir, b"second"), (dir, b"third"), 0))),
        Box::new(|c| done(s.rename(c, (dir, b"third"), (dir, b"new"), RENAME_EXCHANGE))),
        Box::new(|c| done(s.unlink(c, dir, b"sym"))),
        Box::new(|c| done(s.rmdir(c, ROOT, b"made"))),
        Box::new(|c| done(s.setxattr(c, file, b"user.x", b"1", shale_libfs::XATTR_CREATE))),
        Box::new(|c| {
            attr(s.setattr(
                c,
                file,
                &SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                },
            ))
        }),
        Box::new(|c| attr(s.create(c, dir, b"file", 0o644, libc::O_TRUNC as u32))),
        Box::new(|c| done(s.rename(c, (dir, b"new"), (dir, b"away"), RENAME_WHITEOUT))),
    ];
    let picked = |n: u64| only.is_none_or(|o| o == n);
    let numbered = all.iter().zip(1u64..).filter(|(_, n)| picked(*n));
    numbered.map(|(f, n)| f(&ask(n))).collect()
}

fn names(s: &Session, dir: u64) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut sink = |e: shale_libfs::DirEntry<'_>| {
        names.push(e.name.to_vec());
        true
    };
    s.readdir(&me(), dir, 0, true, &mut sink).unwrap();
    names.sort();
    names
}

fn with_a_file(s: &Arc<Session>) -> [u64; 2] {
    let dir = s.mkdir(&me(), ROOT, b"dir", 0o755).unwrap().ino;
    let file = s.create(&me(), dir, b"file", 0o644, 0).unwrap().ino;
    s.write(&me(), file, 0, b"something", Default::default())
        .unwrap();
    [dir, file]
}

/// The serving process is killed, and another one takes over.
fn killed(place: &mut Place, session: Arc<Session>) -> Arc<Session> {
    place.restart(false);
    drop(session);
    place.attach(true)
}

#[test]
fn requests_that_come_again_are_done_once() {
    let mut place = Place::new();
    place.serve_kernel();
    let session = place.attach(true);
    let known = with_a_file(&session);
    let first = requests(&session, None, &known);
    let before = names(&session, known[0]);
    let session = killed(&mut place, session);
    assert_eq!(names(&session, known[0]), before);
    for (n, answer) in (1u64..).zip(&first) {
        let again = requests(&session, Some(n), &known).remove(0);
        // Attributes may have gone on; the inode is the same, unless it was removed since.
        match (answer, again) {
            (Ok(Some(a)), Ok(Some(b))) => assert_eq!(a.ino, b.ino, "request {n}"),
            (a, b) => assert_eq!(*a, b, "request {n}"),
        }
        assert_eq!(names(&session, known[0]), before, "request {n}");
    }
    assert_eq!(session.lookup(&me(), ROOT, b"made"), Err(Errno::NOENT));
}

#[test]
fn inodes_without_names_live_until_they_are_forgotten() {
    let mut place = Place::new();
    place.serve_kernel();
    let session = place.attach(true);
    let [dir, file] = with_a_file(&session);
    let tmp = session.tmpfile(&me(), dir, 0o600, 0).unwrap().ino;
    session.unlink(&me(), dir, b"file").unwrap();
    let check = |s: &Session| {
        let mut back = [0; 9];
        assert_eq!(s.read(&me(), file, 0, &mut back), Ok(9));
        assert_eq!(
            (&back, s.getattr(&me(), file).unwrap().nlink),
            (b"something", 0)
        );
        assert_eq!(s.getattr(&me(), tmp).unwrap().nlink, 0);
    };
    check(&session);
    session.digest().unwrap();
    check(&session);
    assert_eq!(
        session.link(&me(), file, dir, b"back"),
        Err(Errno::NOENT),
        "its name was removed"
    );
    let session = killed(&mut place, session);
    check(&session);
    assert_eq!(session.link(&me(), tmp, dir, b"tmp").unwrap().nlink, 1);
    for ino in [file, tmp, dir, 999_999] {
        session.forget(ino).unwrap();
    }
    assert_eq!(session.getattr(&me(), file), Err(Errno::NOENT));
    assert_eq!(session.lookup(&me(), dir, b"tmp").unwrap().ino, tmp);
    session.digest().unwrap();
    assert_eq!(session.getattr(&me(), file), Err(Errno::NOENT));
    session.unlink(&me(), dir, b"tmp").unwrap();
    session.forget(tmp).unwrap();
    session.rmdir(&me(), ROOT, b"dir").unwrap();
    session.forget(dir).unwrap();
    session.digest().unwrap();
    place.daemon().quiesce();
    let space = session.space().unwrap();
    assert_eq!(
        space.inodes_used,
        Place::new().attach(true).space().unwrap().inodes_used
    );
}
