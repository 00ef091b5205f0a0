//! The table of mounts, asked without touching the mounts themselves: one whose
//! daemon is gone would answer with an error, or never.

use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Type of our mounts in the table.
const KIND: &str = "fuse.shale";

/// A table of some hundred mounts has so many, about.
const TABLE_BYTES: usize = 64 << 10;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device number, "major:minor": names this mount as long as it lives.
    pub device: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// Type of file system.
    pub kind: String,
    /// Options of this mount, then those of the file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// Whether it is one of ours.
    pub fn is_shale(&self) -> bool {
        self.kind == KIND
    }

    /// Who mounted it, if the table says so.
    pub fn user(&self) -> Option<u32> {
        let user = self
            .options
            .split(',')
            .find_map(|o| o.strip_prefix("user_id="));
        user.and_then(|uid| uid.parse().ok())
    }
}

/// All mounts that this process sees, oldest first.
///
/// # Errors
/// `/proc` is not there.
pub fn all() -> Result<Vec<Mount>> {
    read_table("/proc/self/mountinfo")
}

/// The same that another process sees.
///
/// # Errors
/// It is gone, or another user's.
pub fn of_process(pid: u32) -> Result<Vec<Mount>> {
    read_table(&format!("/proc/{pid}/mountinfo"))
}

fn read_table(table: &str) -> Result<Vec<Mount>> {
    // The kernel says 0 bytes of such a file, and would be asked for a few at a time.
    let mut text = Vec::with_capacity(TABLE_BYTES);
    let read = fs::File::open(table).and_then(|mut file| file.read_to_end(&mut text));
    read.map_err(Failure::because(format!("{table}: cannot read it")))?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// What is mounted at `place`: the newest mount there counts.
///
/// # Errors
/// As [`all`].
pub fn at(place: &Path) -> Result<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|m| m.mountpoint == place))
}

/// The volume that is mounted at `place`, if one is.
///
/// # Errors
/// As [`all`].
pub fn shale_at(place: &Path) -> Result<Option<Mount>> {
    Ok(at(place)?.filter(Mount::is_shale))
}

/// The path by which the table knows the mount point that a user wrote.
///
/// # Errors
/// There is no such path.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let missing = |e: std::io::Error| {
        Failure::not_mounted(format!("{}: {e}", path.display()))
            .advise("give the path of a mount point")
    };
    let table = all()?;
    let known = |place: &PathBuf| table.iter().any(|m| m.mountpoint == *place);
    let whole: PathBuf = std::path::absolute(path)
        .map_err(missing)?
        .components()
        .collect();
    if known(&whole) {
        return Ok(whole);
    }
    // Everything but the last part is resolved first, since to resolve the last one is
    // to ask its server.
    if let (Some(parent), Some(name)) = (whole.parent(), whole.file_name())
        && let Ok(parent) = parent.canonicalize()
        && known(&parent.join(name))
    {
        return Ok(parent.join(name));
    }
    whole.canonicalize().map_err(missing)
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let own = fields.next()?;
    let mut fields = fields.skip_while(|&field| field != b"-");
    let kind = fields.nth(1)?;
    let of_all = fields.nth(1).unwrap_or_default();
    let options = [own, of_all].map(String::from_utf8_lossy).join(",");
    Some(Mount {
        device,
        mountpoint,
        kind: String::from_utf8_lossy(kind).into_owned(),
        options,
    })
}

/// The table writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let line = br"36 35 0:98 / /a\040b\134 rw,noatime shared:1 master:2 - fuse.shale shale rw,user_id=7,x";
        let mount = parse(line).unwrap();
        assert_eq!(mount.device, "0:98");
        assert_eq!(mount.mountpoint, Path::new(r"/a b\"));
        assert!(mount.is_shale());
        assert_eq!(mount.user(), Some(7));
        assert_eq!(parse(b""), None);
        assert!(
            !parse(b"1 2 0:3 / /x rw - tmpfs tmpfs rw")
                .unwrap()
                .is_shale()
        );
    }

    #[test]
    fn the_machine_has_mounts() {
        assert!(
            at(Path::new("/proc"))
                .unwrap()
                .is_some_and(|m| m.kind == "proc")
        );
        assert_eq!(resolve(Path::new("/proc/")).unwrap(), Path::new("/proc"));
        assert_eq!(
            resolve(Path::new("/proc/../proc")).unwrap(),
            Path::new("/proc")
        );
        let missing = resolve(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/at/all"), "{missing}");
    }
}
