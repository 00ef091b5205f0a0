//! Rights that a program gives a process that runs it go with a change of its content or owner: from what this client
//! knows, from the log, and from the volume. By clients that no kernel has checked.

use crate::place::{Place, TRUSTED as USER, caller, own, tree};
use shale_libfs::{Errno, File, OFlags, Tree};
use std::sync::Arc;

const GROUP: u32 = 1234;
const CAPABILITY: &[u8] = b"security.capability";

type Change = fn(&File) -> Result<(), Errno>;

const CHANGES: [(&str, Change); 9] = [
    ("write", |f| f.pwrite(1, b"evil").map(drop)),
    ("large", |f| f.pwrite(1, &[7; (1 << 20) + 9]).map(drop)),
    ("append", |f| f.pwrite(f.stat()?.size, &[7; 5000]).map(drop)),
    ("cut", |f| f.truncate(3)),
    ("longer", |f| f.truncate(99_999)),
    ("allocate", |f| f.fallocate(0, 0, 20_000)),
    ("punch", |f| f.fallocate(3, 0, 4096)),
    ("zero", |f| f.fallocate(16, 0, 4096)),
    ("collapse", |f| f.fallocate(8, 0, 4096)),
];

/// Mode and attributes of the file as a client sees them.
fn seen(by: &Tree, path: &[u8]) -> (u32, Vec<u8>) {
    let mode = by.stat(path).unwrap().mode & 0o7777;
    (mode, by.listxattr(path, true).unwrap())
}

/// A file of root's with rights.
fn program(root: &Tree, path: &[u8], mode: u32) {
    let new = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);
    let file = root.open(path, new, 0o755).unwrap();
    file.pwrite(0, &[1; 30_000]).unwrap();
    root.chown(path, None, Some(GROUP), true).unwrap();
    root.chmod(path, mode).unwrap();
    root.setxattr(path, CAPABILITY, b"all", 0, true).unwrap();
    root.setxattr(path, b"user.other", b"stays", 0, true)
        .unwrap();
}

#[test]
fn rights_of_a_program_go_with_its_content() {
    if own() != (0, 0) {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let place = Place::new();
    let (root, user) = (place.attach(false), place.attach_trusted());
    let (of_root, of_user) = (tree(&root), user.tree(caller((USER, USER))));
    let of_member = user.tree(caller((USER, GROUP)));
    let other = b"user.other\0".to_vec();
    for (name, change) in CHANGES {
        for (mode, by, left) in [
            (0o4777, &of_user, 0o777),
            (0o6777, &of_user, 0o777),
            (0o2767, &of_user, 0o767),
            (0o6767, &of_user, 0o767),
            (0o777, &of_user, 0o777),
            (0o6777, &of_member, 0o777),
            // Nobody's privilege keeps a capability.
            (0o6777, &of_root, 0o6777),
        ] {
            let who = if std::ptr::eq(by, &of_root) {
                "root"
            } else {
                "user"
            };
            let path = format!("/{name}-{mode:o}-{who}-{left:o}").into_bytes();
            let _ = of_root.unlink(&path);
            program(&of_root, &path, mode);
            let file = by.open(&path, OFlags::RDWR, 0).unwrap();
            change(&file).unwrap_or_else(|e| panic!("{name} {mode:o}: {e}"));
            let what = String::from_utf8_lossy(&path).into_owned();
            assert_eq!(seen(by, &path), (left, other.clone()), "{what}");
            assert_eq!(seen(&of_root, &path), (left, other.clone()), "{what}");
            user.digest().unwrap();
            root.digest().unwrap();
            let view = place.daemon().volume().view();
            let ino = shale_format::Ino(of_root.stat(&path).unwrap().ino);
            let inode = view.inode(ino).unwrap().unwrap();
            assert_eq!(inode.mode & 0o7777, left, "{what}");
            assert!(!view.xattrs(&inode).unwrap().contains_key(CAPABILITY));
        }
    }
    // A new owner: the capability too.
    program(&of_root, b"/owned", 0o6755);
    of_root.chown(b"/owned", Some(USER), None, true).unwrap();
    assert_eq!(seen(&of_root, b"/owned"), (0o755, other.clone()));
    program(&of_root, b"/touched", 0o755);
    of_root.chmod(b"/touched", 0o6755).unwrap();
    let both = [CAPABILITY, b"\0user.other\0"].concat();
    assert_eq!(seen(&of_root, b"/touched"), (0o6755, both), "not by chmod");
    drop((of_root, of_user, of_member));
    assert_eq!(Arc::strong_count(&user), 1);
}
