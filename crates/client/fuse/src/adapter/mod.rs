//! Messages of the kernel to calls of [`NodeFs`], and its answers to replies.
//!
//! Called by the threads of `serving`; calls `backend` and, around changes that the page cache must not miss,
//! `kernel_cache`. Holds no locks, and no state but how long answers stay valid.
//!
//! `ENOSYS` tells the kernel to stop asking: OPEN, FLUSH, ACCESS, INTERRUPT, POLL and unknown requests get it. No
//! program sees it as a failure; the table is in [`Adapter::handle`].

mod attributes;
mod data;
mod extended;
mod message;
mod names;
mod promise;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::data::{CacheEffect, ioctl_of};
pub use self::extended::IOC_SHUTDOWN;
use self::message::{Body, Payload};
use crate::backend::node::{Errno, NodeFs, Request, Result};
use crate::serving::negotiate::MountInfo;
use crate::serving::wire::{
    BatchForgetIn, ForgetIn, ForgetOne, InHeader, OpenOut, UNIQUE_RESENT, opcode,
};

/// How long the kernel may use an answer before it asks again.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// Names that exist.
    pub entry: Duration,
    /// Names that do not; zero: they are not remembered.
    pub negative: Duration,
    /// Attributes.
    pub attr: Duration,
}

/// What to answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reply with so many bytes of payload, or an error.
    Reply(Result<usize>),
    /// Nothing: the kernel expects no reply.
    Silence,
}

/// Serves requests from a file system.
pub struct Adapter<F: ?Sized> {
    fs: Arc<F>,
    validity: Validity,
    acls: AtomicBool,
    are_resent_read: AtomicBool,
}

/// One request being served.
struct Call<'a, F: ?Sized> {
    fs: &'a F,
    validity: Validity,
    /// The kernel obeys access control lists.
    acls: bool,
    request: Request,
    /// The inode it is about; of changes of names the directory.
    ino: u64,
    body: Body<'a>,
    out: Payload<'a>,
}

/// Whether this kind of request gets no reply, and is not sent again after a crash.
pub fn is_forget(kind: u32) -> bool {
    matches!(kind, opcode::FORGET | opcode::BATCH_FORGET)
}

impl<F: NodeFs + ?Sized> Adapter<F> {
    pub fn new(fs: Arc<F>, validity: Validity) -> Self {
        Self {
            fs,
            validity,
            acls: AtomicBool::new(false),
            are_resent_read: AtomicBool::new(false),
        }
    }

    /// Requests that are sent again after a crash stand before all others in the kernel's queue.
    fn note_resent(&self, header: &InHeader) {
        let is_new = header.unique & UNIQUE_RESENT == 0 && header.opcode != opcode::INTERRUPT;
        if is_new && !self.are_resent_read.load(Ordering::Relaxed) {
            self.are_resent_read.store(true, Ordering::Relaxed);
            self.fs.resent_are_read();
        }
    }

    /// Whether the kernel obeys access control lists, as was agreed.
    pub fn agree(&self, info: &MountInfo) {
        self.acls.store(info.has_acls(), Ordering::Release);
    }

    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// What a request does to the kernel's pages of a file.
    pub fn pages(&self, header: &InHeader, message: &[u8]) -> CacheEffect {
        CacheEffect::of(header, message, self.acls.load(Ordering::Acquire))
    }

    /// What has to be durable before a request that was served without an error is answered: see [`NodeFs::to_be_durable`].
    pub fn to_be_durable(&self, header: &InHeader, message: &[u8]) -> Result<Option<u64>> {
        match promise::promise_of(header, message) {
            Some(promise) => self.fs.to_be_durable(promise),
            None => Ok(None),
        }
    }

