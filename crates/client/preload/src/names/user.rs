//! For whom names are served: root, and users without capabilities. What no kernel looks at is judged here by user and groups.

use crate::names::state;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use rustix::fs::RawDir;
use shale_interpose::raw::{self, nr};
use shale_libfs::{Caller, Session};
use shale_sys::kernel_text;

/// Mode bits to take away from what is made.
static UMASK: AtomicU32 = AtomicU32::new(0);
/// User in the upper half, group in the lower one, while a mount is known.
static USER: AtomicU64 = AtomicU64::new(0);

/// All groups of the process, while a mount is known.
static GROUPS: AtomicPtr<Vec<u32>> = AtomicPtr::new(ptr::null_mut());
/// The list of groups by which a daemon judges that was found to have all of them.
static JUDGED_BY: AtomicPtr<u32> = AtomicPtr::new(ptr::null_mut());

/// Capabilities by which root may all that is served: `CAP_CHOWN` to `CAP_FSETID`, and `CAP_MKNOD`.
const OF_ROOT: u64 = 0x1f | 1 << 27;
/// And others that matter to files: `CAP_LINUX_IMMUTABLE`, `CAP_SYS_ADMIN`.
const OF_FILES: u64 = OF_ROOT | 1 << 9 | 1 << 21;
/// All users, each with its own number: no user namespace translates them (user_namespaces(7)).
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// `umask` has returned, with this argument.
pub fn set_umask(mask: u32) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// What `umask` was set to last.
pub fn umask() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

/// Whether the process is root's, for which no permission matters.
pub fn is_root() -> bool {
    USER.load(Ordering::Relaxed) >> 32 == 0
}

/// The user of the process.
pub fn uid() -> u32 {
    (USER.load(Ordering::Relaxed) >> 32) as u32
}

/// Who calls.
pub fn caller(session: &Session) -> Caller {
    let user = USER.load(Ordering::Relaxed);
    Caller {
        uid: (user >> 32) as u32,
        gid: user as u32,
        groups: session.groups().unwrap_or_default(),
        umask: umask(),
        ..Caller::default()
    }
}

/// Whether the daemon, which judges by what its machine knows of a user, knows all groups of this process. If it does not, names are the
/// kernel's from now on.
pub fn is_judged_alike(session: &Session) -> bool {
    match session.groups() {
        // Root is whom the daemon takes for root, and nobody else is.
        None => is_root(),
        Some(known) => {
            ptr::eq(JUDGED_BY.load(Ordering::Relaxed), known.as_ptr()) || has_all_groups(known)
        }
    }
}

#[cold]
fn has_all_groups(known: &'static [u32]) -> bool {
    // SAFETY: from a box that is never freed.
    let groups = unsafe { GROUPS.load(Ordering::Acquire).as_ref() };
    let all = groups.is_some_and(|groups| groups.iter().all(|gid| known.contains(gid)));
    let alike = all && !is_root();
    match alike {
        true => JUDGED_BY.store(known.as_ptr().cast_mut(), Ordering::Relaxed),
        false => state::end("a group of the process is none of its user's"),
    }
    alike
}

/// Finds out who the process is, from `/proc/self/status`.
///
/// # Errors
/// Why names are not served; `None`: it is not known.
pub fn find(status: &str) -> Result<(), Option<&'static str>> {
    let map = kernel_text::read_string("/proc/self/uid_map").map_err(|_| None)?;
    if !map.split_whitespace().eq(ALL_USERS) {
        return Err(Some("the process is in a user namespace"));
    }
    let why = "user or group of the process is not one, or it has some of root's rights";
    let (uid, gid) = ids(status).ok_or(Some(why))?;
    let mut groups = further_groups(status).ok_or(None)?;
    // Each thread has its own (credentials(7)): one may have become somebody else before names were looked at.
    for tid in threads().ok_or(None)? {
        // A thread that has ended has none.
        if tid as u32 != std::process::id()
            && let Ok(status) = kernel_text::read_string(format!("/proc/self/task/{tid}/status"))
            && (ids(&status), further_groups(&status)) != (Some((uid, gid)), Some(groups.clone()))
        {
            return Err(Some("threads of the process are different users"));
        }
        if !shares_directory(tid) {
            return Err(Some("threads of the process have their own directories"));
        }
    }
    groups.push(gid);
    let mask = field(status, "Umask:").and_then(|m| u32::from_str_radix(m, 8).ok());
    set_umask(mask.ok_or(None)?);
    GROUPS.store(Box::into_raw(Box::new(groups)), Ordering::Release);
    USER.store(u64::from(uid) << 32 | u64::from(gid), Ordering::Relaxed);
    Ok(())
}

