//! Names by which a client's process opens a file by its inode number through the mount.
//!
//! A client may have files open without the kernel. When the kernel needs one, whatever names the file has by then, or if it has none, the process
//! opens such a name in the root directory of the mount: the FUSE server finds the inode if the token is that of a client that is attached
//! ([`Attached::open_token`](crate::message::Attached)). No directory has such an entry, and the kernel does not keep it.
//!
//! The kernel gives a process that watches the root directory (inotify) the names that are opened in it, so a token may become known. It is
//! good for processes of its owner alone ([`TokenOwner`]).

const PREFIX: &[u8] = b".shale-open-";
/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 32;

/// Whose token it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOwner {
    /// User of the client when it attached.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
}

/// The name of inode `ino` for the client with this token.
pub fn name_of(token: u128, ino: u64) -> Vec<u8> {
    let digits = format!("{token:0TOKEN_DIGITS$x}-{ino:x}");
    [PREFIX, digits.as_bytes()].concat()
}

/// Token and inode number in a name of this form; `None`: it is another name.
pub fn parse(name: &[u8]) -> Option<(u128, u64)> {
    let digits = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
    let (token, ino) = digits.split_once('-')?;
    let token = u128::from_str_radix(token, 16).ok()?;
    let ino = u64::from_str_radix(ino, 16).ok()?;
    // One name for each: no sign, no capital letter, no other number of digits.
    (name_of(token, ino) == name).then_some((token, ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_and_number_has_one_name() {
        for (token, ino) in [(0, 0), (7, 1 << 40), (u128::MAX, u64::MAX)] {
            assert_eq!(parse(&name_of(token, ino)), Some((token, ino)));
        }
        let name = name_of(0xab << 64, 0x1f);
        assert_eq!(name, b".shale-open-00000000000000ab0000000000000000-1f");
        assert!(name_of(u128::MAX, u64::MAX).len() <= 255);
    }

    #[test]
    fn other_names_are_other_names() {
        let zeros = "0".repeat(31);
        for name in [
            String::new(),
            ".shale-open-".to_owned(),
            format!(".shale-open-{zeros}1"),
            format!(".shale-open-{zeros}1-"),
            format!(".shale-open-{zeros}-1f"),
            format!(".shale-open-{zeros}11-1f"),
            format!(".shale-open-{zeros}A-1f"),
            format!(".shale-open-+{zeros}-1f"),
            format!(".shale-open-{zeros}1-+1f"),
            format!(".shale-open-{zeros}1-1F"),
            format!(".shale-open-{zeros}1-01f"),
            format!(".shale-open-{zeros}1-1f-"),
            format!(".shale-open-{zeros}1-10000000000000000"),
            format!("shale-open-{zeros}1-1f"),
        ] {
            assert_eq!(parse(name.as_bytes()), None, "{name}");
        }
        let mut bytes = name_of(1, 1);
        bytes.push(0xff);
        assert_eq!(parse(&bytes), None);
    }
}