    /// Serves any request but INIT. `message` is the whole message, `out` where
    /// the payload of the reply goes.
    pub fn handle(&self, header: &InHeader, message: &[u8], out: &mut [u8]) -> Answer {
        let body = Body::of(header, message);
        if is_forget(header.opcode) {
            if self.forget(header, body).is_err() {
                tracing::error!(?header, "malformed FORGET");
            }
            return Answer::Silence;
        }
        self.note_resent(header);
        let call = Call {
            fs: &*self.fs,
            validity: self.validity,
            acls: self.acls.load(Ordering::Acquire),
            request: Request {
                unique: header.unique & !UNIQUE_RESENT,
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
                umask: 0,
                direct: false,
                opened: false,
                from_cache: false,
            },
            ino: header.nodeid,
            body,
            out: Payload::new(out),
        };
        let result = call.dispatch(header.opcode).map_err(|errno| match errno.0 {
            1..=511 => errno,
            _ => Errno(libc::EIO),
        });
        tracing::trace!(
            opcode = header.opcode,
            ino = header.nodeid,
            unique = header.unique,
            ?result,
            "request"
        );
        Answer::Reply(result)
    }

    fn forget(&self, header: &InHeader, mut body: Body<'_>) -> Result<()> {
        if header.opcode == opcode::FORGET {
            self.fs
                .forget(header.nodeid, body.take::<ForgetIn>()?.nlookup);
            return Ok(());
        }
        for _ in 0..body.take::<BatchForgetIn>()?.count {
            let one: ForgetOne = body.take()?;
            self.fs.forget(one.nodeid, one.nlookup);
        }
        Ok(())
    }
}

impl<F: NodeFs + ?Sized> Call<'_, F> {
    fn dispatch(mut self, kind: u32) -> Result<usize> {
        match kind {
            opcode::LOOKUP => self.lookup(),
            opcode::GETATTR => self.getattr(),
            opcode::SETATTR => self.setattr(),
            opcode::STATX => self.statx(),
            opcode::READLINK => self.readlink(),
            opcode::SYMLINK => self.symlink(),
            opcode::MKNOD => self.mknod(),
            opcode::MKDIR => self.mkdir(),
            opcode::UNLINK => self.unlink(),
            opcode::RMDIR => self.rmdir(),
            opcode::RENAME => self.rename(),
            opcode::RENAME2 => self.rename2(),
            opcode::LINK => self.link(),
            opcode::CREATE => self.create(),
            opcode::TMPFILE => self.tmpfile(),
            opcode::READ => self.read(),
            opcode::WRITE => self.write(),
            opcode::READDIR => self.readdir(false),
            opcode::READDIRPLUS => self.readdir(true),
            opcode::FSYNC | opcode::FSYNCDIR => self.fsync(kind == opcode::FSYNCDIR),
            opcode::SYNCFS => self.fs.syncfs(&self.request).map(|()| 0),
            opcode::STATFS => self.statfs(),
            opcode::FALLOCATE => self.fallocate(),
            opcode::LSEEK => self.lseek(),
            opcode::COPY_FILE_RANGE => self.copy_file_range(false),
            opcode::COPY_FILE_RANGE_64 => self.copy_file_range(true),
            opcode::SETXATTR => self.setxattr(),
            opcode::GETXATTR => self.getxattr(),
            opcode::LISTXATTR => self.listxattr(),
            opcode::REMOVEXATTR => self.removexattr(),
            opcode::IOCTL => self.ioctl(),
            // Opened with nothing set. Without an answer the kernel would keep listings: also
            // one that was read while a name in it went (found by eight processes at once).
            opcode::OPENDIR => self.out.put(&OpenOut::default()).map(|()| self.out.used()),
            // Of a file made by CREATE before the first OPEN: nothing was opened here.
            // DESTROY: `NodeFs::destroy` follows when the device says that it is gone.
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => Ok(0),
            // OPEN: the kernel opens by itself from now on. FLUSH: close needs
            // no message. ACCESS: `default_permissions` decides. INTERRUPT: requests are
            // short, none is given up half-way. Locks and BMAP: never asked for.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

#[cfg(test)]
mod tests;
