//! Records that would make the tree of names something else than a tree.

use super::attacker::*;
use super::{Case, Scene, either, harmless, refused};
use shale_format::limits::LINKS_MAX;
use shale_format::record::flag;
use shale_proto::{Reply, Request};

fn named(scene: &Scene<'_>, name: &[u8]) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.take(1);
    let ino = a.number();
    a.append(create(1, ino, 0o100_644, name));
    let reply = a.digest();
    (a, reply)
}

/// An own file and directory, then what `make` adds.
fn with(scene: &Scene<'_>, make: impl Fn(u64, u64, &str) -> Vec<Raw>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let (f, d) = (scene.name("f"), scene.name("d"));
    let file = a.make(1, &f, b"mine");
    let dir = a.mkdir(1, &d);
    for raw in make(file, dir, &scene.tag) {
        a.append(raw);
    }
    let reply = a.digest();
    assert_eq!(scene.stage.content(file).unwrap(), b"mine");
    (a, reply)
}

fn name(tag: &str, of: &str) -> Vec<u8> {
    format!("m-{tag}-{of}").into_bytes()
}

fn not_utf8(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut bytes = name(&scene.tag, "");
    bytes.extend([0xff, 0xfe, b'\n', 0x80]);
    named(scene, &bytes)
}

/// Two directories, one moved below the other and then the other way round.
fn cycle(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let (one, other) = (scene.name("a"), scene.name("b"));
    let x = a.mkdir(1, &one);
    let y = a.mkdir(1, &other);
    a.append(rename((1, one.as_bytes()), (x, DIR), (y, b"x"), (0, 0), 0));
    a.append(rename(
        (1, other.as_bytes()),
        (y, DIR),
        (x, b"y"),
        (0, 0),
        0,
    ));
    let reply = a.digest();
    (a, reply)
}

/// The same by two clients at once, each with all leases it needs.
fn cycle_of_two(scene: &Scene<'_>) -> (Attacker, Reply) {
    let times = if scene.alone { 40 } else { 2 };
    for n in 1..times {
        cross(scene, n);
    }
    cross(scene, 0)
}

fn cross(scene: &Scene<'_>, n: usize) -> (Attacker, Reply) {
    let mut made = scene.attacker();
    let (p, q) = (scene.name(&format!("p{n}")), scene.name(&format!("q{n}")));
    let (p, q) = (made.mkdir(1, &p), made.mkdir(1, &q));
    let (x, y) = (made.mkdir(p, "x"), made.mkdir(q, "y"));
    let (deep_x, deep_y) = (made.mkdir(x, "deep"), made.mkdir(y, "deep"));
    assert!(matches!(made.digest(), Reply::Digested { .. }));
    let (mut a, mut b) = (scene.attacker(), scene.attacker());
    [p, x, deep_y].iter().for_each(|&ino| a.take(ino));
    [q, y, deep_x].iter().for_each(|&ino| b.take(ino));
    a.append(rename((p, b"x"), (x, DIR), (deep_y, b"x"), (0, 0), 0));
    b.append(rename((q, b"y"), (y, DIR), (deep_x, b"y"), (0, 0), 0));
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| a.digest());
        (b.digest(), one.join().unwrap())
    });
    let stopped = |r: &Reply| matches!(r, Reply::Refused { .. });
    assert!(stopped(&one) != stopped(&other), "{one:?} {other:?}");
    (a, other)
}

fn too_many_names(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"x");
    let dir = a.mkdir(1, &scene.name("d"));
    a.ask(Request::Reserve {
        wanted: 8 << 20,
        least: 6 << 20,
    });
    for n in 0..u64::from(LINKS_MAX) {
        a.put(link(dir, ino, FILE, format!("{n}").as_bytes()).reserve(64));
    }
    a.commit();
    let reply = a.digest();
    assert_eq!(scene.stage.inode(ino).unwrap().nlink, LINKS_MAX);
    (a, reply)
}

/// Removes the root directory by its own name.
fn named_one(scene: &Scene<'_>, ino: u64, kind: u8) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.take(1);
    let raw = unlink(1, ino, kind, b"mine").flags(flag::DIRECTORY | flag::FREE_NOW);
    a.append(raw);
    let reply = a.digest();
    (a, reply)
}

fn in_removed(scene: &Scene<'_>, free: bool) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let d = scene.name("d");
    let dir = a.mkdir(1, &d);
    let flags = flag::DIRECTORY | if free { flag::FREE_NOW } else { 0 };
    a.append(unlink(1, dir, DIR, d.as_bytes()).flags(flags));
    let ino = a.number();
    a.append(create(dir, ino, 0o100_644, b"x"));
    let reply = a.digest();
    assert!(scene.stage.inode(ino).is_none());
    (a, reply)
}

