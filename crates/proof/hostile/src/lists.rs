//! Access control lists: what they forbid where the mode would allow it, and lists that their user may not set or that cannot be.

use super::attacker::*;
use super::steps::{of_root, one, write_after};
use super::{Case, Scene, harmless, refused};
use shale_format::limits::ACL_BYTES_MAX;
use shale_format::record::{Kind, XattrBody, attr};
use shale_model::acl::{ACCESS, DEFAULT};
use shale_proto::Reply;
use zerocopy::IntoBytes;

const LISTS_OF_OTHERS: &str = "set by another user than the owner";

/// A list in which owner, group and others may read and write, Mallory what is said, and the mask allows all.
pub fn list(mallory: u8) -> Vec<u8> {
    let all = [
        (1, 6, u32::MAX),
        (2, mallory, MALLORY),
        (4, 7, u32::MAX),
        (16, 7, u32::MAX),
        (32, 7, u32::MAX),
    ];
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, may, id) in all {
        bytes.extend([tag, 0, may, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn removed(ino: u64, name: &[u8]) -> Raw {
    let body = XattrBody {
        value_bytes: 0,
        name_bytes: name.len() as u16,
        reserved: 0,
    };
    Raw::new(Kind::RemoveXattr, ino, 0, body.as_bytes(), name).reserve(8192)
}

fn own(scene: &Scene<'_>, name: &[u8], value: &[u8]) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.append(set_xattr(ino, name, value));
    let reply = a.digest();
    (a, reply)
}

/// Root's file, which Mallory may write; the list that is set then does not let her any more, or does.
fn after(scene: &Scene<'_>, mallory: u8, opened: bool) -> (Attacker, Reply) {
    let (root, ino) = of_root(scene, "listed", 0o662);
    let change = set_xattr(ino, ACCESS, &list(mallory));
    let (a, reply) = write_after(scene, (root, ino), change, opened);
    let wrote = matches!(reply, Reply::Digested { .. });
    let expected: &[u8] = if wrote { b"wrotes" } else { b"root's" };
    assert_eq!(scene.stage.content(ino).unwrap(), expected);
    assert_eq!(scene.stage.inode(ino).unwrap().mode, 0o100_677);
    (a, reply)
}

/// The mode of the own file says afterwards what its list says, whatever the log says.
fn mode_and_list(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.append(set_xattr(ino, ACCESS, &list(4)));
    a.append(set_attr(ino, |b| {
        b.valid = attr::MODE;
        b.mode = 0o640;
    }));
    let reply = a.digest();
    let inode = scene.stage.inode(ino).unwrap();
    let attrs = scene.stage.daemon.volume().view().xattrs(&inode).unwrap();
    let mut expected = list(4);
    (expected[6], expected[30], expected[38]) = (6, 4, 0);
    assert_eq!(attrs[ACCESS], expected);
    assert_eq!(inode.mode, 0o100_640);
    (a, reply)
}

pub const CASES: &[Case] = &[
    refused(
        "write that a list forbids",
        |s| {
            let ino = s.stage.things.listed;
            one(s, &[ino], write(ino, 0, b"x"))
        },
        "no permission to write the file",
    ),
    refused(
        "made in a directory whose list forbids it",
        |s| {
            let mut a = s.attacker();
            let dir = s.stage.things.listed_dir;
            a.take(dir);
            let ino = a.number();
            a.append(create(dir, ino, 0o100_644, s.name("x").as_bytes()));
            let reply = a.digest();
            (a, reply)
        },
        "no permission to write the directory",
    ),
    refused(
        "unlink in a directory whose list forbids it",
        |s| {
            let (dir, ino) = (s.stage.things.listed_dir, s.stage.things.listed_in);
            one(s, &[dir, ino], unlink(dir, ino, 8, b"in"))
        },
        "no permission to write the directory",
    ),
    refused(
        "attribute that a list forbids",
        |s| {
            let ino = s.stage.things.listed;
            one(s, &[ino], set_xattr(ino, b"user.x", b"1"))
        },
        "attributes",
    ),
    refused(
        "list of another's file",
        |s| {
            let ino = s.stage.things.suid;
            one(s, &[ino], set_xattr(ino, ACCESS, &list(7)))
        },
        LISTS_OF_OTHERS,
    ),
    refused(
        "list of the file that it forbids",
        |s| {
            let ino = s.stage.things.listed;
            one(s, &[ino], set_xattr(ino, ACCESS, &list(7)))
        },
        LISTS_OF_OTHERS,
    ),
    refused(
        "list of another's file taken away",
        |s| {
            let ino = s.stage.things.listed;
            one(s, &[ino], removed(ino, ACCESS))
        },
        LISTS_OF_OTHERS,
    ),
    refused(
        "default list of another's directory",
        |s| {
            let ino = s.stage.things.sticky;
            one(s, &[ino], set_xattr(ino, DEFAULT, &list(7)))
        },
        LISTS_OF_OTHERS,
    ),
    refused(
        "default list of a file",
        |s| own(s, DEFAULT, &list(7)),
        "what is no directory",
    ),
    refused(
        "list without others",
        |s| own(s, ACCESS, &list(7)[..36]),
        "not complete",
    ),
    refused(
        "list of a strange version",
        |s| own(s, ACCESS, b"\x09\0\0\0"),
        "version 9",
    ),
    refused(
        "list without an end",
        |s| own(s, ACCESS, &vec![2; ACL_BYTES_MAX + 8]),
        "at most",
    ),
    refused(
        "list of garbage",
        |s| own(s, ACCESS, b"\x02\0\0\0garbage!"),
        "no access control list",
    ),
    refused(
        "opened after a list",
        |s| after(s, 4, false),
        "no permission to write the file",
    ),
    harmless("opened before a list", |s| after(s, 4, true)),
    harmless("write that a list lets", |s| after(s, 6, false)),
    harmless("mode beside a list", mode_and_list),
];
