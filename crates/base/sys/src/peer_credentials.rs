//! Who is at the other end of a socket, as far as `rustix` does not know how to ask.
//!
//! Everything comes from the socket. A process number would not do: the process may have ended by
//! the time it is looked up, and its number may be another's.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Groups that are asked for at first; most processes have fewer.
const GROUPS_USUAL: usize = 32;

/// Supplementary groups that the peer of a Unix socket had when it connected (`SO_PEERGROUPS`),
/// as user and group of `SO_PEERCRED`: what became of the process since does not matter.
///
/// # Errors
/// Not a connected Unix socket, or a kernel before 4.13.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0_u32; GROUPS_USUAL];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `groups`, which has so many, and one
        // length to `bytes`; both outlive the call.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        let errno = match done {
            0 => None,
            _ => std::io::Error::last_os_error().raw_os_error(),
        };
        // On success what was written, else what is needed.
        let count = bytes as usize / size_of::<u32>();
        match errno {
            None => {
                groups.truncate(count);
                return Ok(groups);
            }
            Some(libc::ERANGE) if count > groups.len() => groups.resize(count, 0),
            Some(errno) => return Err(Errno::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn groups_are_those_of_the_thread_that_connected() {
        let few = [4_321, 77];
        let many: Vec<u32> = (5_000..5_100).collect();
        for groups in [&few[..], &many, &[]] {
            let wanted: Vec<_> = groups
                .iter()
                .map(|&g| rustix::fs::Gid::from_raw(g))
                .collect();
            let made = std::thread::spawn(move || {
                // Of this thread alone, which ends before anybody asks.
                rustix::thread::set_thread_groups(&wanted).map(|()| UnixStream::pair())
            });
            // Only root may change them.
            let Ok(pair) = made.join().unwrap() else {
                return;
            };
            let (one, _other) = pair.unwrap();
            let mut found = peer_groups(one.as_fd()).unwrap();
            found.sort_unstable();
            let mut groups = groups.to_vec();
            groups.sort_unstable();
            assert_eq!(found, groups);
        }
    }

    #[test]
    fn what_is_no_socket_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_groups(file.as_fd()), Err(Errno::NOTSOCK));
    }
}
