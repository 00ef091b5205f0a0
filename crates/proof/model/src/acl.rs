//! Access control lists as the model has them: the bytes of the attribute, read and changed in place. Written from acl(5) and
//! from what Linux does, not from Shale's code.

use rustix::io::Errno;

/// The list that decides.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The one that is inherited.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const OWNER: u8 = 1;
const OWNING_GROUP: u8 = 4;
const MASK: u8 = 16;
const OTHER: u8 = 32;
const HEAD: usize = 4;
const ENTRY: usize = 8;

/// Whether an attribute is a list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// One of four lists: with users and groups, without, and one that is a mode.
pub fn list(n: u8) -> Vec<u8> {
    let entries: &[(u8, u8, u32)] = match n % 4 {
        0 => &[(1, 7, !0), (2, 6, 7), (4, 5, !0), (16, 6, !0), (32, 0, !0)],
        1 => &[(1, 6, !0), (4, 4, !0), (32, 4, !0)],
        2 => &[(1, 7, !0), (4, 7, !0), (8, 4, 9), (16, 5, !0), (32, 4, !0)],
        _ => &[(1, 6, !0), (4, 6, !0), (16, 4, !0), (32, 5, !0)],
    };
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, may, id) in entries {
        bytes.extend([*tag, 0, *may, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Where the entry for the owner, the mask (else the owning group) and the others says what they may.
fn places(list: &[u8]) -> Result<[usize; 3], Errno> {
    let find = |tag| {
        let mut at = (HEAD..list.len()).step_by(ENTRY);
        at.find(|&at| list[at] == tag).map(|at| at + 2)
    };
    let group = find(MASK).or_else(|| find(OWNING_GROUP));
    match (find(OWNER), group, find(OTHER)) {
        (Some(owner), Some(group), Some(other)) => Ok([owner, group, other]),
        _ => Err(Errno::INVAL),
    }
}

/// The permission bits that go with a list.
pub fn mode_of(list: &[u8]) -> Result<u32, Errno> {
    let bits = places(list)?.map(|at| u32::from(list[at]));
    Ok(bits[0] << 6 | bits[1] << 3 | bits[2])
}

/// Whether it says no more than a mode.
pub fn is_mode(list: &[u8]) -> bool {
    list.len() == HEAD + 3 * ENTRY
}

/// Changes a list as `chmod` does.
pub fn chmod(list: &mut [u8], mode: u32) -> Result<(), Errno> {
    for (at, shift) in places(list)?.into_iter().zip([6, 3, 0]) {
        list[at] = (mode >> shift & 7) as u8;
    }
    Ok(())
}
