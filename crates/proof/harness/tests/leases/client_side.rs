//! A client: the session's own files as they are, and what stands for the rest of it.
#![allow(dead_code, reason = "the model needs only a part of those files")]

#[path = "../../../../client/session/src/lease.rs"]
mod lease;
#[path = "../../../../client/session/src/lease_word.rs"]
mod lease_word;
#[path = "../../../../client/session/src/read_section.rs"]
mod read_section;
#[path = "../../../../client/session/src/connection_state.rs"]
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

pub(crate) mod errno {
    use shale_proto::LeaseMode;

    pub(crate) use rustix::io::Errno;

    pub(crate) const MEDIATED: Errno = Errno::REMOTE;

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

mod daemon_link {
    use super::errno::{Errno, Result};
    use super::sync::SharedWords;
    use crate::daemon_side::client::{Client, ClientState};
    use crate::daemon_side::lease_manager::NoLease;
    use crate::daemon_side::lease_table::LeaseRequest;
    use crate::daemon_side::shared::Shared;
    use crate::memory;
    use shale_format::LogPos;
    use shale_proto::shared_pages::daemon_page;
    use shale_proto::{Reply, Request};
    use std::sync::Arc;

    /// The daemon, as its client reaches it.
    pub(crate) struct DaemonLink {
        shared: Arc<Shared>,
        client: Arc<Client>,
        words: SharedWords,
    }

    impl DaemonLink {
        pub(crate) fn new(shared: Arc<Shared>, client: Arc<Client>) -> Self {
            let words = client.daemon_page.0.clone();
            Self {
                shared,
                client,
                words,
            }
        }

        /// Nothing is frozen here.
        pub(crate) fn frozen_generation(&self, _ino: u64) -> Option<u32> {
            None
        }

        pub(crate) fn lease_word(&self, ino: u64) -> u32 {
            self.words.load_u32(daemon_page::bucket(ino))
        }

        pub(crate) fn epoch(&self) -> u64 {
            0
        }

        pub(crate) fn digested(&self) -> LogPos {
            LogPos(0)
        }

        /// A message and its answer.
        pub(crate) fn ask(&self, request: Request) -> Result<Reply> {
            memory::fence();
            if matches!(*self.client.client_state.lock(), ClientState::Evicted(_)) {
                return Err(Errno::IO);
            }
            let reply = match request {
                Request::Lease {
                    ino,
                    mode,
                    request_mode,
                } => {
                    let client = self.client.id;
                    let wish = LeaseRequest {
                        client,
                        ino,
                        mode,
                        request_mode,
                    };
                    match self.shared.leases.acquire(&self.client, &wish) {
                        Ok(Some(given)) => Reply::Leased {
                            generation: given.grant.generation,
                            fresh: given.grant.fresh,
                            mode: given.grant.mode,
                            used: given.used,
                            watched: given.watched,
                            shared: given.shared,
                            others: given.grant.others,
                        },
                        Ok(None) => Reply::NotLeased,
                        Err(NoLease::Mediated(mediated)) => Reply::Mediated {
                            ns: mediated.ns,
                            alone: mediated.alone,
                        },
                        Err(_) => return Err(Errno::IO),
                    }
                }
                Request::Unlease { ino } => {
                    let done = self.shared.leases.give_back(&self.client, ino);
                    done.map(|()| Reply::Done).map_err(|_| Errno::IO)?
                }
                other => panic!("{other:?} is no part of the model"),
            };
            memory::step();
            Ok(reply)
        }
    }
}

mod volume_reader {
    use super::errno::{Errno, Result, Stop};
    use crate::daemon_side::shared::Shared;
    use std::sync::Arc;

    /// The volume, for reading.
    pub(crate) struct VolumeReader(pub(crate) Arc<Shared>);

    impl VolumeReader {
        pub(crate) fn get_lacking(&self, stop: Stop) -> Result<()> {
            match stop {
                Stop::Errno(e) => Err(e),
                Stop::Lease(_) => Err(Errno::IO),
            }
        }
    }
}

mod node {
    use super::errno::Stop;
    use super::lease::{LeasedInode, LeasedInodes, OtherUsers};
    use super::lease_word::LeaseWord;
    use super::sync::Mutex;
    use super::volume_reader::VolumeReader;
    use shale_format::LogPos;
    use std::collections::HashMap;
    use std::sync::Arc;

    /// Inodes in memory.
    #[derive(Default)]
    pub(crate) struct Nodes(std::sync::Mutex<HashMap<u64, Arc<Node>>>);

    impl LeasedInodes for Nodes {
        type Inode = Node;

        fn get(&self, ino: u64) -> Option<Arc<Node>> {
            let nodes = self.0.lock().expect("nobody fails holding it");
            nodes.get(&ino).cloned()
        }

        fn load(volume: &VolumeReader, ino: u64, _epoch: u64) -> Result<Arc<Node>, Stop> {
            Ok(Arc::new(Node {
                ino,
                state: Mutex::new(volume.0.in_volume(ino)),
                lease: LeaseWord::default(),
            }))
        }

        /// Nodes are never dropped here, so it does not matter what is digested.
        fn add(&self, node: Arc<Node>, _digested: LogPos) -> Arc<Node> {
            let mut nodes = self.0.lock().expect("nobody fails holding it");
            nodes.entry(node.ino).or_insert(node).clone()
        }

        fn remove(&self, node: &Node) {
            let mut nodes = self.0.lock().expect("nobody fails holding it");
            nodes.remove(&node.ino);
        }
    }

    /// An inode in memory: one number.
    pub(crate) struct Node {
        pub(crate) ino: u64,
        pub(crate) state: Mutex<u64>,
        lease: LeaseWord,
    }

    impl LeasedInode for Node {
        fn number(&self) -> u64 {
            self.ino
        }

        fn lease(&self) -> &LeaseWord {
            &self.lease
        }

        fn reload(&self, volume: &VolumeReader, _epoch: u64) -> Result<(), Stop> {
            let mut state = self.state.lock();
            *state = volume.0.in_volume(self.ino);
            Ok(())
        }

        /// No call of the model frees an inode.
        fn is_freed(&self) -> bool {
            false
        }

        /// No call of the model asks for it.
        fn note_others(&self, _others: &OtherUsers) {}
    }
}
