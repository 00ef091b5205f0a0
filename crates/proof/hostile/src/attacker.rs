//! A client that writes its log and its page by hand, and lies where it can.

use super::served::Place;
use shale_daemon::Daemon;
use shale_format::log::{LogHeader, RING_AT};
use shale_format::record::{
    CreateBody, FallocateBody, Kind, LinkBody, RecordHeader, RenameBody, SetAttrBody, StealBody,
    XattrBody,
};
use shale_format::{Durability, Ino};
use shale_nvm::{Access, Map, MappedRegion, Piece};
use shale_proto::message::{Attached, PROTO_VERSION};
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{Channel, InProcess, LeaseMode, LeaseRequestMode, Reply, Request};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use zerocopy::{FromZeros, IntoBytes};

/// Regular file, directory, as in `d_type`.
pub const FILE: u8 = 8;
pub const DIR: u8 = 4;
/// The attacker's user.
pub const MALLORY: u32 = 1000;

/// A record before it is put into a log: anything can be changed in it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub header: RecordHeader,
    pub body: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Raw {
    pub fn new(kind: Kind, ino: u64, offset: u64, body: &[u8], payload: &[u8]) -> Self {
        let mut header = RecordHeader::new(kind, ino, offset, body.len(), payload.len());
        header.time_ns = 1_700_000_000_000_000_000;
        Self {
            header,
            body: body.to_vec(),
            payload: payload.to_vec(),
        }
    }

    pub fn flags(mut self, bits: u8) -> Self {
        self.header.flags |= bits;
        self
    }

    pub fn reserve(mut self, bytes: u64) -> Self {
        self.header.reserve = bytes.div_ceil(64) as u32;
        self
    }
}

pub fn create_as(dir: u64, ino: u64, mode: u32, ids: (u32, u32), name: &[u8], to: &[u8]) -> Raw {
    let body = CreateBody {
        mode,
        uid: ids.0,
        gid: ids.1,
        generation: 1,
        name_bytes: name.len() as u16,
        target_bytes: to.len() as u16,
        ..CreateBody::new_zeroed()
    };
    let payload = [name, to].concat();
    Raw::new(Kind::Create, dir, ino, body.as_bytes(), &payload).reserve(16_512)
}

pub fn create(dir: u64, ino: u64, mode: u32, name: &[u8]) -> Raw {
    create_as(dir, ino, mode, (MALLORY, MALLORY), name, b"")
}

pub fn write(ino: u64, offset: u64, data: &[u8]) -> Raw {
    let blocks = (data.len() as u64).div_ceil(4096) + 1;
    Raw::new(Kind::Write, ino, offset, &[], data).reserve(blocks * 4160 + 8192)
}

fn name_body(kind: u8, name: &[u8]) -> LinkBody {
    LinkBody {
        name_bytes: name.len() as u16,
        kind,
        ..LinkBody::new_zeroed()
    }
}

pub fn link(dir: u64, ino: u64, kind: u8, name: &[u8]) -> Raw {
    let body = name_body(kind, name);
    Raw::new(Kind::Link, dir, ino, body.as_bytes(), name).reserve(8192)
}

pub fn unlink(dir: u64, ino: u64, kind: u8, name: &[u8]) -> Raw {
    let body = name_body(kind, name);
    Raw::new(Kind::Unlink, dir, ino, body.as_bytes(), name)
}

/// `replaced`: inode and type of what has the new name.
pub fn rename(
    from: (u64, &[u8]),
    (ino, kind): (u64, u8),
    to: (u64, &[u8]),
    replaced: (u64, u8),
    flags: u32,
) -> Raw {
    let body = RenameBody {
        new_parent: to.0,
        replaced: replaced.0,
        flags,
        old_bytes: from.1.len() as u16,
        new_bytes: to.1.len() as u16,
        kind,
        replaced_kind: replaced.1,
        ..RenameBody::new_zeroed()
    };
    let payload = [from.1, to.1].concat();
    let directory = if kind == DIR { 16 } else { 0 };
    Raw::new(Kind::Rename, from.0, ino, body.as_bytes(), &payload)
        .flags(directory)
        .reserve(8192)
}

