//! Access control lists by the path API: who may do what, whatever this client knows already; that they come to the volume
//! with the mode that goes with them; and what a crash leaves.

use crate::place::{Place, caller, own, tree};
use shale_format::acl::{Acl, AclEntry, AclKind, Who};
use shale_libfs::{Errno, OFlags, SetAttr, Tree};

const ANN: u32 = 1001;
const BOB: u32 = 1002;
const TEAM: u32 = 2002;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Owner and group may all, Ann what is said, Bob's team that too, others nothing.
fn list(ann: u16, team: u16, mask: u16) -> Vec<u8> {
    let all = [
        (Who::Owner, 7),
        (Who::User(ANN), ann),
        (Who::OwningGroup, 7),
        (Who::Group(TEAM), team),
        (Who::Mask, mask),
        (Who::Other, 0),
    ];
    let entry = |(who, may)| AclEntry { who, may };
    Acl::new(all.map(entry).to_vec()).encode()
}

/// What a caller may do with a file, as letters, by opening and by asking.
fn may(by: &Tree, path: &[u8]) -> String {
    let open = |flags| by.open(path, flags, 0).is_ok();
    let opened = (open(OFlags::RDONLY), open(OFlags::WRONLY));
    let asked = [4, 2, 1].map(|want| by.access(path, want).is_ok());
    assert_eq!(opened, (asked[0], asked[1]));
    let letters = "rwx".chars().zip(asked);
    letters.filter(|l| l.1).map(|l| l.0).collect()
}

