use super::*;

/// A list in the words of setfacl(1), numbers for names.
fn acl(text: &str) -> Acl {
    let entry = |part: &str| {
        let mut fields = part.split(':');
        let (kind, id, may) = (fields.next(), fields.next(), fields.next());
        let id = id.filter(|id| !id.is_empty()).map(|id| id.parse().unwrap());
        let who = match (kind.unwrap(), id) {
            ("u", None) => Who::Owner,
            ("u", Some(id)) => Who::User(id),
            ("g", None) => Who::OwningGroup,
            ("g", Some(id)) => Who::Group(id),
            ("m", None) => Who::Mask,
            ("o", None) => Who::Other,
            other => panic!("{other:?}"),
        };
        let bit = |c| match c {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            _ => 0,
        };
        AclEntry {
            who,
            may: may.unwrap().chars().map(bit).sum(),
        }
    };
    Acl::new(text.split(',').map(entry).collect())
}

const WHOLE: &str = "u::rwx,u:5:rw-,g::r-x,g:9:rwx,m::rw-,o::r--";

#[test]
fn the_kernels_bytes() {
    let bytes = acl("u::rw-,u:1000:r--,g::r--,m::r--,o::---").encode();
    let expected = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 232, 3, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    assert_eq!(bytes, expected);
    for text in [WHOLE, "u::---,g::---,o::---"] {
        assert_eq!(Acl::decode(&acl(text).encode()), Ok(acl(text)));
    }
    // The number of an entry that names nobody is no matter.
    let mut other = bytes.clone();
    other[8..12].fill(7);
    assert_eq!(Acl::decode(&other).unwrap().encode(), bytes);
}

#[test]
fn bytes_that_are_no_list() {
    let bytes = acl(WHOLE).encode();
    assert_eq!(Acl::parse(b""), Ok(None));
    assert_eq!(Acl::parse(&bytes[..4]), Ok(None));
    for len in (1..bytes.len()).filter(|len| len % 8 != 4) {
        assert!(Acl::parse(&bytes[..len]).is_err(), "{len} bytes");
    }
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        Acl::parse(&bytes)
    };
    assert_eq!(changed(0, 1), Err(AclError::Version { found: 1 }));
    assert!(changed(4, 3).is_err() && changed(5, 1).is_err());
    // A user that there cannot be.
    let mut nobody = bytes.clone();
    nobody[16..20].fill(255);
    assert!(Acl::parse(&nobody).is_err());
    let most = (ACL_BYTES_MAX - HEADER_BYTES) / ENTRY_BYTES;
    let many = |n: usize| {
        let users = (5..n as u32).map(|id| format!("u:{id}:r--"));
        let users: Vec<_> = users.collect();
        acl(&format!("u::rwx,{},g::---,m::rwx,o::---", users.join(",")))
    };
    assert_eq!(many(most + 1).entries().len(), most);
    assert!(Acl::decode(&many(most + 1).encode()).is_ok());
    let long = many(most + 2).encode();
    assert!(matches!(Acl::parse(&long), Err(AclError::Long { .. })));
}

#[test]
fn which_lists_are_valid() {
    for valid in [
        "u::rwx,g::r-x,o::r--",
        "u::rwx,g::r-x,m::r--,o::r--",
        WHOLE,
        "u::rwx,u:9:r--,u:5:r--,u:5:rw-,g::r-x,m::r--,o::r--",
        "u::rwx,g::r-x,g:5:r--,m::r--,o::r--",
    ] {
        assert!(acl(valid).is_valid(), "{valid}");
    }
    for invalid in [
        "u::rwx",
        "g::r-x,o::r--",
        "u::rwx,o::r--",
        "u::rwx,g::r-x",
        "u::rwx,u::rwx,g::r-x,o::r--",
        "u::rwx,g::r-x,g::r-x,o::r--",
        "u::rwx,g::r-x,o::r--,o::r--",
        "u::rwx,g::r-x,m::r--,m::r--,o::r--",
        "u::rwx,u:5:r--,g::r-x,o::r--",
        "u::rwx,g::r-x,g:5:r--,o::r--",
        "g::r-x,u::rwx,o::r--",
        "u::rwx,g::r-x,u:5:r--,m::r--,o::r--",
        "u::rwx,g:5:r--,g::r-x,m::r--,o::r--",
        "u::rwx,g::r-x,o::r--,m::r--",
        "u::rwx,m::r--,g::r-x,o::r--",
    ] {
        assert!(!acl(invalid).is_valid(), "{invalid}");
        assert!(Acl::decode(&acl(invalid).encode()).is_err(), "{invalid}");
    }
    let mut wide = acl(WHOLE);
    wide.entries[1].may = 8;
    assert!(!wide.is_valid());
}

