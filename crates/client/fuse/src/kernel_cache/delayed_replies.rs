//! Answers about sizes that the kernel may know too small go out here: see [`super::size`].
//!
//! A notification that has the kernel know a size waits for requests that read or write
//! the last page. So it comes from a thread that serves none, and the answer after it.

use std::sync::mpsc::{Receiver, Sender, channel};

use zerocopy::FromBytes;

use crate::backend::node::NodeFs;
use crate::error::FuseError;
use crate::kernel_cache::cache::{BeforeAnswer, KernelCache};
use crate::kernel_cache::size::Rights;
use crate::serving::notify::{Notifier, keeps_nothing};
use crate::serving::transport::{Device, LockedBuf};
use crate::serving::wire::{AttrOut, InHeader, OutHeader};

/// An answer to a question for attributes.
struct DelayedReply {
    ino: u64,
    unique: u64,
    payload: Vec<u8>,
}

/// To who sends answers that are held back.
#[derive(Clone)]
pub(crate) struct DelayedReplies(Sender<DelayedReply>);

/// What [`DelayedReplies::run`] works on.
pub(crate) struct Queue(Receiver<DelayedReply>);

impl DelayedReplies {
    pub(crate) fn new() -> (Self, Queue) {
        let (sender, receiver) = channel();
        (Self(sender), Queue(receiver))
    }

    /// Has an answer sent when the kernel knows the size. `false`: nobody does that.
    pub(crate) fn hold(&self, header: &InHeader, payload: &[u8]) -> bool {
        let held = DelayedReply {
            ino: header.nodeid,
            unique: header.unique,
            payload: payload.to_vec(),
        };
        self.0.send(held).is_ok()
    }
}

impl Queue {
    /// Sends answers until nobody can hold back any more.
    ///
    /// # Errors
    /// [`FuseError::Buffer`] before it begins.
    pub(crate) fn run<F: NodeFs + ?Sized>(
        self,
        fs: &F,
        cache: &KernelCache,
        device: &Device,
        notifier: &Notifier,
        unique_of: impl Fn(u64) -> u64,
    ) -> Result<(), FuseError> {
        // Memory that is there when the kernel takes the answer, as for all answers.
        let mut buf = LockedBuf::new(4096)?;
        for held in self.0 {
            let attributes = AttrOut::read_from_prefix(&held.payload);
            let answer = attributes.ok().map(|(AttrOut { attr, .. }, _)| {
                let rights = Rights {
                    uid: attr.uid,
                    gid: attr.gid,
                    mode: attr.mode,
                };
                (attr.size, rights)
            });
            let before = match answer {
                Some((size, rights)) => cache.before_answer(held.ino, size, rights),
                None => BeforeAnswer::Nothing,
            };
            if let (BeforeAnswer::Size, Some((size, _))) = (before, answer) {
                grow(fs, notifier, held.ino, size);
            }
            let at = size_of::<OutHeader>();
            buf[at..at + held.payload.len()].copy_from_slice(&held.payload);
            let sent = device.reply(&mut buf, held.unique, Ok(held.payload.len()));
            if let Err(error) = sent
                && error.raw_os_error() != Some(libc::ENODEV)
            {
                tracing::error!(%error, ino = held.ino, "attributes refused by the kernel");
            }
            fs.answered(unique_of(held.unique));
            match answer {
                Some((_, rights)) if before == BeforeAnswer::Rights => {
                    cache.rights_answered(held.ino, rights);
                }
                Some((size, _)) => cache.size_answered(held.ino, size),
                None => cache.size_not_answered(held.ino),
            }
        }
        Ok(())
    }
}

/// Has the kernel know that a file is `size` bytes long.
fn grow<F: NodeFs + ?Sized>(fs: &F, notifier: &Notifier, ino: u64, size: u64) {
    let Some(last) = fs.last_byte(ino, size) else {
        return;
    };
    match notifier.grow(ino, size, last) {
        Err(e) if keeps_nothing(&e) => {}
        Err(error) => tracing::error!(ino, %error, "the kernel does not take a size"),
        Ok(()) => {}
    }
}
