//! The socket: who connects becomes a connection with a thread of its own. The end of a
//! connection is the end of its client.

use crate::connections::attach::Requester;
use crate::connections::connection::Connection;
use crate::connections::message_rate::MessageRate;
use crate::services::Services;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use shale_proto::{Handler, ProtoError, SocketPeer};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Connections that are open at once.
const CONNECTIONS_MAX: usize = 512;
/// Of these, connections of one user that is not root.
const CONNECTIONS_EACH_MAX: usize = CONNECTIONS_MAX / 2;
/// How long the accept loop sleeps before it looks whether it should stop.
const ACCEPT_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

struct Open {
    uid: u32,
    /// For shutting the connection down from outside.
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// Connections and their threads.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<(u64, HashMap<u64, Open>)>,
    messages: MessageRate,
}

impl Connections {
    /// Accepts until the daemon closes.
    pub(crate) fn accept_loop(self: &Arc<Self>, services: &Arc<Services>, listener: &OwnedFd) {
        while !services.clients.is_closing() {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            match poll(&mut fds, Some(&ACCEPT_WAIT)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => {
                    tracing::error!("socket: {e}: no new clients");
                    return;
                }
            }
            if let Err(e) = self.accept_one(services, listener) {
                self.warn(services, format_args!("a client could not connect: {e}"));
                // Descriptors or memory are short: give others time to end.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
    }

    fn accept_one(
        self: &Arc<Self>,
        services: &Arc<Services>,
        listener: &OwnedFd,
    ) -> Result<(), ProtoError> {
        let peer = SocketPeer::accept(listener.as_fd())?;
        let who = peer.identity()?;
        let wake = peer.duplicate()?;
        let groups = shale_sys::peer_groups(wake.as_fd());
        let groups = groups.map_err(std::io::Error::from)?;
        let mut open = self.open.lock();
        let same = open.1.values().filter(|o| o.uid == who.uid).count();
        let many = match who.uid {
            _ if open.1.len() >= CONNECTIONS_MAX => format!("{CONNECTIONS_MAX} are open"),
            uid if uid != 0 && same >= CONNECTIONS_EACH_MAX => {
                format!("user {uid} has {same} open")
            }
            _ => String::new(),
        };
        if !many.is_empty() {
            // Closed at once: others who connect do not wait for it.
            self.warn(services, format_args!("a connection was refused: {many}"));
            return Ok(());
        }
        let number = open.0;
        open.0 += 1;
        let (all, services) = (self.clone(), services.clone());
        let thread = std::thread::Builder::new()
            .name(format!("client-{}", who.pid))
            .spawn(move || {
                let requester = Requester::peer(who, groups);
                let allowed = services.attach.may_attach(&requester).is_ok();
                let (pid, uid) = (requester.pid, requester.person.uid);
                let ended = serve(
                    &Connection::new(services.clone(), requester),
                    &peer,
                    allowed,
                );
                if let Err(e) = ended {
                    let who = format_args!("process {pid} (user {uid})");
                    all.warn(&services, format_args!("connection of {who} ends: {e}"));
                }
                // Dropping the connection above has digested the client's log.
                all.open.lock().1.remove(&number);
            })?;
        open.1.insert(
            number,
            Open {
                uid: who.uid,
                wake,
                thread: Some(thread),
            },
        );
        Ok(())
    }

    /// Tells the log what a user may cause as often as he likes.
    fn warn(&self, services: &Services, message: std::fmt::Arguments<'_>) {
        self.messages.warn(services.clock.monotonic_ns(), message);
    }

    /// Ends all connections, as if every client had gone, and waits for their threads.
    pub(crate) fn close_all(&self) {
        let threads: Vec<JoinHandle<()>> = {
            let mut open = self.open.lock();
            open.1
                .values_mut()
                .filter_map(|one| {
                    // A connection that is gone already needs no waking.
                    let _ = rustix::net::shutdown(&one.wake, Shutdown::Both);
                    one.thread.take()
                })
                .collect()
        };
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a connection's thread panicked");
            }
        }
    }
}

/// Who is not `allowed` anything hears so once, and takes no connection from others.
///
/// # Errors
/// What came is no request.
fn serve(connection: &Connection, peer: &SocketPeer, allowed: bool) -> Result<(), ProtoError> {
    loop {
        let request = match peer.next() {
            Ok(request) => request,
            Err(ProtoError::Closed) => return Ok(()),
            Err(e) => return Err(e),
        };
        let (reply, fds) = connection.handle(request);
        if let Err(e) = peer.answer(&reply, &fds) {
            tracing::debug!("connection ends: {e}");
            return Ok(());
        }
        if !allowed {
            return Ok(());
        }
    }
}
