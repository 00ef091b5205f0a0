//! Records of what their user may not do, or may not do any more.

use super::attacker::*;
use super::served::{Place, start};
use super::steps::{of_root, one, write_after};
use super::{Case, Scene, harmless, refused};
use shale_format::limits::LOG_BYTES_MIN;
use shale_format::record::{attr, flag};
use shale_format::xattr::CAPABILITY;
use shale_format::{FileBlock, Ino, TierId};
use shale_pool::DeviceKind;
use shale_pool::volume_file::DeviceFile;
use shale_proto::shared_pages::client_page;
use shale_proto::{LeaseMode, Reply, Request};
use shale_volume::Mapping;
use std::io::Read;
use std::time::{Duration, Instant};

fn in_dir(scene: &Scene<'_>, dir: u64, mode: u32, ids: (u32, u32)) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    a.take(dir);
    let ino = a.number();
    a.append(create_as(
        dir,
        ino,
        mode,
        ids,
        scene.name("x").as_bytes(),
        b"",
    ));
    let reply = a.digest();
    (a, reply)
}

fn expired(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.digest();
    let b = scene.attacker();
    b.take(ino);
    a.append(write(ino, 0, b"late"));
    let reply = a.digest();
    assert_eq!(scene.stage.content(ino).unwrap(), b"mine");
    (a, reply)
}

fn read_lease(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.digest();
    let b = scene.attacker();
    b.lease(Ino(ino), LeaseMode::Shared);
    a.append(write(ino, 0, b"late"));
    let reply = a.digest();
    (a, reply)
}

fn set_id_after_write(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (_root, ino) = of_root(scene, "suid", 0o6777);
    let (a, reply) = one(scene, &[ino], write(ino, 0, b"evil"));
    let inode = scene.stage.inode(ino).unwrap();
    assert_eq!(inode.mode & 0o7777, 0o777, "no set-id outlives the write");
    (a, reply)
}

/// Nor a capability, nor set-group-id of what the group, in which the writer is not, may not execute.
fn capability_after_write(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut root, ino) = of_root(scene, "capable", 0o2767);
    root.append(set_xattr(ino, CAPABILITY, b"all"));
    root.append(set_xattr(ino, b"user.other", b"stays"));
    assert!(matches!(root.digest(), Reply::Digested { .. }));
    let (a, reply) = one(scene, &[ino], write(ino, 0, b"evil"));
    let inode = scene.stage.inode(ino).unwrap();
    let left = scene.stage.daemon.volume().view().xattrs(&inode).unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), [b"user.other"]);
    assert_eq!(inode.mode & 0o7777, 0o767);
    (a, reply)
}

/// A file that the user could write when it was opened; and one opened too late.
fn after_chmod(scene: &Scene<'_>, opened: bool) -> (Attacker, Reply) {
    let (root, ino) = of_root(scene, "open", 0o666);
    let change = set_attr(ino, |b| {
        b.valid = attr::MODE;
        b.mode = 0o600;
    });
    let (a, reply) = write_after(scene, (root, ino), change, opened);
    let expected = if opened { b"wrotes" } else { b"root's" };
    assert_eq!(scene.stage.content(ino).unwrap(), expected);
    (a, reply)
}

fn number_of_another(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, mut b) = (scene.attacker(), scene.attacker());
    a.take(1);
    let ino = b.number();
    a.append(create(1, ino, 0o100_644, scene.name("x").as_bytes()));
    let reply = a.digest();
    (a, reply)
}

/// Names of an inode change only under a lease on it: its holder goes on with what it knows.
fn child_without_lease(scene: &Scene<'_>, raw: fn(u64, &str) -> Raw) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let name = scene.name("f");
    let ino = a.make(1, &name, b"mine");
    a.digest();
    let b = scene.attacker();
    b.take(ino);
    a.take(1);
    a.append(raw(ino, &name));
    let reply = a.digest();
    assert_eq!(scene.stage.inode(ino).unwrap().nlink, 1);
    (a, reply)
}