#[test]
fn list_and_mode() {
    assert_eq!(acl("u::rwx,g::r-x,o::r--").as_mode(), (0o754, true));
    assert_eq!(acl("u::rwx,g::r-x,m::-w-,o::r--").as_mode(), (0o724, false));
    assert_eq!(acl(WHOLE).as_mode(), (0o764, false));
    assert_eq!(
        acl(WHOLE).with_mode(0o100_517),
        acl("u::r-x,u:5:rw-,g::r-x,g:9:rwx,m::--x,o::rwx"),
        "chmod changes the mask, and not the owning group"
    );
    assert_eq!(
        acl("u::rwx,g::r-x,o::r--").with_mode(0o640),
        acl("u::rw-,g::r--,o::---")
    );
}

#[test]
fn what_is_made_in_a_directory_gets() {
    let (mode, own) = acl(WHOLE).inherited(0o100_666);
    assert_eq!(mode, 0o100_664);
    assert_eq!(
        own,
        Some(acl("u::rw-,u:5:rw-,g::r-x,g:9:rwx,m::rw-,o::r--"))
    );
    let (mode, own) = acl(WHOLE).inherited(0o042_750);
    assert_eq!(mode, 0o042_740);
    assert_eq!(
        own,
        Some(acl("u::rwx,u:5:rw-,g::r-x,g:9:rwx,m::r--,o::---"))
    );
    assert_eq!(
        acl("u::rwx,g::r-x,o::--x").inherited(0o100_666),
        (0o100_640, None)
    );
}

#[test]
fn whom_a_list_lets_do_what() {
    let inode = |mode| Inode {
        mode,
        uid: 1,
        gid: 2,
        ..Inode::free()
    };
    let may = |text: &str, uid, groups: &[u32], want| {
        let acl = acl(text);
        let mode = acl.as_mode().0;
        permits(
            &inode(mode),
            Some(&acl),
            uid,
            &|g| groups.contains(&g),
            want,
        )
    };
    // The owner: his entry alone, also where others have more.
    assert!(!may("u::r--,u:1:rwx,g::rwx,m::rwx,o::rwx", 1, &[2], 2));
    // A named user: masked; his groups and the others do not count.
    assert!(may(WHOLE, 5, &[2, 9], 6) && !may(WHOLE, 5, &[9], 1));
    assert!(!may("u::rwx,u:5:---,g::rwx,m::rwx,o::rwx", 5, &[2], 4));
    assert!(!may("u::rwx,u:5:rwx,g::rwx,m::r--,o::rwx", 5, &[], 2));
    // Groups: one of them has to allow it all, masked.
    assert!(may(WHOLE, 7, &[9], 6) && !may(WHOLE, 7, &[9], 1));
    assert!(may(WHOLE, 7, &[2], 4) && !may(WHOLE, 7, &[2], 2));
    assert!(may(WHOLE, 7, &[2, 9], 6));
    let two = "u::---,g::r--,g:9:-w-,m::rwx,o::rwx";
    assert!(may(two, 7, &[2, 9], 4) && may(two, 7, &[2, 9], 2));
    assert!(!may(two, 7, &[2, 9], 6), "no group allows both");
    assert!(!may(two, 7, &[9], 4), "in a group: others do not count");
    // Others: unmasked.
    assert!(may("u::rwx,u:5:r--,g::r--,m::r--,o::rwx", 7, &[], 7));
    // A mask that allows nothing: the kernel looks at the mode alone.
    let closed = "u::rwx,u:5:rwx,g::rwx,m::---,o::r--";
    assert!(may(closed, 5, &[], 4) && !may(closed, 5, &[2], 4));
    // Without a mask the owning group's entry counts as it is.
    assert!(may("u::rwx,g::-w-,o::---", 7, &[2], 2));
}

#[test]
fn without_a_list_the_first_class_that_fits_decides() {
    let inode = Inode {
        mode: 0o100_074,
        uid: 5,
        gid: 6,
        ..Inode::free()
    };
    let may = |uid, group, want| permits(&inode, None, uid, &|g| g == group, want);
    assert!(!may(5, 6, 4) && may(7, 6, 7) && may(7, 7, 4) && !may(7, 7, 2));
}
