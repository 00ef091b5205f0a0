//! Access control lists: the mode follows the list and the list follows the mode, whatever a client's log says; and lists
//! that cannot be are refused.

use super::world::*;
use crate::Mode;
use shale_format::Ino;
use shale_format::acl::{Acl, AclEntry, Who};
use shale_oplog::encode;
use shale_volume::View;
use std::sync::Arc;

fn list(named: bool, mask: u16) -> Vec<u8> {
    let mut all = vec![(Who::Owner, 6)];
    if named {
        all.push((Who::User(1000), 7));
    }
    all.push((Who::OwningGroup, 4));
    if named {
        all.push((Who::Mask, mask));
    }
    all.push((Who::Other, 1));
    let entry = |(who, may)| AclEntry { who, may };
    Acl::new(all.into_iter().map(entry).collect()).encode()
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn world() -> World {
    let mut w = World::new();
    w.create(1, 100, "f", FILE | 0o2600);
    w.create(1, 101, "d", DIR);
    w.symlink(1, 102, "l", "to");
    w.digest();
    w
}

fn has_lists(w: &World) -> bool {
    let head = View::open_head(Arc::clone(w.view().map())).unwrap().0;
    head.superblock().has_posix_acls()
}

fn stored(w: &World, ino: u64) -> (u32, Option<Vec<u8>>) {
    let inode = w.inode(ino).unwrap();
    let attrs = w.view().xattrs(&inode).unwrap();
    (inode.mode & 0o7777, attrs.get(ACCESS.as_bytes()).cloned())
}

#[test]
fn list_and_mode_follow_each_other() {
    for at_once in [true, false] {
        let mut w = world();
        let step = |w: &mut World| {
            if !at_once {
                w.digest();
            }
        };
        assert!(!has_lists(&w));
        w.set_xattr(100, "user.a", b"1");
        step(&mut w);
        w.set_xattr(100, ACCESS, &list(true, 6));
        step(&mut w);
        w.set_xattr(101, DEFAULT, &list(false, 0));
        w.digest();
        assert_eq!(stored(&w, 100), (0o2661, Some(list(true, 6))));
        assert_eq!(stored(&w, 101).1, None, "that is the other list");
        assert!(has_lists(&w));
        w.set_mode(100, 0o640);
        w.digest();
        let expected = Acl::decode(&list(true, 4)).unwrap().with_mode(0o640);
        assert_eq!(stored(&w, 100), (0o640, Some(expected.encode())));
        w.push(encode::remove_xattr(Ino(100), ACCESS.as_bytes()));
        w.set_mode(100, 0o604);
        w.digest();
        assert_eq!(stored(&w, 100), (0o604, None));
    }
}

#[test]
fn lists_that_cannot_be_are_refused() {
    let refuse = |ino, name: &str, value: &[u8], why: &str| {
        let w = world();
        w.set_xattr(ino, name, value);
        let refused = w.chunk(Mode::Live).unwrap().refused.expect(why);
        assert!(refused.why.contains(why), "{why}: {refused}");
    };
    refuse(100, DEFAULT, &list(true, 7), "what is no directory");
    refuse(102, ACCESS, &list(true, 7), "of a link");
    refuse(100, ACCESS, &list(false, 0), "that is a mode");
    refuse(100, ACCESS, &list(true, 7)[..36], "not complete");
    refuse(100, ACCESS, b"", "no access control list");
    refuse(101, DEFAULT, b"\x01\0\0\0", "version 1");
    let many = vec![(Who::User(7), 7); 600];
    let entry = |(who, may)| AclEntry { who, may };
    let long = Acl::new(many.into_iter().map(entry).collect()).encode();
    refuse(101, DEFAULT, &long, "at most 4096");
}

#[test]
fn a_stranger_to_the_group_does_not_keep_set_group_id() {
    let mut w = world();
    w.rules.stranger = true;
    w.set_xattr(100, ACCESS, &list(true, 7));
    w.digest();
    assert_eq!(stored(&w, 100).0, 0o671);
}

#[test]
fn rights_are_asked_with_the_list_as_the_records_before_left_it() {
    let asked = |w: &World| w.rules.asked.take();
    let list = |mask| Some(Acl::decode(&list(true, mask)).unwrap());
    let mut w = world();
    asked(&w);
    w.set_xattr(100, ACCESS, &list(6).unwrap().encode());
    w.write(100, 0, b"x");
    w.digest();
    assert_eq!(asked(&w), [None, list(6)]);
    w.write(100, 0, b"y");
    w.set_mode(100, 0o651);
    w.write(100, 0, b"z");
    w.digest();
    assert_eq!(asked(&w), [list(6), list(6), list(5)]);
    w.push(encode::remove_xattr(Ino(100), ACCESS.as_bytes()));
    w.write(100, 0, b"y");
    w.digest();
    assert_eq!(asked(&w), [list(5), None]);
}
