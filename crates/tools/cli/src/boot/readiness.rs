//! Tells the service manager that started this process that it is ready: sd_notify(3), one datagram to the socket that
//! `NOTIFY_SOCKET` names. Twenty lines rather than libsystemd, which no other part needs.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the mount answers. Does nothing where no manager asked for it.
pub fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, b"READY=1\nSTATUS=Mounted") {
        tracing::warn!(
            "{}: cannot say that the mount is ready: {error}",
            socket.display()
        );
    }
}

fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    // A name that begins with @ is not a path.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_it_on_a_path_and_on_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let heard = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), b"READY=1").unwrap();
        let mut text = [0; 32];
        let bytes = heard.recv(&mut text).unwrap();
        assert_eq!(&text[..bytes], b"READY=1");

        let name = format!("shale-readiness-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let heard = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), b"READY=1").unwrap();
        assert_eq!(heard.recv(&mut text).unwrap(), 7);
        assert!(send(OsStr::new("/nowhere/at/all"), b"READY=1").is_err());
    }
}
