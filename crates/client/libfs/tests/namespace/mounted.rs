//! Paths of programs that have the tree mounted somewhere: they begin in any directory, and end where the tree does.

use crate::place::{Place, tree};
use rustix::fs::OFlags;
use shale_libfs::{BY_KERNEL, Errno};

#[test]
fn paths_begin_in_a_directory_and_stay_in_the_tree() {
    let place = Place::new();
    let session = place.attach(false);
    let all = tree(&session);
    all.mkdir(b"/a", 0o755).unwrap();
    all.mkdir(b"/a/b", 0o755).unwrap();
    let ino = |path: &[u8]| all.stat(path).unwrap().ino;
    let (a, b) = (ino(b"/a"), ino(b"/a/b"));
    let in_a = tree(&session).mounted_at(a, true);
    let in_b = tree(&session).mounted_at(b, true);
    let make = OFlags::CREATE | OFlags::RDWR;
    drop(in_b.open(b"file", make, 0o644).unwrap());
    let file = ino(b"/a/b/file");
    let found = |tree: &shale_libfs::Tree, path: &[u8]| tree.stat(path).map(|attr| attr.ino);
    assert_eq!(found(&in_a, b"b/file"), Ok(file));
    assert_eq!(found(&in_b, b"file"), Ok(file));
    assert_eq!(found(&in_b, b"../b/file"), Ok(file));
    // The same words from elsewhere are another path, also where the first is known by heart.
    assert_eq!(found(&in_b, b"b/file"), Err(Errno::NOENT));
    assert_eq!(found(&in_a, b"/a/b/file"), Ok(file));
    // Relative links stay inside, absolute ones and the directory above the root do not.
    all.symlink(b"b", b"/a/near").unwrap();
    all.symlink(b"/a/b", b"/a/far").unwrap();
    assert_eq!(found(&in_a, b"near/file"), Ok(file));
    assert_eq!(found(&in_a, b"far/file"), Err(BY_KERNEL));
    assert_eq!(found(&in_a, b"far"), Err(BY_KERNEL));
    assert_eq!(in_a.lstat(b"far").map(|attr| attr.size), Ok(4));
    assert_eq!(found(&all, b"/a/far/file"), Ok(file), "as libshale has it");
    assert_eq!(found(&in_a, b"../.."), Err(BY_KERNEL));
    assert_eq!(found(&all, b"/.."), Ok(1));
    // From one directory to another.
    in_b.rename_into(b"file", &in_a, b"moved", 0).unwrap();
    in_a.link_into(b"moved", &in_b, b"linked").unwrap();
    assert_eq!(found(&in_b, b"linked"), Ok(file));
    // But not a directory, which the kernel may know in its old place.
    all.mkdir(b"/a/dir", 0o755).unwrap();
    let exchange = shale_libfs::RENAME_EXCHANGE;
    for (from, to, flags) in [
        (&b"dir"[..], &b"b/dir"[..], 0),
        (b"dir", b"b/linked", exchange),
        (b"b/linked", b"dir", exchange),
    ] {
        assert_eq!(in_a.rename_into(from, &in_a, to, flags), Err(BY_KERNEL));
    }
    in_a.rename_into(b"dir", &in_a, b"same", 0).unwrap();
    all.rename(b"/a/same", b"/a/b/dir", 0).unwrap();
    all.rmdir(b"/a/b/dir").unwrap();
    // What a sticky directory of others protects is the kernel's.
    all.mkdir(b"/shared", 0o1777).unwrap();
    all.chmod(b"/shared", 0o1777).unwrap();
    let shared = tree(&session).mounted_at(ino(b"/shared"), true);
    drop(shared.open(b"own", make, 0o666).unwrap());
    let again = shared.open(b"own", make, 0o666).map(|_| ());
    assert_eq!(again, Err(BY_KERNEL));
    shared.symlink(b"own", b"link").unwrap();
    assert_eq!(found(&shared, b"link"), Err(BY_KERNEL));
    // A directory that was removed has no names; the kernel has it open still.
    in_b.unlink(b"linked").unwrap();
    let open = all.open(b"/a/b", OFlags::RDONLY | OFlags::DIRECTORY, 0);
    let _open = open.unwrap();
    all.rmdir(b"/a/b").unwrap();
    let begun = std::time::Instant::now();
    let gone = in_b.open(b"late", make, 0o644).map(|_| ());
    assert_eq!(gone, Err(Errno::NOENT));
    assert!(begun.elapsed().as_secs() < 2, "said at once");
    // Which the kernel has, too, that knows what was above it.
    let in_b = in_b.with_start_of_kernel(true);
    let gone = in_b.open(b"late", make, 0o644).map(|_| ());
    assert_eq!(gone, Err(BY_KERNEL));
    assert_eq!(found(&in_b, b"."), Err(BY_KERNEL));
}