pub fn steal(ino: u64, offset: u64, addr: u64, blocks: u32, end: u64) -> Raw {
    let body = StealBody {
        addr,
        blocks,
        data_crc: 0,
        end,
    };
    let raw = Raw::new(Kind::Steal, ino, offset, body.as_bytes(), &[]).flags(2);
    raw.reserve(u64::from(blocks.min(64)) * 4160 + 8192)
}

pub fn truncate(ino: u64, size: u64) -> Raw {
    Raw::new(Kind::Truncate, ino, size, &[], &[]).reserve(8192)
}

pub fn set_attr(ino: u64, change: impl FnOnce(&mut SetAttrBody)) -> Raw {
    let mut body = SetAttrBody::new_zeroed();
    change(&mut body);
    Raw::new(Kind::SetAttr, ino, 0, body.as_bytes(), &[])
}

pub fn set_xattr(ino: u64, name: &[u8], value: &[u8]) -> Raw {
    let body = XattrBody {
        value_bytes: value.len() as u32,
        name_bytes: name.len() as u16,
        reserved: 0,
    };
    let payload = [name, value].concat();
    Raw::new(Kind::SetXattr, ino, 0, body.as_bytes(), &payload).reserve(payload.len() as u64 + 8192)
}

pub fn fallocate(ino: u64, offset: u64, bytes: u64, mode: u32) -> Raw {
    let body = FallocateBody {
        bytes,
        mode,
        reserved: 0,
    };
    Raw::new(Kind::Fallocate, ino, offset, body.as_bytes(), &[]).reserve(8192)
}

pub fn free(ino: u64) -> Raw {
    Raw::new(Kind::Free, ino, 0, &[], &[])
}

/// An attached client of user [`MALLORY`] (or another one) that keeps to no rule.
pub struct Attacker {
    channel: Box<dyn Channel>,
    pub attached: Attached,
    pub log: Map,
    pub page: Map,
    pub daemon_page: Map,
    pub log_fd: OwnedFd,
    /// Of a buffered one: its log in NVM.
    pub nvm_log: Option<Map>,
    pub nvm_log_fd: Option<OwnedFd>,
    pub log_path: PathBuf,
    salt: u64,
    /// Where the next record goes.
    pub head: u64,
    numbers: Vec<u64>,
}

impl Attacker {
    pub fn new(daemon: &Daemon, place: &Place, uid: u32) -> Self {
        Self::over(Box::new(InProcess(daemon.attach_as(uid, &[uid]))), place)
    }

    /// A buffered one.
    pub fn buffered(daemon: &Daemon, place: &Place, uid: u32) -> Self {
        let channel = Box::new(InProcess(daemon.attach_as(uid, &[uid])));
        Self::with_policy(channel, place, Durability::Buffered as u8)
    }

    pub fn over(channel: Box<dyn Channel>, place: &Place) -> Self {
        Self::with_policy(channel, place, 0)
    }

    fn with_policy(channel: Box<dyn Channel>, place: &Place, durability: u8) -> Self {
        let ask = Request::Attach {
            version: PROTO_VERSION,
            log_bytes: 0,
            durability,
        };
        let (reply, fds) = channel.call(ask).unwrap();
        let Reply::Attached(attached) = reply else {
            panic!("{reply:?}");
        };
        let mut fds = fds.into_iter();
        let mut map = |bytes, access| {
            let fd = fds.next().unwrap();
            let kept = fd.try_clone().unwrap();
            (Map::open(vec![Piece { fd, bytes }], access).unwrap(), kept)
        };
        let (log, log_fd) = map(RING_AT + attached.ring_bytes as usize, Access::ReadWrite);
        let (daemon_page, _) = map(daemon_page::BYTES, Access::ReadOnly);
        let (page, _) = map(client_page::BYTES, Access::ReadWrite);
        let nvm_log = attached
            .buffered
            .then(|| map(RING_AT + attached.ring_bytes as usize, Access::ReadWrite));
        let (nvm_log, nvm_log_fd) = nvm_log.unzip();
        let header = LogHeader::decode(&log.load_array::<{ LogHeader::BYTES }>(0)).unwrap();
        let log_path = place.nvm().join(format!("log-{:03}", attached.slot));
        let one = Self {
            channel,
            attached,
            log,
            page,
            daemon_page,
            log_fd,
            nvm_log,
            nvm_log_fd,
            log_path,
            salt: header.salt,
            head: 0,
            numbers: Vec::new(),
        };
        one.ask(Request::Reserve {
            wanted: 2 << 20,
            least: 0,
        });
        one
    }