/// The threads of this process. Not by `opendir`, which takes the locks of `malloc`: who forks has them, and waits for this call.
fn threads() -> Option<Vec<i32>> {
    let dir = std::fs::File::open("/proc/self/task").ok()?;
    let mut space = [MaybeUninit::uninit(); 4096];
    let (mut listed, mut threads) = (RawDir::new(dir, &mut space), Vec::new());
    while let Some(entry) = listed.next() {
        let name = entry.ok()?.file_name().to_str().ok()?.parse::<i32>();
        threads.extend(name);
    }
    Some(threads)
}

/// Whether a thread of this process has the working directory of this one (kcmp(2), `unshare` with `CLONE_FS`). A kernel that cannot say is taken
/// at the word of the directories' names.
fn shares_directory(tid: i32) -> bool {
    const KCMP_FS: u64 = 3;
    let own = raw::gettid();
    if tid == own {
        return true;
    }
    let args = [own as u64, tid as u64, KCMP_FS, 0, 0, 0];
    // SAFETY: five numbers; no memory is touched.
    let order = unsafe { raw::syscall(nr::KCMP, &args) };
    let of = |tid: i32| std::fs::read_link(format!("/proc/self/task/{tid}/cwd")).ok();
    match order {
        0 => true,
        1.. => false,
        // It may have ended meanwhile.
        _ => of(tid).is_none_or(|cwd| Some(cwd) == of(own)),
    }
}

/// User and group, if the process is one and the same in every respect, and has all of root's rights or none.
fn ids(status: &str) -> Option<(u32, u32)> {
    let one = |name| {
        let mut ids = field(status, name)?.split_whitespace();
        let first = ids.next()?;
        ids.all(|id| id == first).then(|| first.parse().ok())?
    };
    let has = u64::from_str_radix(field(status, "CapEff:")?, 16).ok()?;
    let (uid, gid) = (one("Uid:")?, one("Gid:")?);
    match (uid, gid) {
        (0, 0) => (has & OF_ROOT == OF_ROOT).then_some((uid, gid)),
        (0, _) => None,
        _ => (has & OF_FILES == 0).then_some((uid, gid)),
    }
}

fn further_groups(status: &str) -> Option<Vec<u32>> {
    let groups = field(status, "Groups:")?.split_whitespace();
    groups.map(|gid| gid.parse().ok()).collect()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_one_user_in_every_respect() {
        let of = |uid: &str, gid: &str, caps: &str| {
            let status =
                format!("Name:\tx\nUmask:\t0022\nUid:\t{uid}\nGid:\t{gid}\nCapEff:\t{caps}\n");
            (ids(&status), field(&status, "Umask:").map(str::to_owned))
        };
        let (all, none, zeros) = ("000001ffffffffff", "0000000000000000", "0\t0\t0\t0");
        let (five, six) = ("5\t5\t5\t5", "6\t6\t6\t6");
        assert_eq!(
            of(zeros, zeros, all),
            (Some((0, 0)), Some("0022".to_owned()))
        );
        assert_eq!(of("0\t0\t0\t5", zeros, all).0, None);
        assert_eq!(of(zeros, six, all).0, None);
        assert_eq!(of(zeros, zeros, "000001fffffffffd").0, None);
        assert_eq!(of(five, six, none).0, Some((5, 6)));
        // To bind a port is no right to files.
        assert_eq!(of(five, six, "0000000000000400").0, Some((5, 6)));
        assert_eq!(of(five, six, "0000000000000002").0, None);
        assert_eq!(of(five, "6\t6\t6\t7", none).0, None);
        let groups = |line: &str| further_groups(&format!("Uid:\t5\nGroups:\t{line}\n"));
        assert_eq!(
            (groups("6 100 "), groups(" ")),
            (Some(vec![6, 100]), Some(vec![]))
        );
    }
}
