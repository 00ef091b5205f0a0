//! What a child by `vfork` has of our files, and what its calls do to that.

use crate::description;
use crate::table::{self, Entry};
use crate::transfer;
use shale_interpose::outcome::PASS;
use shale_interpose::raw::{self, Args, nr};

/// What a child by `vfork` has of our files.
pub struct Inherited {
    /// Descriptors that the child has not changed, and their descriptions.
    files: Vec<(i32, u32)>,
    /// The child has made a call.
    began: bool,
    /// The child has made children.
    has_children: bool,
}

impl Inherited {
    /// The files of this process as they are now.
    pub fn now() -> Self {
        let mut files = Vec::new();
        table::for_each_file(|fd, index| {
            description::add_user(index);
            // It may have been closed, and the description freed, before it was counted.
            if table::get(fd) == Entry::File(index) {
                files.push((fd, index));
            } else {
                description::drop_user(index);
            }
        });
        Self {
            files,
            began: false,
            has_children: false,
        }
    }

    /// The child is gone, and uses nothing any more.
    pub fn clear(&mut self) {
        self.retain(|_, _| false);
    }

    /// Whether the child has made children.
    pub fn has_children(&self) -> bool {
        self.has_children
    }

    /// Drops entries for which `kept` is false.
    fn retain(&mut self, kept: impl Fn(i32, u32) -> bool) {
        self.files.retain(|&(fd, index)| {
            let kept = kept(fd, index);
            if !kept {
                description::drop_user(index);
            }
            kept
        });
    }

    /// The child makes its first call.
    pub fn begin(&mut self) {
        if !self.began {
            self.began = true;
            self.retain(|fd, index| table::get(fd) == Entry::File(index));
        }
    }

    /// Gives the offset of `fd` to the kernel for good, if it is on the list.
    fn hand_over(&self, fd: i32) {
        if let Some(&(_, index)) = self.files.iter().find(|(listed, _)| *listed == fd) {
            transfer::hand_over_as(fd, index);
        }
    }

    /// Hands over what a new program image would inherit.
    pub fn hand_over_inherited(&self) {
        for &(fd, index) in &self.files {
            if transfer::is_inherited(fd) {
                transfer::hand_over_as(fd, index);
            }
        }
    }

    /// The kernel does the call. If it succeeds, numbers from `first` to `last` are not what they were.
    fn replace(&mut self, first: u64, last: u64, number: u32, args: &Args) -> i64 {
        // SAFETY: the program's own call, which has no pointers.
        let result = unsafe { raw::syscall(number, args) };
        if result >= 0 {
            self.retain(|fd, _| !(first as u32..=last as u32).contains(&(fd as u32)));
        }
        result
    }

