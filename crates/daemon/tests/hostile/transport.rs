//! The socket: messages that are none, floods, descriptors that nobody asked for.

use crate::attacker::Attacker;
use crate::stage::Stage;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use shale_proto::message::{MESSAGE_BYTES_MAX, PROTO_VERSION, encode};
use shale_proto::{Reply, Request, SocketChannel};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

fn connect(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn attach_message() -> Vec<u8> {
    encode(&Request::Attach {
        version: PROTO_VERSION,
        log_bytes: 0,
    })
    .unwrap()
}

/// A client that comes after all that is served as ever.
fn still_serves(stage: &Stage) {
    let channel = SocketChannel::connect(&stage.place.socket()).unwrap();
    let mut a = Attacker::over(Box::new(channel), &stage.place);
    let uid = rustix::process::geteuid().as_raw();
    a.take(1);
    let ino = a.number();
    let name = format!("m-{ino}");
    let ids = (uid, uid);
    a.append(crate::attacker::create_as(
        1,
        ino,
        0o100_644,
        ids,
        name.as_bytes(),
        b"",
    ));
    assert!(matches!(a.digest(), Reply::Digested { .. }));
    assert_eq!(a.ask(Request::Detach), Reply::Done);
}

#[test]
fn messages_that_are_none_end_their_connection_only() {
    let stage = Stage::new();
    stage.daemon.listen(&stage.place.socket()).unwrap();
    let attach = attach_message();
    let mut longer = attach.clone();
    longer.push(0);
    let mut seed = 7u64;
    let mut garbage: Vec<Vec<u8>> = vec![
        vec![],
        vec![0xff],
        vec![0xff; 40],
        vec![0; MESSAGE_BYTES_MAX],
        vec![1; MESSAGE_BYTES_MAX + 1],
        attach[..attach.len() - 1].to_vec(),
        longer,
        // ReturnBlocks of 2^64 runs.
        [&[4][..], &[0xff; 9], &[1]].concat(),
    ];
    for _ in 0..200 {
        let mut bytes = Vec::new();
        for _ in 0..1 + seed % 60 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.push((seed >> 56) as u8 % if seed & 1024 == 0 { 16 } else { 255 });
        }
        garbage.push(bytes);
    }
    for bytes in &garbage {
        for attached in [false, true] {
            let socket = connect(&stage.place.socket());
            if attached {
                send(&socket, &attach).unwrap();
            }
            // A packet that the socket does not take is one that the daemon never sees.
            let _ = send(&socket, bytes);
        }
    }
    still_serves(&stage);
    stage.end();
}

#[test]
fn descriptors_that_come_unasked_are_closed() {
    let stage = Stage::new();
    stage.daemon.listen(&stage.place.socket()).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let null = std::fs::File::open("/dev/null").unwrap();
    let socket = connect(&stage.place.socket());
    for _ in 0..50 {
        let fds = vec![null.as_fd(); 200];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let message = encode(&Request::Space).unwrap();
        let slices = [IoSlice::new(&message)];
        if rustix::net::sendmsg(&socket, &slices, &mut control, SendFlags::NOSIGNAL).is_err() {
            break;
        }
        let mut reply = [0; 1000];
        let _ = rustix::net::recv(&socket, &mut reply, rustix::net::RecvFlags::empty());
    }
    drop(socket);
    crate::served::eventually("they are closed", || open() < before + 40);
    still_serves(&stage);
    stage.end();
}

#[test]
fn who_never_reads_its_answers_holds_up_nobody() {
    let stage = Stage::new();
    stage.daemon.listen(&stage.place.socket()).unwrap();
    let message = encode(&Request::Status).unwrap();
    let sockets: Vec<OwnedFd> = (0..8).map(|_| connect(&stage.place.socket())).collect();
    for socket in &sockets {
        send(socket, &attach_message()).unwrap();
        for _ in 0..10_000 {
            if send(socket, &message).is_err() {
                break;
            }
        }
    }
    still_serves(&stage);
    // Nor does it hold up the end.
    let begun = std::time::Instant::now();
    stage.end();
    assert!(begun.elapsed() < Duration::from_secs(10));
    drop(sockets);
}

#[test]
fn connections_without_end_are_bounded() {
    let stage = Stage::new();
    stage.daemon.listen(&stage.place.socket()).unwrap();
    let held: Vec<OwnedFd> = (0..600)
        .map_while(|_| try_connect(&stage.place.socket()))
        .collect();
    assert!(held.len() > 400, "{}", held.len());
    drop(held);
    crate::served::eventually("connections are free again", || {
        let Ok(channel) = SocketChannel::connect(&stage.place.socket()) else {
            return false;
        };
        let ask = shale_proto::Channel::call(&channel, Request::Space);
        matches!(ask, Ok((Reply::Space(_), _)))
    });
    still_serves(&stage);
    stage.end();
}

fn try_connect(path: &Path) -> Option<OwnedFd> {
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    for _ in 0..50 {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
            Ok(()) => return Some(socket),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    None
}
