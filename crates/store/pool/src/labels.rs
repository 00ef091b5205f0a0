//! Labels of segment files: which volume, which segment, how often mounted.
//!
//! An extended attribute beside the contents, so that a segment of another volume, in another's
//! place or from a backup is named at the start and not discovered later. A file system without
//! such attributes, a copy that left them out, and a device that is no file have none: what
//! has no label is believed.
//!
//! A start counts twice, each time from the first segment to the last, then on devices below NVM. So a crash on the way
//! leaves counts of which the later ones are less by one, and a segment that missed a whole
//! start is behind by two or more.

use crate::error::{PoolError, Result};
use crate::nvm_dir::segment_name;
use crate::volume_file::uuid_text;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

const NAME: &str = "user.shale.segment";

/// What to do about a part of a volume that is older than the rest.
pub(crate) const PUT_BACK: &str = "Put all of the volume back from one backup, NVM directory and devices; if all of it is: shale fsck \
                                   VOLUME.toml --repair --restored";

/// What a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    uuid: String,
    segment: usize,
    count: u64,
    /// The volume's last batch at that start; 0 in labels of earlier versions.
    txid: u64,
}

impl Label {
    fn parse(text: &str) -> Option<Label> {
        let mut words = text.split(' ');
        Some(Label {
            uuid: words.next()?.to_owned(),
            segment: words.next()?.parse().ok()?,
            count: words.next()?.parse().ok()?,
            txid: words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
        })
    }

    fn text(&self) -> String {
        format!(
            "{} {} {} {}",
            self.uuid, self.segment, self.count, self.txid
        )
    }
}

fn read(path: &Path) -> Option<Label> {
    let mut bytes = [0; 128];
    let len = rustix::fs::getxattr(path, NAME, &mut bytes).ok()?;
    Label::parse(std::str::from_utf8(bytes.get(..len)?).ok()?)
}

/// Checks the labels of the first `segments` segments of `dir`. Gives their count.
///
/// # Errors
/// A segment of another volume, in another's place, or older than the others; it is named.
pub fn check(dir: &Path, uuid: &[u8; 16], segments: usize) -> Result<u64> {
    let wrong = |n: usize, why: String| PoolError::NvmDir {
        dir: dir.to_path_buf(),
        why: format!("{}: {why}", segment_name(n)),
    };
    let ours = uuid_text(uuid);
    let mut counts = Vec::new();
    for n in 0..segments {
        let Some(label) = read(&dir.join(segment_name(n))) else {
            continue;
        };
        if label.uuid != ours {
            let why = format!("it is of volume {}, expected {ours}", label.uuid);
            return Err(wrong(n, why));
        }
        if label.segment != n {
            let other = segment_name(label.segment);
            return Err(wrong(
                n,
                format!("it was made as {other}: are files swapped?"),
            ));
        }
        counts.push((n, label.count));
    }
    let newest = counts.iter().map(|c| c.1).max().unwrap_or(0);
    let mut last = u64::MAX;
    for (n, count) in counts {
        if count + 1 < newest || count > last {
            let why = format!(
                "it is older than the others (label {count}, expected {newest}): was it put back from a backup? {PUT_BACK}"
            );
            return Err(wrong(n, why));
        }
        last = count;
    }
    Ok(newest)
}

/// Checks that what segments hold is not older than their labels: a copy into a file that is there (`cp`) leaves the label, and
/// the devices below NVM are newer then. `txid`: the volume's last batch.
///
/// # Errors
/// It is older; the segment is named.
pub(crate) fn check_content(dir: &Path, segments: usize, txid: u64) -> Result<()> {
    let labels = (0..segments).filter_map(|n| Some((n, read(&dir.join(segment_name(n)))?)));
    match labels.into_iter().find(|(_, label)| label.txid > txid) {
        None => Ok(()),
        Some((n, label)) => Err(PoolError::NvmDir {
            dir: dir.to_path_buf(),
            why: format!(
                "{}: its content is older than the rest of the volume (batch {txid}, expected {} or more): was it put back from a \
                 backup? {PUT_BACK}",
                segment_name(n),
                label.txid
            ),
        }),
    }
}