    pub fn ask(&self, request: Request) -> Reply {
        match self.channel.call(request) {
            Ok((reply, _)) => reply,
            Err(e) => Reply::Refused {
                errno: libc::EPIPE,
                why: e.to_string(),
            },
        }
    }

    /// As [`Self::ask`], with the descriptors that come along.
    pub fn ask_for_fds(&self, request: Request) -> (Reply, Vec<OwnedFd>) {
        self.channel.call(request).unwrap()
    }

    pub fn lease(&self, ino: Ino, mode: LeaseMode) -> Reply {
        self.ask(Request::Lease {
            ino: ino.0,
            mode,
            request_mode: LeaseRequestMode::Revoke,
        })
    }

    /// Takes a lease for writing, which has to be given.
    pub fn take(&self, ino: u64) {
        let reply = self.lease(Ino(ino), LeaseMode::Exclusive);
        assert!(matches!(reply, Reply::Leased { .. }), "{ino}: {reply:?}");
    }

    /// A granted number.
    pub fn number(&mut self) -> u64 {
        if self.numbers.is_empty() {
            let ask = Request::GrantInodes { parent: 1, runs: 1 };
            let Reply::Inodes { inos } = self.ask(ask) else {
                panic!("no numbers");
            };
            self.numbers = inos;
        }
        self.numbers.pop().unwrap()
    }

    pub fn view(&self) -> &MappedRegion {
        &self.log
    }

    /// Byte of the log file where position `pos` is.
    pub fn byte(&self, pos: u64) -> usize {
        RING_AT + (pos % self.attached.ring_bytes) as usize
    }

    /// Puts a record at the head without committing it, whole and with a checksum that
    /// fits. Gives its position.
    pub fn put(&mut self, raw: Raw) -> u64 {
        let pos = self.head;
        self.put_as(raw, |header| header.pos = pos, |_| ())
    }

    /// Puts a record: `before` changes the header before it is sealed, `after` when it is.
    pub fn put_as(
        &mut self,
        mut raw: Raw,
        before: impl FnOnce(&mut RecordHeader),
        after: impl FnOnce(&mut RecordHeader),
    ) -> u64 {
        let (pos, bytes) = (self.head, u64::from(raw.header.bytes));
        raw.header.pos = pos;
        before(&mut raw.header);
        raw.header.crc = raw.header.checksum(self.salt, &raw.body, &raw.payload);
        after(&mut raw.header);
        let all = [raw.header.as_bytes(), &raw.body, &raw.payload].concat();
        self.log.store(self.byte(pos), &all);
        self.head += bytes;
        pos
    }

    pub fn commit(&self) {
        self.commit_at(self.head);
    }

    pub fn commit_at(&self, pos: u64) {
        self.page.store_u64(client_page::PUBLISHED, pos);
    }

    /// Puts and commits a record.
    pub fn append(&mut self, raw: Raw) -> u64 {
        let pos = self.put(raw);
        self.commit();
        pos
    }

    pub fn digest(&self) -> Reply {
        self.ask(Request::Digest { upto: u64::MAX })
    }

    /// Makes a file of its own, with a lease on everything it takes.
    pub fn make(&mut self, dir: u64, name: &str, data: &[u8]) -> u64 {
        self.take(dir);
        let ino = self.number();
        self.append(create(dir, ino, 0o100_644, name.as_bytes()));
        if !data.is_empty() {
            self.append(write(ino, 0, data));
        }
        ino
    }

    pub fn mkdir(&mut self, dir: u64, name: &str) -> u64 {
        self.take(dir);
        let ino = self.number();
        self.append(create(dir, ino, 0o040_755, name.as_bytes()));
        ino
    }
}