#[test]
fn a_list_decides_on_every_way() {
    if own() != (0, 0) {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let place = Place::new();
    let sessions = [place.attach(false), place.attach(false)];
    let root = tree(&sessions[0]);
    root.mkdir(b"/d", 0o755).unwrap();
    let new = OFlags::RDWR | OFlags::CREATE;
    root.open(b"/d/f", new, 0o600).unwrap();
    // Known to both clients, and by whole paths, before it changes.
    for session in &sessions {
        let ann = session.tree(caller((ANN, ANN)));
        assert_eq!(
            ann.open(b"/d/f", OFlags::RDONLY, 0).err(),
            Some(Errno::ACCESS)
        );
    }
    let set = |path: &[u8], name: &[u8], value: &[u8]| root.setxattr(path, name, value, 0, true);
    for (dir, file, expected) in [
        (list(5, 5, 7), list(7, 4, 7), ["rwx", "r", ""]),
        (list(5, 5, 7), list(7, 6, 5), ["rx", "r", ""]),
        (list(5, 0, 7), list(7, 7, 7), ["rwx", "", ""]),
        (list(5, 1, 1), list(4, 4, 7), ["r", "r", ""]),
        // The mask is the mode's group bits: without any the mode alone counts.
        (list(5, 5, 7), list(7, 7, 0), ["", "", ""]),
    ] {
        set(b"/d", ACCESS, &dir).unwrap();
        set(b"/d/f", ACCESS, &file).unwrap();
        for step in 0..4 {
            for session in &sessions {
                let who = [(ANN, ANN), (BOB, TEAM), (BOB, BOB)];
                let found = who.map(|who| may(&session.tree(caller(who)), b"/d/f"));
                assert_eq!(found, expected, "step {step}");
            }
            // From memory, from the log, from the volume, and read again.
            sessions[step % 2].digest().unwrap();
        }
    }
    // Every right to a directory.
    set(b"/d", ACCESS, &list(7, 5, 7)).unwrap();
    let by = |who| sessions[1].tree(caller(who));
    let (ann, bob) = (by((ANN, ANN)), by((BOB, TEAM)));
    ann.mkdir(b"/d/hers", 0o700).unwrap();
    ann.rename(b"/d/hers", b"/d/moved", 0).unwrap();
    assert_eq!(bob.rmdir(b"/d/moved"), Err(Errno::ACCESS));
    assert_eq!(bob.mkdir(b"/d/his", 0o700), Err(Errno::ACCESS));
    assert_eq!(bob.rename(b"/d/f", b"/d/g", 0), Err(Errno::ACCESS));
    assert_eq!(bob.read_dir(b"/d").unwrap().count(), 2);
    ann.rmdir(b"/d/moved").unwrap();
    // Setting is the owner's; reading everybody's.
    assert_eq!(
        ann.setxattr(b"/d", ACCESS, &list(7, 7, 7), 0, true),
        Err(Errno::PERM)
    );
    assert_eq!(ann.removexattr(b"/d", ACCESS, true), Err(Errno::PERM));
    assert_eq!(bob.getxattr(b"/d", ACCESS, true).unwrap(), list(7, 5, 7));
}

#[test]
fn lists_and_modes_come_to_the_volume_together() {
    let mut place = Place::new();
    for digested in [false, true] {
        let session = place.attach(false);
        let (tree, name) = (tree(&session), if digested { "b" } else { "a" });
        let at = |rest: &str| format!("/{name}{rest}").into_bytes();
        tree.mkdir(&at(""), 0o777).unwrap();
        tree.setxattr(&at(""), DEFAULT, &list(6, 5, 7), 0, true)
            .unwrap();
        let digest = || {
            if digested {
                session.digest().unwrap();
            }
        };
        digest();
        tree.mkdir(&at("/dir"), 0o750).unwrap();
        let new = OFlags::RDWR | OFlags::CREATE;
        tree.open(&at("/file"), new, 0o666).unwrap();
        let unnamed = tree
            .open(&at(""), OFlags::TMPFILE | OFlags::RDWR, 0o640)
            .unwrap();
        unnamed.link_at(&at("/unnamed")).unwrap();
        tree.symlink(b"file", &at("/link")).unwrap();
        digest();
        tree.chmod(&at("/unnamed"), 0o4705).unwrap();
        tree.setxattr(&at("/chmod"), b"user.x", b"", 0, true)
            .unwrap_err();
        drop((unnamed, tree, session));
        place.restart(digested);
        let session = place.attach(false);
        let tree = crate::place::tree(&session);
        let seen = |path: &[u8]| {
            let mode = tree.lstat(path).unwrap().mode & 0o7777;
            let of = |name| tree.getxattr(path, name, false).ok();
            (mode, of(ACCESS), of(DEFAULT))
        };
        let with = |mode| {
            Acl::decode(&list(6, 5, 7))
                .unwrap()
                .with_mode(mode)
                .encode()
        };
        let default = Some(list(6, 5, 7));
        assert_eq!(seen(&at("/dir")), (0o750, Some(with(0o750)), default));
        assert_eq!(seen(&at("/file")), (0o660, Some(with(0o660)), None));
        assert_eq!(seen(&at("/unnamed")), (0o4705, Some(with(0o705)), None));
        assert_eq!(seen(&at("/link")), (0o777, None, None));
        drop((tree, session));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    let session = place.attach(false);
    let tree = tree(&session);
    tree.mkdir(b"/d", 0o2755).unwrap();
    tree.open(b"/f", OFlags::RDWR | OFlags::CREATE, 0o644)
        .unwrap();
    tree.symlink(b"f", b"/l").unwrap();
    let set = |path: &[u8], name: &[u8], value: &[u8]| tree.setxattr(path, name, value, 0, false);
    let good = list(7, 7, 7);
    assert_eq!(set(b"/f", DEFAULT, &good), Err(Errno::ACCESS));
    assert_eq!(set(b"/l", ACCESS, &good), Err(Errno::OPNOTSUPP));
    assert_eq!(set(b"/f", ACCESS, &good[..20]), Err(Errno::INVAL));
    assert_eq!(set(b"/f", ACCESS, &good[..19]), Err(Errno::INVAL));
    assert_eq!(set(b"/f", ACCESS, b"\x01\0\0\0"), Err(Errno::OPNOTSUPP));
    assert_eq!(set(b"/f", ACCESS, &[2; 5000]), Err(Errno::TOOBIG));
    assert_eq!(
        set(b"/f", b"system.posix_acl_other", &good),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(tree.getxattr(b"/f", ACCESS, true), Err(Errno::NODATA));
    assert_eq!(tree.removexattr(b"/f", ACCESS, true), Ok(()));
    // The kernel knows whether set-group-id stays; libfs by the caller's group.
    for (kill, left) in [(Some(true), 0o770), (Some(false), 0o2770), (None, 0o2770)] {
        let ino = tree.stat(b"/d").unwrap().ino;
        let me = crate::place::me();
        session
            .set_acl(&me, ino, AclKind::Access, &good, kill)
            .unwrap();
        assert_eq!(
            session.getattr(&me, ino).unwrap().mode & 0o7777,
            left,
            "{kill:?}"
        );
        let mode = Some(0o2755);
        let set = SetAttr {
            mode,
            ..SetAttr::default()
        };
        session.setattr(&me, ino, &set).unwrap();
    }
    session.digest().unwrap();
}
