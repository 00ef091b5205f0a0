//! The socket: messages that are none, floods, descriptors that nobody asked for.
//!
//! After each a client that comes over the socket has to be served as ever.

use super::attacker::{Attacker, MALLORY, create_as, write};
use super::served::eventually;
use super::{Case, Scene, harmless};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use shale_proto::message::{MESSAGE_BYTES_MAX, PROTO_VERSION, encode};
use shale_proto::{Reply, Request, SocketChannel};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

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
        durability: 0,
    })
    .unwrap()
}

/// A client that comes after all that is served as ever.
fn still_serves(scene: &Scene<'_>) -> (Attacker, Reply) {
    let channel = loop {
        let connected = SocketChannel::connect(&scene.stage.socket());
        // Connections of an attack that has ended go one by one.
        match connected {
            Ok(channel) => break channel,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut a = Attacker::over(Box::new(channel), &scene.stage.place);
    let uid = rustix::process::geteuid().as_raw();
    a.take(1);
    let ino = a.number();
    let name = scene.name("after");
    a.append(create_as(
        1,
        ino,
        0o100_644,
        (uid, uid),
        name.as_bytes(),
        b"",
    ));
    let reply = a.digest();
    (a, reply)
}

fn no_messages(scene: &Scene<'_>) -> (Attacker, Reply) {
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
            let socket = connect(&scene.stage.socket());
            if attached {
                send(&socket, &attach).unwrap();
            }
            // A packet that the socket does not take is one that the daemon never sees.
            let _ = send(&socket, bytes);
        }
    }
    still_serves(scene)
}

/// Another version of the protocol than the daemon's.
fn other_version(scene: &Scene<'_>) -> (Attacker, Reply) {
    for version in [0, PROTO_VERSION - 1, PROTO_VERSION + 1, u32::MAX] {
        let channel = SocketChannel::connect(&scene.stage.socket()).unwrap();
        let log_bytes = u64::MAX;
        let ask = Request::Attach {
            version,
            log_bytes,
            durability: 0,
        };
        let (reply, fds) = shale_proto::Channel::call(&channel, ask).unwrap();
        let noted = matches!(
            &reply,
            Reply::Refused {
                errno: libc::EPROTO,
                ..
            }
        );
        assert!(noted && fds.is_empty(), "{version}: {reply:?}");
    }
    still_serves(scene)
}

fn descriptors(scene: &Scene<'_>) -> (Attacker, Reply) {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let null = std::fs::File::open("/dev/null").unwrap();
    let socket = connect(&scene.stage.socket());
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
    if scene.alone {
        // Other tests of this process open some, but not thousands.
        eventually("they are closed", || open() < before + 2_000);
    }
    still_serves(scene)
}

fn answers_unread(scene: &Scene<'_>) -> (Attacker, Reply) {
    let message = encode(&Request::Status).unwrap();
    let sockets: Vec<OwnedFd> = (0..8).map(|_| connect(&scene.stage.socket())).collect();
    for socket in &sockets {
        send(socket, &attach_message()).unwrap();
        for _ in 0..10_000 {
            if send(socket, &message).is_err() {
                break;
            }
        }
    }
    let begun = Instant::now();
    let served = still_serves(scene);
    assert!(begun.elapsed() < Duration::from_secs(10), "held up");
    drop(sockets);
    served
}

fn connections(scene: &Scene<'_>) -> (Attacker, Reply) {
    let held: Vec<OwnedFd> = (0..600)
        .map_while(|_| try_connect(&scene.stage.socket()))
        .collect();
    assert!(!scene.alone || held.len() > 400, "{}", held.len());
    drop(held);
    eventually("connections are free again", || {
        let Ok(channel) = SocketChannel::connect(&scene.stage.socket()) else {
            return false;
        };
        let ask = shale_proto::Channel::call(&channel, Request::Space);
        matches!(ask, Ok((Reply::Space(_), _)))
    });
    still_serves(scene)
}

/// A thread that has `groups` and no others connects as `uid`, writes to `ino`, and has it
/// digested. `None`: only root may become somebody else.
fn write_as(scene: &Scene<'_>, uid: u32, groups: &[u32], ino: u64) -> Option<(Attacker, Reply)> {
    use rustix::fs::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let path = scene.stage.socket();
    let connected = std::thread::spawn(move || {
        // Of this thread alone; the process stays what it is.
        rustix::thread::set_thread_groups(&groups).ok()?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).ok()?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).ok()?;
        SocketChannel::connect(&path).ok()
    });
    let channel = connected.join().ok()??;
    let mut a = Attacker::over(Box::new(channel), &scene.stage.place);
    a.take(ino);
    a.append(write(ino, 0, b"mine"));
    let reply = a.digest();
    Some((a, reply))
}

/// A file that a group may write: who is at the socket counts, not who has its process number.
/// (Here they are one process, whose main thread has other groups than the thread at the socket.)
fn groups_of_the_socket(scene: &Scene<'_>) -> (Attacker, Reply) {
    const OURS: u32 = 4_321;
    let own = rustix::process::getegid().as_raw();
    let mut root = Attacker::new(&scene.stage.daemon, &scene.stage.place, 0);
    root.take(1);
    let mut files = Vec::new();
    for group in [OURS, own] {
        let ino = root.number();
        let name = scene.name(&group.to_string());
        let ids = (0, group);
        root.append(create_as(1, ino, 0o100_660, ids, name.as_bytes(), b""));
        files.push(ino);
    }
    let made = root.digest();
    let Some((_, allowed)) = write_as(scene, MALLORY, &[OURS], files[0]) else {
        return (root, made);
    };
    let refused = write_as(scene, MALLORY, &[OURS], files[1]).map(|(_, reply)| reply);
    if scene.alone {
        assert!(matches!(allowed, Reply::Digested { .. }), "{allowed:?}");
        let stays_out =
            matches!(&refused, Some(Reply::Refused { why, .. }) if why.contains("no permission"));
        assert!(own == MALLORY || stays_out, "{refused:?}");
    }
    (root, made)
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

pub const CASES: &[Case] = &[
    harmless("messages that are none", no_messages),
    harmless("another version", other_version),
    harmless("descriptors that come unasked", descriptors),
    harmless("answers that are not read", answers_unread),
    harmless("connections without end", connections),
    harmless("groups of another process", groups_of_the_socket),
];
