//! Messages as bytes against a file system that notes what it was asked.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Adapter, Answer, CacheEffect, Validity};
use crate::backend::node::{
    Attr, DirEntry, EntrySink, Errno, NodeFs, Request, Result, SetAttr, StatFs, WriteFlags,
};
use crate::serving::negotiate::MountInfo;
use crate::serving::wire::*;
use shale_proto::mounts::{self, RangeCall};

const REQUEST: Request = Request {
    unique: 6,
    uid: 1,
    gid: 2,
    pid: 3,
    umask: 0,
    direct: false,
    opened: false,
    from_cache: false,
};

/// Answers everything with inode 5, or with the error that it is given.
#[derive(Default)]
struct Noting {
    asked: Mutex<Vec<String>>,
    requests: Mutex<Vec<Request>>,
    fail: Option<i32>,
}

impl Noting {
    fn note<T>(&self, request: &Request, what: String, value: T) -> Result<T> {
        self.requests.lock().push(*request);
        self.asked.lock().push(what);
        self.fail.map_or(Ok(value), |errno| Err(Errno(errno)))
    }

    fn attr() -> Attr {
        Attr {
            ino: 5,
            mode: 0o100_644,
            ..Attr::default()
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl NodeFs for Noting {
    fn keeps_name(&self, _: u64, name: &[u8]) -> bool {
        name != b"not kept"
    }
    fn lookup(&self, r: &Request, parent: u64, name: &[u8]) -> Result<Attr> {
        self.note(r, format!("lookup {parent} {}", text(name)), Self::attr())
    }
    fn forget(&self, ino: u64, count: u64) {
        self.asked.lock().push(format!("forget {ino} {count}"));
    }
    fn getattr(&self, r: &Request, ino: u64) -> Result<Attr> {
        self.note(r, format!("getattr {ino}"), Self::attr())
    }
    fn setattr(&self, r: &Request, ino: u64, set: &SetAttr) -> Result<Attr> {
        self.note(r, format!("setattr {ino} {:?}", set.size), Self::attr())
    }
    fn readlink(&self, r: &Request, ino: u64) -> Result<Vec<u8>> {
        self.note(r, format!("readlink {ino}"), b"target".to_vec())
    }
    fn mknod(&self, r: &Request, p: u64, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.note(
            r,
            format!("mknod {p} {} {mode:o} {rdev}", text(name)),
            Self::attr(),
        )
    }
    fn mkdir(&self, r: &Request, p: u64, name: &[u8], mode: u32) -> Result<Attr> {
        self.note(
            r,
            format!("mkdir {p} {} {mode:o}", text(name)),
            Self::attr(),
        )
    }
    fn symlink(&self, r: &Request, p: u64, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.note(
            r,
            format!("symlink {p} {} {}", text(name), text(target)),
            Self::attr(),
        )
    }
    fn link(&self, r: &Request, ino: u64, p: u64, name: &[u8]) -> Result<Attr> {
        self.note(r, format!("link {ino} {p} {}", text(name)), Self::attr())
    }
    fn unlink(&self, r: &Request, p: u64, name: &[u8]) -> Result<()> {
        self.note(r, format!("unlink {p} {}", text(name)), ())
    }
    fn rmdir(&self, r: &Request, p: u64, name: &[u8]) -> Result<()> {
        self.note(r, format!("rmdir {p} {}", text(name)), ())
    }
    fn rename(&self, r: &Request, a: (u64, &[u8]), b: (u64, &[u8]), flags: u32) -> Result<()> {
        let what = format!("rename {} {} {} {} {flags}", a.0, text(a.1), b.0, text(b.1));
        self.note(r, what, ())
    }
    fn create(&self, r: &Request, p: u64, name: &[u8], mode: u32, flags: u32) -> Result<Attr> {
        self.note(
            r,
            format!("create {p} {} {mode:o} {flags}", text(name)),
            Self::attr(),
        )
    }
    fn tmpfile(&self, r: &Request, p: u64, mode: u32, flags: u32) -> Result<Attr> {
        self.note(r, format!("tmpfile {p} {mode:o} {flags}"), Self::attr())
    }
    fn read(&self, r: &Request, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        into[..3].copy_from_slice(b"abc");
        self.note(r, format!("read {ino} {offset} {}", into.len()), 3)
    }
    fn write(&self, r: &Request, i: u64, o: u64, data: &[u8], f: WriteFlags) -> Result<usize> {
        self.note(r, format!("write {i} {o} {} {f:?}", text(data)), data.len())
    }
    fn readdir(&self, r: &Request, i: u64, c: u64, plus: bool, s: &mut EntrySink) -> Result<()> {
        let attr = plus.then(Self::attr);
        let mut taken = 0;
        for name in [&b"."[..], b"12345678", b"123456789", b"last"] {
            let entry = DirEntry {
                name,
                ino: 5,
                kind: libc::DT_LNK,
                cookie: 77,
                attr,
            };
            if !s(entry) {
                break;
            }
            taken += 1;
        }
        self.note(r, format!("readdir {i} {c} {plus} took {taken}"), ())
    }
    fn fsync(&self, r: &Request, ino: u64, datasync: bool) -> Result<()> {
        self.note(r, format!("fsync {ino} {datasync}"), ())
    }
    fn resent_are_read(&self) {
        self.asked.lock().push("resent are read".to_owned());
    }
    fn fsyncdir(&self, r: &Request, ino: u64, datasync: bool) -> Result<()> {
        self.note(r, format!("fsyncdir {ino} {datasync}"), ())
    }
    fn syncfs(&self, r: &Request) -> Result<()> {
        self.note(r, "syncfs".to_owned(), ())
    }
    fn statfs(&self, r: &Request) -> Result<StatFs> {
        self.note(r, "statfs".to_owned(), StatFs::default())
    }
    fn set_acl(&self, r: &Request, i: u64, name: &[u8], value: &[u8], kill: bool) -> Result<()> {
        self.note(
            r,
            format!("set_acl {i} {} {} {kill}", text(name), text(value)),
            (),
        )
    }
    fn setxattr(&self, r: &Request, i: u64, name: &[u8], value: &[u8], f: u32) -> Result<()> {
        self.note(
            r,
            format!("setxattr {i} {} {} {f}", text(name), text(value)),
            (),
        )
    }
}

/// A request for inode 9, made of a struct and what follows it.
fn message(kind: u32, head: &(impl IntoBytes + Immutable), tail: &[u8]) -> (InHeader, Vec<u8>) {
    let len = size_of::<InHeader>() + size_of_val(head) + tail.len();
    let header = InHeader {
        len: len as u32,
        opcode: kind,
        unique: REQUEST.unique | UNIQUE_RESENT,
        nodeid: 9,
        uid: REQUEST.uid,
        gid: REQUEST.gid,
        pid: REQUEST.pid,
        ..InHeader::default()
    };
    (header, [header.as_bytes(), head.as_bytes(), tail].concat())
}

struct Served {
    answer: Answer,
    asked: Vec<String>,
    requests: Vec<Request>,
    payload: Vec<u8>,
}

impl Served {
    fn payload<T: FromBytes>(&self) -> T {
        let Answer::Reply(Ok(bytes)) = self.answer else {
            panic!("{:?}", self.answer)
        };
        assert_eq!(bytes, size_of::<T>());
        T::read_from_bytes(&self.payload[..bytes]).unwrap()
    }
}

fn serve_on(fs: Noting, negative: u64, message: (InHeader, Vec<u8>)) -> Served {
    serve_agreed(fs, 0, negative, message)
}

/// By a kernel with which these flags were agreed.
fn serve_agreed(
    fs: Noting,
    flags: u64,
    negative: u64,
    (header, message): (InHeader, Vec<u8>),
) -> Served {
    let (fs, hour) = (Arc::new(fs), Duration::from_secs(3600));
    let validity = Validity {
        entry: hour,
        negative: Duration::from_secs(negative),
        attr: hour,
    };
    let mut payload = vec![0xee; 8192];
    let adapter = Adapter::new(Arc::clone(&fs), validity);
    adapter.agree(&MountInfo::agreed(flags));
    let answer = adapter.handle(&header, &message, &mut payload);
    let (asked, requests) = (fs.asked.lock().clone(), fs.requests.lock().clone());
    Served {
        answer,
        asked,
        requests,
        payload,
    }
}

fn serve(kind: u32, head: &(impl IntoBytes + Immutable), tail: &[u8]) -> Served {
    serve_on(Noting::default(), 3600, message(kind, head, tail))
}

#[test]
fn every_change_of_names_is_passed_on_whole() {
    let create = CreateIn {
        flags: 0o2,
        mode: 0o100_666,
        umask: 0o27,
        open_flags: 0,
    };
    let expected = [
        (serve(opcode::LOOKUP, &[0u8; 0], b"n\0"), "lookup 9 n"),
        (serve(opcode::UNLINK, &[0u8; 0], b"n\0"), "unlink 9 n"),
        (serve(opcode::RMDIR, &[0u8; 0], b"n\0"), "rmdir 9 n"),
        (
            serve(opcode::SYMLINK, &[0u8; 0], b"n\0t/u\0"),
            "symlink 9 n t/u",
        ),
        (
            serve(opcode::LINK, &LinkIn { oldnodeid: 4 }, b"n\0"),
            "link 4 9 n",
        ),
        (
            serve(opcode::RENAME, &RenameIn { newdir: 4 }, b"a\0b\0"),
            "rename 9 a 4 b 0",
        ),
        (
            serve(
                opcode::RENAME2,
                &Rename2In {
                    newdir: 4,
                    flags: 2,
                    padding: 0,
                },
                b"a\0b\0",
            ),
            "rename 9 a 4 b 2",
        ),
        (
            serve(
                opcode::MKNOD,
                &MknodIn {
                    mode: 0o20_600,
                    rdev: 8,
                    umask: 0,
                    padding: 0,
                },
                b"n\0",
            ),
            "mknod 9 n 20600 8",
        ),
        (
            serve(opcode::CREATE, &create, b"n\0"),
            "create 9 n 100666 2",
        ),
        (
            serve(opcode::TMPFILE, &create, b"/\0"),
            "tmpfile 9 100666 2",
        ),
    ];
    for (served, asked) in expected {
        assert_eq!(served.asked, [asked]);
        assert!(
            matches!(served.answer, Answer::Reply(Ok(_))),
            "{asked}: {:?}",
            served.answer
        );
    }
}

#[test]
fn request_carries_number_and_umask() {
    let served = serve(
        opcode::MKDIR,
        &MkdirIn {
            mode: 0o777,
            umask: 0o22,
        },
        b"n\0",
    );
    // The mark of a request sent again is not part of its number.
    assert_eq!(
        served.requests,
        [Request {
            umask: 0o22,
            ..REQUEST
        }]
    );
    assert_eq!(serve(opcode::STATFS, &[0u8; 0], b"").requests, [REQUEST]);
}

#[test]
fn missing_names_are_remembered_or_not() {
    let missing = || Noting {
        fail: Some(libc::ENOENT),
        ..Noting::default()
    };
    let lookup = || message(opcode::LOOKUP, &[0u8; 0], b"n\0");
    let entry: EntryOut = serve_on(missing(), 7, lookup()).payload();
    assert_eq!((entry.nodeid, entry.entry_valid), (0, 7));
    let answer = serve_on(missing(), 0, lookup()).answer;
    assert_eq!(answer, Answer::Reply(Err(Errno(libc::ENOENT))));
    let entry: EntryOut = serve(opcode::LOOKUP, &[0u8; 0], b"n\0").payload();
    assert_eq!(
        (entry.nodeid, entry.entry_valid, entry.attr.mode),
        (5, 3600, 0o100_644)
    );
}

#[test]
fn a_name_that_is_not_to_be_kept_is_not_remembered() {
    let lookup = || message(opcode::LOOKUP, &[0u8; 0], b"not kept\0");
    let entry: EntryOut = serve_on(Noting::default(), 7, lookup()).payload();
    let valid = (entry.entry_valid, entry.entry_valid_nsec, entry.attr_valid);
    assert_eq!((entry.nodeid, valid), (5, (0, 0, 3600)));
    let missing = Noting {
        fail: Some(libc::ENOENT),
        ..Noting::default()
    };
    let answer = serve_on(missing, 7, lookup()).answer;
    assert_eq!(answer, Answer::Reply(Err(Errno(libc::ENOENT))));
}

#[test]
fn forgetting_is_silent() {
    let (header, bytes) = message(opcode::FORGET, &ForgetIn { nlookup: 3 }, b"");
    let served = serve_on(Noting::default(), 0, (header, bytes));
    assert_eq!(
        (served.answer, served.asked),
        (Answer::Silence, vec!["forget 9 3".to_owned()])
    );
    let two = [
        ForgetOne {
            nodeid: 7,
            nlookup: 1,
        },
        ForgetOne {
            nodeid: 8,
            nlookup: 2,
        },
    ];
    let served = serve(
        opcode::BATCH_FORGET,
        &BatchForgetIn { count: 2, dummy: 0 },
        two.as_bytes(),
    );
    assert_eq!(served.answer, Answer::Silence);
    assert_eq!(served.asked, ["forget 7 1", "forget 8 2"]);
    // One that promises more than it holds is not read past its end.
    let served = serve(
        opcode::BATCH_FORGET,
        &BatchForgetIn { count: 9, dummy: 0 },
        b"",
    );
    assert_eq!((served.answer, served.asked.len()), (Answer::Silence, 0));
}

#[test]
fn the_first_request_that_is_not_sent_again_says_that_those_have_been_read() {
    let said = |kind: u32, mark: u64| {
        let (header, bytes) = message(kind, &ForgetIn { nlookup: 1 }, b"");
        let unique = header.unique & !UNIQUE_RESENT | mark;
        let header = InHeader { unique, ..header };
        let asked = serve_on(Noting::default(), 0, (header, bytes)).asked;
        asked.contains(&"resent are read".to_owned())
    };
    assert!(said(opcode::STATFS, 0));
    assert!(!said(opcode::STATFS, UNIQUE_RESENT));
    // These pass the others in the queue.
    assert!(!said(opcode::FORGET, 0) && !said(opcode::INTERRUPT, 0));
}

#[test]
fn data_and_how_it_is_written() {
    let read = ReadIn {
        offset: 11,
        size: 100,
        ..ReadIn::default()
    };
    let served = serve(opcode::READ, &read, b"");
    assert_eq!(served.answer, Answer::Reply(Ok(3)));
    assert_eq!(
        (&served.payload[..3], &served.asked[0][..]),
        (&b"abc"[..], "read 9 11 100")
    );

    let write = WriteIn {
        offset: 11,
        size: 3,
        write_flags: 4,
        flags: (libc::O_APPEND | libc::O_DSYNC) as u32,
        ..WriteIn::default()
    };
    let served = serve(opcode::WRITE, &write, b"xyz");
    assert_eq!(served.payload::<WriteOut>().size, 3);
    let how = WriteFlags {
        kill_suidgid: true,
        append: true,
        sync: true,
    };
    assert_eq!(served.asked, [format!("write 9 11 xyz {how:?}")]);
    // Dirty pages have their place already.
    let flags = WriteIn {
        write_flags: 5,
        ..write
    };
    let served = serve(opcode::WRITE, &flags, b"xyz");
    let how = WriteFlags {
        append: false,
        ..how
    };
    assert!(served.requests[0].from_cache);
    assert_eq!(served.asked, [format!("write 9 11 xyz {how:?}")]);
    let short = serve(opcode::WRITE, &WriteIn { size: 4, ..write }, b"xyz");
    assert_eq!(short.answer, Answer::Reply(Err(Errno(libc::EINVAL))));
}

#[test]
fn pages_are_filled_left_or_passed() {
    fn pages(kind: u32, head: &(impl IntoBytes + Immutable)) -> CacheEffect {
        let (header, message) = message(kind, head, b"");
        CacheEffect::of(&header, &message, false)
    }
    let passes = |ino, offset, bytes| CacheEffect::Passes {
        ino,
        offset,
        bytes,
        tells: false,
    };
    let read = |flags: i32| ReadIn {
        offset: 100,
        size: 7,
        flags: flags as u32,
        ..ReadIn::default()
    };
    let write = |flags: i32, write_flags| WriteIn {
        offset: 100,
        size: 7,
        flags: flags as u32,
        write_flags,
        ..WriteIn::default()
    };
    let of_read = |flags| pages(opcode::READ, &read(flags));
    let (offset, bytes) = (100, 7);
    let fills = CacheEffect::Fills { offset, bytes };
    assert_eq!(of_read(libc::O_RDWR), fills);
    assert_eq!(of_read(libc::O_DIRECT), CacheEffect::Leaves);
    let of_write = |flags, how| pages(opcode::WRITE, &write(flags, how));
    let stored = CacheEffect::Stored { offset, bytes };
    assert_eq!(of_write(libc::O_APPEND, 0), stored);
    assert_eq!(
        of_write(libc::O_APPEND, 1),
        CacheEffect::Leaves,
        "from a mapping"
    );
    assert_eq!(
        of_write(libc::O_DIRECT | libc::O_RDWR, 0),
        passes(9, 100, 7)
    );
    assert_eq!(of_write(libc::O_DIRECT, 1), CacheEffect::Leaves);
    let hole = FallocateIn {
        offset: 100,
        length: 7,
        ..FallocateIn::default()
    };
    let of_hole = pages(opcode::FALLOCATE, &hole);
    assert_eq!(of_hole, passes(9, 100, i64::MAX as u64 - 100));
    let copy = CopyFileRangeIn {
        nodeid_out: 11,
        off_out: 100,
        len: 7,
        ..CopyFileRangeIn::default()
    };
    let of_copy = pages(opcode::COPY_FILE_RANGE, &copy);
    assert_eq!(of_copy, passes(11, 100, 7));
    assert_eq!(
        pages(opcode::WRITE, &[1u8; 5]),
        CacheEffect::Leaves,
        "too short"
    );
}

#[test]
fn listing_stops_at_the_first_entry_that_does_not_fit() {
    // Names of 1, 8 and 9 bytes take 32, 32 and 40 bytes.
    let listing = |size| {
        serve(
            opcode::READDIR,
            &ReadIn {
                offset: 4,
                size,
                ..ReadIn::default()
            },
            b"",
        )
    };
    for (size, bytes, taken) in [
        (31, 0, 0),
        (32, 32, 1),
        (103, 64, 2),
        (104, 104, 3),
        (200, 136, 4),
    ] {
        let served = listing(size);
        assert_eq!(served.answer, Answer::Reply(Ok(bytes)), "{size}");
        assert_eq!(served.asked, [format!("readdir 9 4 false took {taken}")]);
    }
    let served = listing(200);
    let (entry, _) = Dirent::read_from_prefix(&served.payload[64..]).unwrap();
    assert_eq!(
        (entry.off, entry.namelen, entry.kind),
        (77, 9, u32::from(libc::DT_LNK))
    );
    assert_eq!(&served.payload[88..104], b"123456789\0\0\0\0\0\0\0");

    let plus = ReadIn {
        size: 4096,
        ..ReadIn::default()
    };
    let served = serve(opcode::READDIRPLUS, &plus, b"");
    assert_eq!(
        served.answer,
        Answer::Reply(Ok(136 + 4 * size_of::<EntryOut>()))
    );
    let inode = |at: usize| {
        EntryOut::read_from_prefix(&served.payload[at..])
            .unwrap()
            .0
            .nodeid
    };
    // The kernel would count no reference for a dot.
    assert_eq!((inode(0), inode(size_of::<EntryOut>() + 32)), (0, 5));
}

#[test]
fn what_is_not_known_is_said_to_be_so() {
    for kind in [14, 25, 31, 32, 33, 34, 36, 37, 40, 48, 4096] {
        let answer = serve(kind, &[0u8; 64], b"").answer;
        assert_eq!(answer, Answer::Reply(Err(Errno(libc::ENOSYS))), "{kind}");
    }
    for kind in [opcode::RELEASE, opcode::RELEASEDIR, opcode::DESTROY] {
        assert_eq!(serve(kind, &[0u8; 24], b"").answer, Answer::Reply(Ok(0)));
    }
    let opened = serve(opcode::OPENDIR, &[0u8; 8], b"");
    assert_eq!(opened.answer, Answer::Reply(Ok(size_of::<OpenOut>())));
    let kept = &opened.payload[..size_of::<OpenOut>()];
    assert!(kept.iter().all(|&b| b == 0), "{kept:?}");
}

#[test]
fn malformed_messages_and_errors_out_of_range() {
    for (kind, head) in [
        (opcode::LOOKUP, 0),
        (opcode::SETATTR, 87),
        (opcode::CREATE, 15),
    ] {
        let answer = serve(kind, &[0u8; 0], &vec![1u8; head]).answer;
        assert_eq!(answer, Answer::Reply(Err(Errno(libc::EINVAL))), "{kind}");
    }
    for (given, wire) in [(libc::EROFS, libc::EROFS), (0, libc::EIO), (512, libc::EIO)] {
        let fs = Noting {
            fail: Some(given),
            ..Noting::default()
        };
        let answer = serve_on(fs, 0, message(opcode::STATFS, &[0u8; 0], b"")).answer;
        assert_eq!(answer, Answer::Reply(Err(Errno(wire))));
    }
}

#[test]
fn extensions_are_no_part_of_the_body() {
    let (mut header, bytes) = message(opcode::SYMLINK, &[0u8; 0], b"n\0t\0\x20\0\0\0\x01\0\0\0");
    header.total_extlen = 1;
    let served = serve_on(Noting::default(), 0, (header, bytes));
    assert_eq!(served.asked, ["symlink 9 n t"]);
}

#[test]
fn acls_are_refused_before_they_are_stored() {
    let set = |name: &[u8]| serve(opcode::SETXATTR, &SetxattrIn { size: 1, flags: 2 }, name);
    let refused = set(b"system.posix_acl_access\0v");
    assert_eq!(refused.answer, Answer::Reply(Err(Errno(libc::EOPNOTSUPP))));
    assert!(refused.asked.is_empty());
    assert_eq!(set(b"user.a\0v").asked, ["setxattr 9 user.a v 2"]);
}

/// One name of an attribute is a call that moves what is behind a range: with and without what a kernel that obeys
/// access control lists puts in front of the name.
#[test]
fn a_range_that_moves_is_found_whatever_is_in_front_of_its_name() {
    let call = RangeCall {
        mode: libc::FALLOC_FL_COLLAPSE_RANGE as u32,
        offset: 4096,
        bytes: 8192,
    };
    let value = call.to_bytes();
    let rest = [mounts::RANGE.as_bytes(), b"\0", &value[..]].concat();
    let (short, long) = ([value.len() as u32, 0], [value.len() as u32, 0, 0, 0]);
    let passes = CacheEffect::Passes {
        ino: 9,
        offset: 4096,
        bytes: i64::MAX as u64 - 4096,
        tells: true,
    };
    let (header, message_of_old) = message(opcode::SETXATTR, &short, &rest);
    assert_eq!(CacheEffect::of(&header, &message_of_old, false), passes);
    let (header, message_of_new) = message(opcode::SETXATTR, &long, &rest);
    assert_eq!(CacheEffect::of(&header, &message_of_new, true), passes);
    let (header, other) = message(opcode::SETXATTR, &long, b"user.a\0v");
    assert_eq!(CacheEffect::of(&header, &other, true), CacheEffect::Leaves);
}

#[test]
fn acls_that_the_kernel_obeys_are_set() {
    const OF_A_KERNEL: u64 = 1 << 20 | 1 << 29;
    let set = |setxattr_flags, name: &[u8]| {
        // Size and flags, and what is behind them now.
        let head: [u32; 4] = [1, 2, setxattr_flags, 0];
        let message = message(opcode::SETXATTR, &head, name);
        serve_agreed(Noting::default(), OF_A_KERNEL, 0, message)
    };
    let name = b"system.posix_acl_access\0v";
    assert_eq!(
        set(0, name).asked,
        ["set_acl 9 system.posix_acl_access v false"]
    );
    assert_eq!(
        set(1, name).asked,
        ["set_acl 9 system.posix_acl_access v true"]
    );
    assert_eq!(set(0, b"user.a\0v").asked, ["setxattr 9 user.a v 2"]);
}
