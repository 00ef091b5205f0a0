//! A server for `GET /metrics` and nothing else: HTTP/1.1, one request for each connection.
//!
//! Bounds: so many threads as [`THREADS`], a request of [`REQUEST_BYTES_MAX`], [`PATIENCE`] for all of
//! it and for taking the answer. Who is slow keeps one thread for that long at most, and nobody
//! keeps anything else of the daemon's.

use crate::address::Address;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 2;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// After an error of the listening socket.
const PAUSE: Duration = Duration::from_millis(100);
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A socket that listens.
pub enum Listener {
    /// On a port.
    Tcp(TcpListener),
    /// On a Unix socket.
    Unix(UnixListener),
}

/// Somebody who asks.
trait Peer: Read + Write {
    fn patience(&self, left: Duration) -> io::Result<()>;
}

impl Peer for TcpStream {
    fn patience(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Peer for UnixStream {
    fn patience(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Listener {
    /// Listens at an address. A Unix socket that nobody listens at any more is replaced; another file is not.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            Address::Unix(path) => {
                // What a daemon that was killed has left; never a file that is something else.
                if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
                    && UnixStream::connect(path).is_err()
                {
                    fs::remove_file(path)?;
                }
                UnixListener::bind(path).map(Listener::Unix)
            }
        }
    }

    /// Where it listens: with the port that it got.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self, wanted: &Address) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Listener::Unix(_) => Ok(wanted.clone()),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Peer>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept()?.0),
            Listener::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }
}

/// Answers until the process ends. `text` gives the metrics; `None`: there are none any more.
///
/// # Errors
/// A thread cannot be started.
pub fn serve(
    listener: Listener,
    text: impl Fn() -> Option<String> + Send + Sync + 'static,
) -> io::Result<()> {
    let (listener, text) = (Arc::new(listener), Arc::new(text));
    for n in 0..THREADS {
        let (listener, text) = (listener.clone(), text.clone());
        let work = move || {
            loop {
                match listener.accept() {
                    // One that goes before it has its answer is no error of ours.
                    Ok(mut peer) => drop(answer(&mut *peer, &*text)),
                    Err(error) => {
                        tracing::warn!("metrics: {error}");
                        thread::sleep(PAUSE);
                    }
                }
            }
        };
        thread::Builder::new()
            .name(format!("metrics-{n}"))
            .spawn(work)?;
    }
    Ok(())
}

fn answer(peer: &mut dyn Peer, text: &dyn Fn() -> Option<String>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let reply = match request(peer, deadline)? {
        None => Reply::new(
            "431 Request Header Fields Too Large",
            "the request is too long\n",
        ),
        Some(head) => reply(&head, text),
    };
    peer.patience(left(deadline)?)?;
    peer.write_all(&reply.bytes())?;
    peer.flush()
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Everything up to the empty line; `None`: it is too long.
fn request(peer: &mut dyn Peer, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        peer.patience(left(deadline)?)?;
        match peer.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    Ok(Some(head))
}

struct Reply {
    status: &'static str,
    kind: &'static str,
    body: String,
    /// Only the head is wanted.
    head_only: bool,
}

impl Reply {
    fn new(status: &'static str, body: &str) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.to_owned(),
            head_only: false,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let allow = match self.status.starts_with("405") {
            true => "Allow: GET, HEAD\r\n",
            false => "",
        };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            self.status,
            self.kind,
            self.body.len(),
        );
        let body = if self.head_only { "" } else { &self.body };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

fn reply(head: &[u8], text: &dyn Fn() -> Option<String>) -> Reply {
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Reply::new("400 Bad Request", "this is no request\n");
    };
    if !version.starts_with("HTTP/1.") {
        return Reply::new("505 HTTP Version Not Supported", "HTTP/1.1 only\n");
    }
    if !["GET", "HEAD"].contains(&method) {
        return Reply::new("405 Method Not Allowed", "GET or HEAD only\n");
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let found = match path {
        "/metrics" => match text() {
            Some(body) => Reply {
                status: "200 OK",
                kind: TYPE,
                body,
                head_only: false,
            },
            None => Reply::new("503 Service Unavailable", "the volume is being unmounted\n"),
        },
        "/" => Reply::new("200 OK", "shale: see /metrics\n"),
        _ => Reply::new("404 Not Found", "there is /metrics only\n"),
    };
    Reply {
        head_only: method == "HEAD",
        ..found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(place: &Address, request: &[u8]) -> String {
        let Address::Tcp(place) = place else {
            panic!("{place}")
        };
        let mut peer = TcpStream::connect(place).unwrap();
        // It may answer and close before it has read all.
        let _ = peer.write_all(request);
        let mut text = Vec::new();
        let _ = peer.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn one_request_one_answer() {
        let any = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&any).unwrap();
        let place = listener.address(&any).unwrap();
        serve(listener, || Some("a 1\n".to_owned())).unwrap();
        let get = ask(&place, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(get.starts_with("HTTP/1.1 200 OK\r\n"), "{get}");
        assert!(get.contains("Content-Type: application/openmetrics-text"));
        assert!(
            get.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\na 1\n"),
            "{get}"
        );
        let head = ask(&place, b"HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(
            head.contains("Content-Length: 4") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "200"),
            (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics HTTP/2\r\n\r\n", "505"),
            (b"nonsense\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (&[b'a'; 2 * REQUEST_BYTES_MAX], "431"),
        ] {
            let said = ask(&place, request);
            assert!(
                said.starts_with(&format!("HTTP/1.1 {status} "))
                    || said.is_empty() && status == "431",
                "{status}: {said}"
            );
        }
        // Those that say nothing keep the others waiting for a bounded time.
        let silent: Vec<TcpStream> = (0..THREADS)
            .map(|_| match &place {
                Address::Tcp(place) => TcpStream::connect(place).unwrap(),
                Address::Unix(_) => panic!("no port"),
            })
            .collect();
        let begun = Instant::now();
        assert!(ask(&place, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < PATIENCE * 3);
        drop(silent);
    }

    #[test]
    fn a_socket_that_was_left_is_taken_over_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = Address::Unix(dir.path().join("m"));
        drop(Listener::bind(&place).unwrap());
        let lives = Listener::bind(&place).unwrap();
        assert!(Listener::bind(&place).is_err(), "somebody listens there");
        drop(lives);
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(Listener::bind(&Address::Unix(file.clone())).is_err());
        assert_eq!(fs::read(file).unwrap(), b"x");
    }
}