/// Takes the labels off the segments of `dir`: what they hold is believed.
///
/// # Errors
/// One cannot be taken off.
pub fn forget(dir: &Path, segments: usize) -> Result<()> {
    for n in 0..segments {
        let path = dir.join(segment_name(n));
        match rustix::fs::removexattr(&path, NAME) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(PoolError::file(&path, "take its label off", e)),
        }
    }
    Ok(())
}

/// Gives a copy of a segment the label of the segment. What has no label has none then.
///
/// # Errors
/// It cannot be written there: without such attributes there are no labels.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut bytes = [0; 128];
    let Ok(len) = rustix::fs::getxattr(from, NAME, &mut bytes) else {
        return Ok(());
    };
    let label = bytes.get(..len).unwrap_or_default();
    match rustix::fs::setxattr(to, NAME, label, XattrFlags::empty()) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(PoolError::file(to, "write its label", e)),
    }
}

/// Notes one more start, once of the two times: a count one above what [`check`] gave, then two.
/// `txid`: the volume's last batch.
pub fn write(dir: &Path, uuid: &[u8; 16], segments: usize, count: u64, txid: u64) {
    for segment in 0..segments {
        let label = Label {
            uuid: uuid_text(uuid),
            segment,
            count,
            txid,
        };
        let (path, text) = (dir.join(segment_name(segment)), label.text());
        // Where there are no such attributes there are no labels.
        let set = rustix::fs::setxattr(&path, NAME, text.as_bytes(), XattrFlags::empty());
        // Devices must not have counted a start of which segments know nothing.
        let _ = set.is_ok() && File::open(&path).is_ok_and(|f| f.sync_all().is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    fn set(dir: &Path, n: usize, label: &Label) {
        let path = dir.join(segment_name(n));
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(&path, NAME, label.text().as_bytes(), flags).unwrap();
    }

    #[test]
    fn what_a_crash_leaves_is_believed_and_what_is_older_is_named() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for n in 0..3 {
            std::fs::write(dir.path().join(segment_name(n)), b"").unwrap();
        }
        if rustix::fs::setxattr(dir.path(), NAME, b"x", XattrFlags::empty()).is_err() {
            eprintln!("skipped: no extended attributes on /dev/shm");
            return;
        }
        let counts = |counts: [u64; 3]| {
            for (segment, count) in counts.into_iter().enumerate() {
                let uuid = uuid_text(&UUID);
                set(
                    dir.path(),
                    segment,
                    &Label {
                        uuid,
                        segment,
                        count,
                        txid: 0,
                    },
                );
            }
            check(dir.path(), &UUID, 3)
        };
        assert_eq!(check(dir.path(), &UUID, 3).unwrap(), 0, "no labels");
        write(dir.path(), &UUID, 3, 2, 70);
        assert!(check_content(dir.path(), 3, 70).is_ok());
        let older = check_content(dir.path(), 3, 69).unwrap_err().to_string();
        assert!(older.contains("seg-0000: its content is older"), "{older}");
        assert_eq!(check(dir.path(), &UUID, 3).unwrap(), 2);
        for whole in [[5, 5, 5], [6, 5, 5], [6, 6, 5]] {
            assert!(counts(whole).is_ok(), "{whole:?}");
        }
        for (stale, name) in [
            ([5, 6, 6], "seg-0001"),
            ([6, 4, 6], "seg-0001"),
            ([9, 9, 7], "seg-0002"),
        ] {
            let text = counts(stale).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("older"), "{text}");
        }
        counts([5, 5, 5]).unwrap();
        let text = check(dir.path(), &[8; 16], 3).unwrap_err().to_string();
        assert!(text.contains("seg-0000: it is of volume"), "{text}");
        let (uuid, segment) = (uuid_text(&UUID), 2);
        set(
            dir.path(),
            1,
            &Label {
                uuid,
                segment,
                count: 5,
                txid: 0,
            },
        );
        let text = check(dir.path(), &UUID, 3).unwrap_err().to_string();
        assert!(text.contains("seg-0001: it was made as seg-0002"), "{text}");
    }
}