/// An inode that somebody has open is not freed, whatever the record says.
fn freed_in_use(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let name = scene.name("f");
    let ino = a.make(1, &name, b"in use");
    a.digest();
    let b = scene.attacker();
    b.lease(Ino(ino), LeaseMode::Shared);
    b.page.store_u32(client_page::uses(ino), 1);
    a.take(ino);
    a.take(1);
    a.append(unlink(1, ino, FILE, name.as_bytes()).flags(flag::FREE_NOW));
    a.append(free(ino));
    let reply = a.digest();
    if scene.alone {
        assert_eq!(scene.stage.inode(ino).unwrap().nlink, 0);
        assert_eq!(scene.stage.content(ino).unwrap(), b"in use");
    }
    b.page.store_u32(client_page::uses(ino), 0);
    b.take(ino);
    drop(a);
    let mut b = b;
    b.append(free(ino));
    assert!(matches!(b.digest(), Reply::Digested { .. }));
    assert!(scene.stage.inode(ino).is_none());
    (b, reply)
}

fn returned_for_another(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    let data = scene.stage.daemon.volume().superblock().data_block;
    let reply = a.ask(Request::ReturnBlocks {
        runs: vec![shale_proto::message::BlockRun {
            addr: data,
            blocks: 4,
        }],
    });
    assert!(matches!(reply, Reply::Refused { .. }));
    let reply = a.digest();
    (a, reply)
}

fn attrs(valid: u32, set: fn(&mut shale_format::record::SetAttrBody)) -> impl Fn(u64) -> Raw {
    move |ino| {
        set_attr(ino, |b| {
            b.valid = valid;
            set(b);
        })
    }
}

fn own_file(scene: &Scene<'_>, raw: impl Fn(u64) -> Raw) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.append(raw(ino));
    let reply = a.digest();
    (a, reply)
}

fn moved_out(scene: &Scene<'_>) -> (Attacker, Reply) {
    let t = &scene.stage.things;
    let name = scene.name("x");
    let raw = rename(
        (t.sticky, b"stuck"),
        (t.stuck, FILE),
        (t.mine, name.as_bytes()),
        (0, 0),
        0,
    );
    one(scene, &[t.sticky, t.stuck, t.mine], raw)
}

/// A directory that its mover may not write gets no other parent.
fn moved_directory(scene: &Scene<'_>) -> (Attacker, Reply) {
    let t = &scene.stage.things;
    let name = scene.name("x");
    let raw = rename(
        (1, b"closed"),
        (t.closed, DIR),
        (t.mine, name.as_bytes()),
        (0, 0),
        0,
    );
    one(scene, &[1, t.closed, t.mine], raw)
}

fn over_sticky(scene: &Scene<'_>) -> (Attacker, Reply) {
    let t = &scene.stage.things;
    let mut a = scene.attacker();
    let name = scene.name("f");
    let ino = a.make(t.mine, &name, b"evil");
    a.take(t.sticky);
    a.take(t.stuck);
    a.append(rename(
        (t.mine, name.as_bytes()),
        (ino, FILE),
        (t.sticky, b"stuck"),
        (t.stuck, FILE),
        0,
    ));
    let reply = a.digest();
    (a, reply)
}

const LEASE: &str = "no lease";
const FLAGS: &str = "an immutable or append-only inode";
const FILE_PERMISSION: &str = "no permission to write the file";
const DIR_PERMISSION: &str = "no permission to write the directory";

/// What a client says that it has read is believed of files that its user may read, and of no others.
fn reported_of_reads(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.attacker();
    if scene.alone {
        reads_of_others();
    }
    let reply = a.digest();
    (a, reply)
}

