//! Packets between the processes of one mount: `mount`, its supervisor, its daemon.
//!
//! Each end is a socket of a pair; one packet is one message, with descriptors. What
//! was sent stays readable when the sender is killed, and the end of a process is the
//! end of its socket.

use crate::failure::{Failure, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shale_fuse::MountInfo;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Most descriptors of one packet: listening socket and `/dev/fuse`.
const DESCRIPTORS_MAX: usize = 2;
/// Most bytes of one packet: two paths and an error text fit many times.
const PACKET_BYTES_MAX: usize = 64 << 10;
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// What the supervisor tells a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToDaemon {
    /// The first packet. Descriptors: the listening socket, then that of the mount
    /// if it is there already.
    Start(Start),
    /// The volume is mounted. Descriptor: that of the mount.
    Mounted,
}

/// What a daemon is to serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Volume file.
    pub volume: PathBuf,
    /// Where the volume is, or will be, mounted.
    pub mountpoint: PathBuf,
    /// Directory of the mount's state.
    pub state_dir: PathBuf,
    /// Number of the mount, in the place of the kernel's, which it does not tell.
    pub connection: u64,
    /// What was agreed with the kernel, as the last daemon reported ([`MountInfo::to_bytes`]).
    pub info: [u8; MountInfo::BYTES],
    /// Where metrics are to be served, if they are.
    pub metrics: Option<String>,
    /// Without devices that are not there.
    pub degraded: bool,
    /// Nothing is mounted any more: bring every log into the volume and end.
    #[serde(rename = "settle")]
    pub flush_logs: bool,
}

/// What a daemon tells its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// The volume is recovered and can be served.
    Opened,
    /// What was agreed with the kernel; sent before the kernel gets it.
    Negotiated([u8; MountInfo::BYTES]),
    /// Requests are served from now on.
    Serving,
    /// It ends without having done its work, for this reason. Busy: the volume is locked by another process, which will
    /// end: worth another try.
    Failed(Failure),
}

/// What the supervisor tells the `mount` that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Something is waited for; one of the others follows.
    Waiting(String),
    /// The mount is there, and answers soon.
    Mounted,
    /// There is no mount, or no more.
    Failed(Failure),
}

/// Two ends, closed on exec.
///
/// # Errors
/// No descriptors are left.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(Failure::because("cannot make a pair of sockets"))
}

/// Sends one packet. The receiver has it when this returns, whatever becomes of us.
///
/// # Errors
/// The other end is closed.
pub fn send<T: Serialize>(to: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let failed = "cannot send to the other process of the mount";
    let bytes = serde_json::to_vec(message).map_err(Failure::because(failed))?;
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Failure::new(format!("{failed}: {} descriptors", fds.len())));
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&to, &[IoSlice::new(&bytes)], &mut control, flags))
        .map_err(Failure::because(failed))?;
    Ok(())
}

/// The next packet; `None`: the other end is closed.
///
/// # Errors
/// Something that is no packet of ours.
pub fn receive<T: DeserializeOwned>(from: impl AsFd) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let failed = "cannot understand the other process of the mount";
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let data = &mut [IoSliceMut::new(&mut bytes)];
        recvmsg(&from, data, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let got = match got {
        // An end that was closed with packets unread.
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        got => got.map_err(Failure::because(failed))?,
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..got.bytes]).map_err(Failure::because(failed))?;
    Ok(Some((message, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_outlives_the_sender() {
        let (ours, theirs) = pair().unwrap();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let info = MountInfo::new().to_bytes();
        let start = Start {
            volume: "/v".into(),
            mountpoint: "/m".into(),
            state_dir: "/s".into(),
            connection: u64::MAX,
            info,
            metrics: None,
            degraded: false,
            flush_logs: false,
        };
        send(&theirs, &ToDaemon::Start(start), &[file.as_fd()]).unwrap();
        send(&theirs, &ToDaemon::Mounted, &[]).unwrap();
        drop(theirs);
        let (first, fds) = receive::<ToDaemon>(&ours).unwrap().unwrap();
        let ToDaemon::Start(start) = first else {
            panic!("{first:?}")
        };
        assert_eq!(
            (start.connection, start.info, fds.len()),
            (u64::MAX, info, 1)
        );
        let second = receive::<ToDaemon>(&ours).unwrap().unwrap();
        assert!(matches!(second, (ToDaemon::Mounted, fds) if fds.is_empty()));
        assert!(receive::<ToDaemon>(&ours).unwrap().is_none());
        assert!(send(&ours, &FromDaemon::Opened, &[]).is_err());
    }
}
