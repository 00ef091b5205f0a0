//! A client: LibFS' own files as they are, and what stands for the rest of it.
#![allow(dead_code, reason = "the model needs only a part of those files")]

#[path = "../../../../client/libfs/src/client/lease.rs"]
mod lease;
#[path = "../../../../client/libfs/src/client/read_section.rs"]
mod read_section;
#[path = "../../../../client/libfs/src/client/connection_state.rs"]
mod served;

pub(crate) mod session;

use crate::sync;

mod reader_slot {
    pub(crate) use crate::memory::reader_slot as number;

    /// There are reader slots enough.
    pub(crate) struct Overflow;

    pub(crate) fn overflow(_number: usize) -> Option<Overflow> {
        None
    }
}

mod errno {
    use shale_proto::LeaseMode;

    pub(crate) use rustix::io::Errno;

    pub(crate) const ELSEWHERE: Errno = Errno::REMOTE;

    pub(crate) type Result<T> = std::result::Result<T, Errno>;

    #[derive(Debug)]
    pub(crate) enum Stop {
        Errno(Errno),
        Lease(LeaseMode),
    }

    impl From<Errno> for Stop {
        fn from(e: Errno) -> Self {
            Stop::Errno(e)
        }
    }
}

mod node {
    use super::errno::Stop;
    use super::lease::LeaseWord;
    use super::session::Session;
    use super::sync::Mutex;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// An inode in memory: one number.
    pub(crate) struct Node {
        pub(crate) ino: u64,
        pub(crate) state: Mutex<u64>,
        pub(crate) lease: LeaseWord,
        pub(crate) used_elsewhere: AtomicBool,
        pub(crate) watched: AtomicBool,
        pub(crate) shared: AtomicBool,
    }

    impl Node {
        pub(crate) fn new(ino: u64, value: u64) -> Arc<Self> {
            Arc::new(Self {
                ino,
                state: Mutex::new(value),
                lease: LeaseWord::default(),
                used_elsewhere: AtomicBool::new(false),
                watched: AtomicBool::new(false),
                shared: AtomicBool::new(false),
            })
        }

        pub(crate) fn reload(&self, session: &Session, _epoch: u64) -> Result<(), Stop> {
            let mut state = self.state.lock();
            *state = session.view.0.in_volume(self.ino);
            Ok(())
        }
    }
}