    /// A call of the child. It allocates nothing.
    pub fn call(&mut self, number: u32, args: &Args) -> i64 {
        self.begin();
        let fd = args[0] as i32;
        match number {
            nr::CLOSE => {
                self.retain(|listed, _| listed != fd);
                PASS
            }
            nr::CLOSE_RANGE if args[2] as u32 & libc::CLOSE_RANGE_CLOEXEC == 0 => {
                self.replace(args[0], args[1], number, args)
            }
            nr::DUP2 | nr::DUP3 if fd != args[1] as i32 => {
                self.hand_over(fd);
                self.replace(args[1], args[1], number, args)
            }
            nr::CLONE | nr::CLONE3 | nr::FORK | nr::VFORK => {
                let all = self.files.iter();
                all.for_each(|&(fd, index)| transfer::hand_over_as(fd, index));
                self.retain(|_, _| false);
                self.has_children = true;
                PASS
            }
            nr::SENDMSG | nr::SENDMMSG => {
                transfer::each_sent(number, args, |fd| self.hand_over(fd));
                PASS
            }
            nr::SENDFILE => {
                self.hand_over(fd);
                self.hand_over(args[1] as i32);
                PASS
            }
            nr::SPLICE | nr::COPY_FILE_RANGE => {
                self.hand_over(fd);
                self.hand_over(args[2] as i32);
                PASS
            }
            nr::FCNTL => {
                // Whatever duplicates, sets flags that are shared, or goes by the offset.
                let command = args[1] as i32;
                if !matches!(command, libc::F_GETFD | libc::F_SETFD | libc::F_GETFL) {
                    self.hand_over(fd);
                }
                PASS
            }
            nr::DUP
            | nr::READ
            | nr::WRITE
            | nr::READV
            | nr::WRITEV
            | nr::PREAD
            | nr::PREADV
            | nr::PREADV2
            | nr::PWRITEV2
            | nr::LSEEK => {
                self.hand_over(fd);
                PASS
            }
            _ => PASS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::mode;
    use core::sync::atomic::Ordering;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// A file at byte 7, as the parent knows; the kernel has it at 0.
    fn file() -> (File, i32, u32) {
        assert!(description::make());
        let file = tempfile::tempfile().unwrap();
        let (fd, index) = (file.as_raw_fd(), description::take().unwrap());
        let d = description::get(index);
        d.offset.store(7, Ordering::Relaxed);
        d.mode.store(mode::FAST, Ordering::Relaxed);
        assert!(table::enter(fd, index));
        assert_eq!(raw::fcntl(fd, libc::F_SETFD, 0), 0);
        (file, fd, index)
    }

    fn state(fd: i32, index: u32) -> (u32, i64) {
        let mode = description::get(index).mode.load(Ordering::Relaxed);
        (mode, raw::lseek(fd, 0, libc::SEEK_CUR))
    }

    #[test]
    fn a_child_hands_over_what_it_has_and_nothing_else() {
        let _turn = description::IN_TURNS.lock();
        let (_a, a, a_index) = file();
        let (_b, b, b_index) = file();
        let (_c, c, c_index) = file();
        let (_d, d, d_index) = file();
        let other = tempfile::tempfile().unwrap();
        let mut child = Inherited::now();
        // Another thread of the parent replaces `d` before the child begins.
        table::remove(d);
        let args = [other.as_raw_fd() as u64, b as u64, 0, 0, 0, 0];
        assert_eq!(child.call(nr::DUP2, &args), i64::from(b));
        let args = [u64::from(u32::MAX), c as u64, 0, 0, 0, 0];
        assert_eq!(child.call(nr::DUP2, &args), raw::fail(libc::EBADF));
        child.hand_over_inherited();
        assert_eq!(state(a, a_index), (mode::HANDED_OVER, 7));
        assert_eq!(
            state(b, b_index),
            (mode::FAST, 0),
            "it has another file there"
        );
        assert_eq!(state(c, c_index), (mode::HANDED_OVER, 7), "not replaced");
        assert_eq!(state(d, d_index), (mode::FAST, 0), "perhaps another file");
        let users = || [a_index, b_index, c_index, d_index].map(description::users);
        assert_eq!(users(), [2, 1, 2, 0]);
        child.retain(|_, _| false);
        [a, b, c].into_iter().for_each(table::remove);
        assert_eq!(users(), [0; 4]);
    }

    #[test]
    fn what_a_child_duplicates_is_handed_over_before() {
        let _turn = description::IN_TURNS.lock();
        let (_a, a, index) = file();
        assert_eq!(raw::fcntl(a, libc::F_SETFD, libc::FD_CLOEXEC as u64), 0);
        let mut child = Inherited::now();
        child.hand_over_inherited();
        assert_eq!(state(a, index), (mode::FAST, 0), "no program inherits it");
        assert_eq!(child.call(nr::DUP, &[a as u64, 0, 0, 0, 0, 0]), PASS);
        assert_eq!(state(a, index), (mode::HANDED_OVER, 7));
        child.retain(|_, _| false);
        table::remove(a);
    }
}