/// Leases are moved for what a client does much of; what is asked once the kernel answers, and nobody gives anything up for it.
#[test]
fn where_no_lease_may_be_asked_for_the_kernel_answers_but_for_what_is_held() {
    let place = Place::new();
    let (one, two) = (place.attach(false), place.attach(false));
    let theirs = tree(&one);
    theirs.mkdir(b"/theirs", 0o755).unwrap();
    theirs.mkdir(b"/ours", 0o755).unwrap();
    let make = OFlags::CREATE | OFlags::RDWR;
    drop(theirs.open(b"/theirs/file", make, 0o644).unwrap());
    let root = 1;
    let ours = tree(&two).mounted_at(root, false);
    let none = |done: Result<(), Errno>| assert_eq!(done, Err(BY_KERNEL));
    none(ours.stat(b"theirs/file").map(|_| ()));
    none(ours.stat(b"/").map(|_| ()));
    none(ours.open(b"theirs/file", OFlags::RDONLY, 0).map(|_| ()));
    none(ours.open(b"ours/new", make, 0o644).map(|_| ()));
    none(
        ours.open(b"ours/new", make | OFlags::EXCL, 0o644)
            .map(|_| ()),
    );
    none(ours.mkdir(b"ours/new", 0o755));
    none(ours.symlink(b"x", b"ours/new"));
    none(ours.unlink(b"theirs/file"));
    none(ours.rename(b"theirs/file", b"ours/file", 0));
    none(ours.link(b"theirs/file", b"ours/file"));
    none(ours.chmod(b"theirs/file", 0o600));
    none(ours.truncate(b"theirs/file", 0));
    none(ours.access(b"theirs/missing", 0));
    // It may where it pays; from then on the directory is its own, with all below, and nobody has to be asked.
    let takes = tree(&two).mounted_at(root, true);
    drop(takes.open(b"ours/first", make, 0o644).unwrap());
    takes.mkdir(b"ours/sub", 0o755).unwrap();
    drop(ours.open(b"ours/second", make, 0o644).unwrap());
    drop(ours.open(b"ours/sub/third", make, 0o644).unwrap());
    assert!(ours.stat(b"ours/first").is_ok() && ours.stat(b"/ours/sub/third").is_ok());
    assert_eq!(ours.access(b"ours/missing", 0), Err(Errno::NOENT));
    ours.rename(b"ours/second", b"ours/sub/second", 0).unwrap();
    ours.unlink(b"ours/first").unwrap();
    none(ours.rename(b"theirs/file", b"ours/file", 0));
    none(ours.stat(b"theirs/file").map(|_| ()));
    // What somebody else takes is the kernel's again.
    assert!(theirs.stat(b"/ours/sub/second").is_ok());
    none(ours.stat(b"ours/missing").map(|_| ()));
    none(ours.unlink(b"ours/sub/second"));
    assert!(takes.stat(b"ours/sub/third").is_ok());
}
