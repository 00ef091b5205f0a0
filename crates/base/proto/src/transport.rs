//! How messages travel: a Unix sequenced-packet socket with descriptors, or a call
//! within one process. One packet is one message.

use crate::error::ProtoError;
use crate::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, Reply, Request, decode, encode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A client's way to its daemon.
pub trait Channel: Send + Sync {
    /// Asks and waits for the answer and the descriptors that come with it.
    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError>;

    /// Asks by a new connection, behind one that has ended, what a process may ask that is no client; waits until a daemon that is started again
    /// answers. Without a way to one: [`ProtoError::Closed`].
    fn call_again(&self, _request: Request) -> Result<Reply, ProtoError> {
        Err(ProtoError::Closed)
    }
}

/// The daemon's side of one client.
pub trait Handler: Send + Sync {
    /// Answers one request.
    fn handle(&self, request: Request) -> (Reply, Vec<OwnedFd>);
}

/// Client and daemon in one process.
pub struct InProcess(pub Arc<dyn Handler>);

impl Channel for InProcess {
    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError> {
        Ok(self.0.handle(request))
    }
}

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ProtoError> {
    let bytes = encode(message)?;
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ProtoError::TooLong {
            bytes: fds.len(),
            limit: DESCRIPTORS_MAX,
        });
    }
    retry(|| {
        sendmsg(
            socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

/// `bytes` is space for a message, as long as one can be.
fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<(T, Vec<OwnedFd>), ProtoError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut control,
            // With the length that the message has, whether or not there is space for it.
            RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    match got.bytes {
        0 => Err(ProtoError::Closed),
        n if n > MESSAGE_BYTES_MAX => Err(ProtoError::TooLong {
            bytes: n,
            limit: MESSAGE_BYTES_MAX,
        }),
        n => Ok((decode(&bytes[..n])?, fds)),
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, ProtoError> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(ProtoError::Io(e.into())),
            Ok(v) => return Ok(v),
        }
    }
}

fn seqpacket() -> Result<OwnedFd, ProtoError> {
    let flags = SocketFlags::CLOEXEC;
    Ok(
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(std::io::Error::from)?,
    )
}

/// A client's connection to a daemon in another process. Calls of several threads
/// take turns.
pub struct SocketChannel {
    socket: Mutex<Connection>,
    /// Where the daemon listens, or the next one.
    path: PathBuf,
}

/// A connected socket, and space for a message from it.
struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
}

impl SocketChannel {
    /// Connects to the daemon that listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, ProtoError> {
        Self::connect_placed(path, |socket| socket)
    }

    /// As [`Self::connect`], on the descriptor that `place` makes of the socket's: for who
    /// must not have one among the low numbers.
    pub fn connect_placed(
        path: &Path,
        place: impl FnOnce(OwnedFd) -> OwnedFd,
    ) -> Result<Self, ProtoError> {
        let socket = place(seqpacket()?);
        let address = rustix::net::SocketAddrUnix::new(path).map_err(std::io::Error::from)?;
        rustix::net::connect(&socket, &address).map_err(std::io::Error::from)?;
        Ok(Self {
            socket: Mutex::new(Connection {
                socket,
                received: vec![0; MESSAGE_BYTES_MAX],
            }),
            path: path.to_owned(),
        })
    }

    /// As [`Channel::call_again`], placed as by [`Self::connect_placed`].
    ///
    /// # Errors
    /// Nobody listens, or answers.
    pub fn call_again_placed(
        &self,
        request: Request,
        place: impl FnOnce(OwnedFd) -> OwnedFd,
    ) -> Result<Reply, ProtoError> {
        let again = Self::connect_placed(&self.path, place)?;
        Ok(again.call(request)?.0)
    }
}

impl Channel for SocketChannel {
    fn call_again(&self, request: Request) -> Result<Reply, ProtoError> {
        self.call_again_placed(request, |socket| socket)
    }

    fn call(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), ProtoError> {
        let mut connection = self
            .socket
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Connection { socket, received } = &mut *connection;
        send(socket.as_fd(), &request, &[])?;
        receive(socket.as_fd(), received)
    }
}

/// The daemon's end of a client's connection.
pub struct SocketPeer {
    socket: OwnedFd,
    /// Space for a message.
    received: Mutex<Vec<u8>>,
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl SocketPeer {
    /// A socket that listens at `path`; an old socket file there is replaced.
    pub fn listen(path: &Path) -> Result<OwnedFd, ProtoError> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let socket = seqpacket()?;
        let address = rustix::net::SocketAddrUnix::new(path).map_err(std::io::Error::from)?;
        rustix::net::bind(&socket, &address).map_err(std::io::Error::from)?;
        rustix::net::listen(&socket, 64).map_err(std::io::Error::from)?;
        Ok(socket)
    }

    /// Waits for the next client of a listening socket.
    pub fn accept(listener: BorrowedFd<'_>) -> Result<Self, ProtoError> {
        let socket = retry(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC))?;
        Ok(Self {
            socket,
            received: Mutex::new(vec![0; MESSAGE_BYTES_MAX]),
        })
    }

    /// Who connected (`SO_PEERCRED`).
    pub fn identity(&self) -> Result<PeerIdentity, ProtoError> {
        let c =
            rustix::net::sockopt::socket_peercred(&self.socket).map_err(std::io::Error::from)?;
        Ok(PeerIdentity {
            pid: c.pid.as_raw_nonzero().get(),
            uid: c.uid.as_raw(),
            gid: c.gid.as_raw(),
        })
    }

    /// Another descriptor of the connection: shutting it down ends a wait in [`Self::next`].
    pub fn duplicate(&self) -> Result<OwnedFd, ProtoError> {
        Ok(self.socket.try_clone()?)
    }

    /// The next request. [`ProtoError::Closed`] when the client has gone.
    pub fn next(&self) -> Result<Request, ProtoError> {
        let mut received = self
            .received
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(receive(self.socket.as_fd(), &mut received)?.0)
    }

    /// Answers the last request.
    pub fn answer(&self, reply: &Reply, fds: &[OwnedFd]) -> Result<(), ProtoError> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        send(self.socket.as_fd(), reply, &fds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_over_the_socket_with_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = SocketPeer::listen(&path).unwrap();
        let server = std::thread::spawn(move || {
            let peer = SocketPeer::accept(listener.as_fd()).unwrap();
            let who = peer.identity().unwrap();
            assert_eq!(who.pid, std::process::id() as i32);
            assert_eq!(peer.next().unwrap(), Request::Space);
            let fd: OwnedFd = std::fs::File::open("/proc/self/stat").unwrap().into();
            peer.answer(&Reply::Done, &[fd]).unwrap();
            assert!(matches!(peer.next(), Err(ProtoError::Closed)));
        });
        let client = SocketChannel::connect(&path).unwrap();
        let (reply, fds) = client.call(Request::Space).unwrap();
        assert_eq!((reply, fds.len()), (Reply::Done, 1));
        drop(client);
        server.join().unwrap();
    }
}