/// Two files of root's that lie on flash, one of which all may read: which of them is brought back.
fn reads_of_others() {
    let place = Place::with_owner(64, LOG_BYTES_MIN, MALLORY);
    let daemon = start(place.config());
    let flash = DeviceFile {
        path: place.nvm().join("flash.img"),
        size_bytes: 16 << 20,
        zone_bytes: None,
        model: None,
        kind: DeviceKind::Conventional,
        overprovision_percent: None,
    };
    daemon.add_device(TierId::Ssd, &flash, false).unwrap();
    let mut root = Attacker::new(&daemon, &place, 0);
    root.take(1);
    let [open, secret] = [0o100_644, 0o100_600].map(|mode| {
        let ino = root.number();
        let name = format!("{mode:o}");
        root.append(create_as(1, ino, mode, (0, 0), name.as_bytes(), b""));
        root.append(write(ino, 0, &[7; 3 * 4096]));
        ino
    });
    assert!(matches!(root.digest(), Reply::Digested { .. }));
    drop(root);
    daemon.migrate(None).unwrap();
    let tier = |ino| {
        let view = daemon.volume().view();
        let inode = view.inode(Ino(ino)).unwrap().unwrap();
        match view.map_block(&inode, FileBlock(0)).unwrap() {
            Mapping::Data { addr, .. } => addr.tier(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([open, secret].map(tier), [Some(TierId::Ssd); 2]);
    let mallory = Attacker::new(&daemon, &place, MALLORY);
    let begun = Instant::now();
    while tier(open) != Some(TierId::Nvm) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing rises");
        for ino in [secret, open] {
            let read = client_page::Read {
                ino,
                piece: 0,
                below: true,
            };
            let at = client_page::reads(ino, 0);
            mallory.page.store_u64(at, read.word());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(
        tier(secret),
        Some(TierId::Ssd),
        "moved for who may not read it"
    );
    drop(mallory);
    daemon.shutdown().unwrap();
}

/// The token of another client is in nothing that an attacker may read, and none that it makes up opens a file by number.
fn tokens_of_others(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (victim, a) = (scene.stage.same_user(), scene.attacker());
    let (secret, daemon) = (victim.attached.open_token, &scene.stage.daemon);
    let ino = scene.stage.things.secret;
    assert!(daemon.open_token_owner(secret, ino).is_some());
    let own = a.attached.open_token;
    let numbers = [a.attached.client, victim.attached.client].map(u128::from);
    let made_up = [0, 1, u128::MAX, own + 1, own - 1, own ^ 1, !own, secret ^ 1];
    for token in made_up.into_iter().chain(numbers) {
        assert_eq!(daemon.open_token_owner(token, ino), None, "{token:x}");
    }
    // Where one is stored, its words are aligned.
    let tokens = [secret.to_le_bytes(), secret.to_be_bytes()];
    let halves: Vec<&[u8]> = tokens.iter().flat_map(|token| token.chunks(8)).collect();
    let has = |bytes: &[u8]| bytes.chunks_exact(8).any(|word| halves.contains(&word));
    for map in [&a.page, &a.daemon_page, &a.log] {
        let mut bytes = vec![0; map.bytes()];
        map.load(0, &mut bytes);
        assert!(!has(&bytes));
    }
    if scene.alone {
        let (reply, fds) = a.ask_for_fds(Request::Segments { first: 0 });
        assert!(matches!(reply, Reply::Segments { .. }) && !fds.is_empty());
        for fd in fds {
            let mut bytes = Vec::new();
            std::fs::File::from(fd).read_to_end(&mut bytes).unwrap();
            assert!(!bytes.is_empty() && !has(&bytes));
        }
    }
    let Reply::Status(status) = a.ask(Request::Status) else {
        panic!("no status");
    };
    for shown in [format!("{secret:x}"), secret.to_string()] {
        assert!(!status.contains(&shown));
    }
    drop(victim);
    let reply = a.digest();
    (a, reply)
}

pub const CASES: &[Case] = &[
    harmless("tokens of others", tokens_of_others),
    refused(
        "no lease",
        |s| one(s, &[], write(s.stage.things.suid, 0, b"evil")),
        LEASE,
    ),
    refused("expired lease", expired, LEASE),
    refused("read lease", read_lease, LEASE),
    refused(
        "write to 0400",
        |s| {
            one(
                s,
                &[s.stage.things.secret],
                write(s.stage.things.secret, 0, b"evil"),
            )
        },
        FILE_PERMISSION,
    ),
    refused(
        "truncate 0400",
        |s| {
            one(
                s,
                &[s.stage.things.secret],
                truncate(s.stage.things.secret, 0),
            )
        },
        FILE_PERMISSION,
    ),
    refused(
        "punch 0400",
        |s| {
            one(
                s,
                &[s.stage.things.secret],
                fallocate(s.stage.things.secret, 0, 9, 3),
            )
        },
        FILE_PERMISSION,
    ),
    refused(
        "write to 0644",
        |s| {
            one(
                s,
                &[s.stage.things.inside],
                write(s.stage.things.inside, 0, b"evil"),
            )
        },
        FILE_PERMISSION,
    ),
    refused(
        "create in another's directory",
        |s| in_dir(s, s.stage.things.closed, 0o100_644, (MALLORY, MALLORY)),
        DIR_PERMISSION,
    ),
    refused(
        "unlink in another's directory",
        |s| {
            let t = &s.stage.things;
            one(
                s,
                &[t.closed, t.inside],
                unlink(t.closed, t.inside, FILE, b"inside"),
            )
        },
        DIR_PERMISSION,
    ),
    refused(
        "link into another's directory",
        |s| {
            let t = &s.stage.things;
            one(
                s,
                &[t.closed, t.stuck],
                link(t.closed, t.stuck, FILE, b"m-x"),
            )
        },
        DIR_PERMISSION,
    ),
    refused(
        "unlink in a sticky directory",
        |s| {
            let t = &s.stage.things;
            one(
                s,
                &[t.sticky, t.stuck],
                unlink(t.sticky, t.stuck, FILE, b"stuck"),
            )
        },
        "sticky",
    ),
    refused("rename out of a sticky directory", moved_out, "sticky"),
    refused("rename over a sticky entry", over_sticky, "sticky"),
    refused(
        "another's directory moved",
        moved_directory,
        "directory that moves",
    ),
    harmless("own file in a sticky directory", |s| {
        in_dir(s, s.stage.things.sticky, 0o100_644, (MALLORY, MALLORY))
    }),
    refused(
        "chown to root",
        |s| own_file(s, attrs(attr::UID, |b| b.uid = 0)),
        "owner changed",
    ),
    refused(
        "chgrp to root",
        |s| own_file(s, attrs(attr::GID, |b| b.gid = 0)),
        "group changed",
    ),
    refused(
        "another's file chowned",
        |s| {
            let ino = s.stage.things.secret;
            one(s, &[ino], attrs(attr::UID, |b| b.uid = MALLORY)(ino))
        },
        "owner changed",
    ),
    refused(
        "chmod of another's",
        |s| {
            let ino = s.stage.things.secret;
            one(s, &[ino], attrs(attr::MODE, |b| b.mode = 0o666)(ino))
        },
        "mode changed",
    ),
    refused(
        "set-user-id on another's",
        |s| {
            let ino = s.stage.things.stuck;
            one(s, &[ino], attrs(attr::MODE, |b| b.mode = 0o4666)(ino))
        },
        "mode changed",
    ),
    refused(
        "times of another's",
        |s| {
            let ino = s.stage.things.inside;
            one(s, &[ino], attrs(attr::MTIME, |b| b.time_s[1] = 5)(ino))
        },
        "times changed",
    ),
    refused(
        "change time forged",
        |s| own_file(s, attrs(attr::CTIME, |b| b.time_s[2] = 5)),
        "change time",
    ),
    harmless("set-user-id outlives no write", set_id_after_write),
    harmless("a capability outlives no write", capability_after_write),
    refused(
        "made for root",
        |s| in_dir(s, 1, 0o104_755, (0, MALLORY)),
        "made for another user",
    ),
    refused(
        "made for another group",
        |s| in_dir(s, 1, 0o102_755, (MALLORY, 0)),
        "made for a group",
    ),
    refused(
        "a device",
        |s| in_dir(s, 1, 0o060_666, (MALLORY, MALLORY)),
        "device",
    ),
    harmless("a whiteout", |s| {
        in_dir(s, 1, 0o020_000, (MALLORY, MALLORY))
    }),
    refused(
        "made for root, without a name",
        |s| {
            let mut a = s.attacker();
            let ino = a.number();
            a.append(create_as(0, ino, 0o104_755, (0, 0), b"", b""));
            let reply = a.digest();
            (a, reply)
        },
        "made for another user",
    ),
    refused(
        "attribute of root",
        |s| own_file(s, |ino| set_xattr(ino, b"trusted.x", b"1")),
        "only root",
    ),
    refused(
        "attribute of a capability",
        |s| own_file(s, |ino| set_xattr(ino, b"security.capability", b"1")),
        "only root",
    ),
    refused(
        "attribute of another's",
        |s| {
            let ino = s.stage.things.inside;
            one(s, &[ino], set_xattr(ino, b"user.x", b"1"))
        },
        "attributes",
    ),
    harmless("opened before a chmod", |s| after_chmod(s, true)),
    refused(
        "opened after a chmod",
        |s| after_chmod(s, false),
        FILE_PERMISSION,
    ),
    refused(
        "number granted to another",
        number_of_another,
        "not granted",
    ),
    refused(
        "unlink without a lease on the file",
        |s| child_without_lease(s, |ino, name| unlink(1, ino, FILE, name.as_bytes())),
        LEASE,
    ),
    refused(
        "link without a lease on the file",
        |s| child_without_lease(s, |ino, _| link(1, ino, FILE, b"m-other")),
        LEASE,
    ),
    refused(
        "rename without a lease on the file",
        |s| {
            child_without_lease(s, |ino, name| {
                rename(
                    (1, name.as_bytes()),
                    (ino, FILE),
                    (1, b"m-other"),
                    (0, 0),
                    0,
                )
            })
        },
        LEASE,
    ),
    refused(
        "write to an immutable file",
        |s| {
            one(
                s,
                &[s.stage.things.fixed],
                write(s.stage.things.fixed, 99, b"x"),
            )
        },
        FLAGS,
    ),
    refused(
        "write over what is appended only",
        |s| {
            one(
                s,
                &[s.stage.things.grows],
                write(s.stage.things.grows, 0, b"x"),
            )
        },
        FLAGS,
    ),
    refused(
        "truncate of what is appended only",
        |s| {
            one(
                s,
                &[s.stage.things.grows],
                truncate(s.stage.things.grows, 0),
            )
        },
        FLAGS,
    ),
    refused(
        "attribute of an immutable file",
        |s| {
            let ino = s.stage.things.fixed;
            one(s, &[ino], set_xattr(ino, b"user.x", b"1"))
        },
        FLAGS,
    ),
    refused(
        "times of an immutable file",
        |s| {
            let ino = s.stage.things.fixed;
            one(s, &[ino], attrs(attr::MTIME, |b| b.time_s[1] = 5)(ino))
        },
        FLAGS,
    ),
    refused(
        "link to an immutable file",
        |s| {
            let ino = s.stage.things.fixed;
            one(s, &[1, ino], link(1, ino, FILE, s.name("l").as_bytes()))
        },
        FLAGS,
    ),
    refused(
        "unlink of what is appended only",
        |s| {
            let ino = s.stage.things.grows;
            one(s, &[1, ino], unlink(1, ino, FILE, b"grows"))
        },
        FLAGS,
    ),
    refused(
        "made in an immutable directory",
        |s| in_dir(s, s.stage.things.fixed_dir, 0o100_644, (MALLORY, MALLORY)),
        FLAGS,
    ),
    refused(
        "unlink in an immutable directory",
        |s| {
            let (dir, ino) = (s.stage.things.fixed_dir, s.stage.things.fixed_in);
            one(s, &[dir, ino], unlink(dir, ino, FILE, b"in"))
        },
        FLAGS,
    ),
    refused(
        "rename in a directory that names are only added to",
        |s| {
            let (dir, ino) = (s.stage.things.grows_dir, s.stage.things.grows_in);
            let raw = rename((dir, b"in"), (ino, FILE), (dir, b"out"), (0, 0), 0);
            one(s, &[dir, ino], raw)
        },
        FLAGS,
    ),
    refused(
        "flags taken away",
        |s| {
            let ino = s.stage.things.fixed;
            one(s, &[ino], attrs(attr::FLAGS, |b| b.flags = 0)(ino))
        },
        "flags set by",
    ),
    refused(
        "flags of the own file",
        |s| own_file(s, attrs(attr::FLAGS, |b| b.flags = 32)),
        "flags set by",
    ),
    harmless("reads of what may not be read", reported_of_reads),
    harmless("freed while in use", freed_in_use),
    harmless("blocks of another returned", returned_for_another),
];