fn moded(scene: &Scene<'_>, mode: u32, target: &[u8]) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.take(1);
    let ino = a.number();
    let ids = (MALLORY, MALLORY);
    a.append(create_as(
        1,
        ino,
        mode,
        ids,
        scene.name("x").as_bytes(),
        target,
    ));
    let reply = a.digest();
    (a, reply)
}

fn type_stays(scene: &Scene<'_>) -> (Attacker, Reply) {
    with(scene, |f, _, _| {
        vec![set_attr(f, |b| {
            b.valid = 1;
            b.mode = 0o040_777;
        })]
    })
}

pub const CASES: &[Case] = &[
    refused("name with a slash", |s| named(s, b"m-/x"), "name"),
    refused("name with NUL", |s| named(s, b"m-\0x"), "name"),
    refused("empty name", |s| named(s, b""), "name"),
    refused("dot", |s| named(s, b"."), "name"),
    refused("dot dot", |s| named(s, b".."), "name"),
    refused("name of 256 bytes", |s| named(s, &[b'm'; 256]), "name"),
    harmless("name that is no UTF-8", not_utf8),
    refused(
        "duplicate name",
        |s| with(s, |f, _, t| vec![link(1, f, FILE, &name(t, "f"))]),
        "the name exists",
    ),
    refused(
        "twin out of range",
        |s| {
            with(s, |f, _, t| {
                let mut raw = link(1, f, FILE, &name(t, "g"));
                raw.body[2] = 64;
                vec![raw]
            })
        },
        "above 63",
    ),
    refused(
        "entry for a free inode",
        |s| with(s, |_, d, _| vec![link(d, (1 << 40) + 7, FILE, b"g")]),
        "does not exist",
    ),
    refused(
        "entry for inode 0",
        |s| with(s, |_, d, _| vec![link(d, 0, FILE, b"g")]),
        "ino",
    ),
    refused(
        "entry for the orphans",
        |s| with(s, |_, d, _| vec![link(d, 2, DIR, b"g")]),
        "ino",
    ),
    refused(
        "entry out of range",
        |s| with(s, |_, d, _| vec![link(d, 1 << 60, FILE, b"g")]),
        "ino",
    ),
    refused(
        "link to the root",
        |s| with(s, |_, d, _| vec![link(d, 1, DIR, b"g")]),
        "hard link to a directory",
    ),
    refused(
        "link to a directory",
        |s| with(s, |_, d, t| vec![link(1, d, DIR, &name(t, "g"))]),
        "hard link to a directory",
    ),
    refused(
        "link of another type",
        |s| with(s, |f, d, _| vec![link(d, f, DIR, b"g")]),
        "type",
    ),
    refused(
        "below itself",
        |s| {
            with(s, |_, d, t| {
                vec![rename((1, &name(t, "d")), (d, DIR), (d, b"x"), (0, 0), 0)]
            })
        },
        "below itself",
    ),
    refused("cycle", cycle, "below itself"),
    either("cycle of two clients", cycle_of_two),
    refused(
        "root renamed",
        |s| {
            with(s, |_, d, t| {
                vec![rename((1, &name(t, "d")), (1, DIR), (d, b"x"), (0, 0), 0)]
            })
        },
        "another inode",
    ),
    refused(
        "rename to what is another inode",
        |s| {
            with(s, |f, d, t| {
                let (f_name, d_name) = (name(t, "f"), name(t, "d"));
                vec![rename(
                    (1, &f_name),
                    (f, FILE),
                    (1, &d_name),
                    (d + 1, DIR),
                    0,
                )]
            })
        },
        "another inode",
    ),
    refused(
        "file over a directory",
        |s| {
            with(s, |f, d, t| {
                let (f_name, d_name) = (name(t, "f"), name(t, "d"));
                vec![rename((1, &f_name), (f, FILE), (1, &d_name), (d, DIR), 0)]
            })
        },
        "cannot replace",
    ),
    refused(
        "rename flags",
        |s| {
            with(s, |f, d, t| {
                vec![rename((1, &name(t, "f")), (f, FILE), (d, b"x"), (0, 0), 4)]
            })
        },
        "flags",
    ),
    refused(
        "exchange with nothing",
        |s| {
            with(s, |f, d, t| {
                vec![rename((1, &name(t, "f")), (f, FILE), (d, b"x"), (0, 0), 2)]
            })
        },
        "flags",
    ),
    refused(
        "rmdir of a full one",
        |s| {
            with(s, |f, d, t| {
                vec![
                    link(d, f, FILE, b"g"),
                    unlink(1, d, DIR, &name(t, "d")).flags(flag::DIRECTORY),
                ]
            })
        },
        "not empty",
    ),
    refused(
        "unlink of a directory",
        |s| with(s, |_, d, t| vec![unlink(1, d, DIR, &name(t, "d"))]),
        "type",
    ),
    refused(
        "name lost twice",
        |s| {
            with(s, |f, d, _| {
                vec![
                    link(d, f, FILE, b"g"),
                    unlink(d, f, FILE, b"g"),
                    unlink(d, f, FILE, b"g"),
                ]
            })
        },
        "no such entry",
    ),
    refused("too many names", too_many_names, "too many names"),
    refused("root removed", |s| named_one(s, 1, DIR), "another inode"),
    refused(
        "root cut",
        |s| with(s, |_, _, _| vec![truncate(1, 0)]),
        "not a regular file",
    ),
    refused(
        "entry in a removed directory",
        |s| in_removed(s, false),
        "removed",
    ),
    refused(
        "entry in a freed directory",
        |s| in_removed(s, true),
        "does not exist",
    ),
    harmless("type changed by mode", type_stays),
    refused("mode of all bits", |s| moded(s, u32::MAX, b""), "mode"),
    refused("no type", |s| moded(s, 0o644, b""), "mode"),
    refused(
        "link without a target",
        |s| moded(s, 0o120_777, b""),
        "target",
    ),
    refused(
        "file with a target",
        |s| moded(s, 0o100_644, b"x"),
        "target",
    ),
    refused(
        "target with NUL",
        |s| moded(s, 0o120_777, b"a\0b"),
        "target",
    ),
    refused(
        "target too long",
        |s| moded(s, 0o120_777, &[b'x'; 4096]),
        "target",
    ),
    refused(
        "inode made twice",
        |s| with(s, |f, d, _| vec![create(d, f, 0o100_644, b"x")]),
        "in use",
    ),
    refused(
        "root made",
        |s| with(s, |_, d, _| vec![create(d, 1, 0o040_755, b"x")]),
        "no user",
    ),
    refused(
        "free of what has a name",
        |s| with(s, |f, _, _| vec![free(f)]),
        "still has a name",
    ),
    refused(
        "free of nothing",
        |s| with(s, |f, _, _| vec![free(f + (1 << 41))]),
        "not exist",
    ),
    refused(
        "write to a directory",
        |s| with(s, |_, d, _| vec![write(d, 0, b"x")]),
        "not a regular",
    ),
    refused(
        "directory cut",
        |s| with(s, |_, d, _| vec![truncate(d, 0)]),
        "not a regular",
    ),
    refused(
        "entry in a file",
        |s| with(s, |f, _, _| vec![create(f, f, 0o100_644, b"x")]),
        "in use",
    ),
    refused(
        "fallocate of nothing",
        |s| with(s, |f, _, _| vec![fallocate(f, 0, 0, 0)]),
        "bytes",
    ),
    refused(
        "fallocate mode",
        |s| with(s, |f, _, _| vec![fallocate(f, 0, 9, 64)]),
        "mode",
    ),
    refused(
        "punch that grows",
        |s| with(s, |f, _, _| vec![fallocate(f, 0, 9, 2)]),
        "mode",
    ),
    refused(
        "collapse of parts",
        |s| with(s, |f, _, _| vec![fallocate(f, 1, 4096, 8)]),
        "parts of blocks",
    ),
    refused(
        "insert behind the largest file",
        |s| with(s, |f, _, _| vec![fallocate(f, 0, 16 << 40, 32)]),
        "largest file",
    ),
    refused(
        "attribute without a name",
        |s| with(s, |f, _, _| vec![set_xattr(f, b"", b"x")]),
        "name",
    ),
    refused(
        "attribute name with NUL",
        |s| with(s, |f, _, _| vec![set_xattr(f, b"user.\0", b"x")]),
        "name",
    ),
    refused(
        "attribute too long",
        |s| with(s, |f, _, _| vec![set_xattr(f, b"user.x", &[1; 65537])]),
        "value",
    ),
    refused(
        "attributes too long together",
        |s| {
            with(s, |f, _, _| {
                let some = (0..3).map(|n| set_xattr(f, &[b'u', n + 1], &[1; 65536]));
                some.collect()
            })
        },
        "too long together",
    ),
];
