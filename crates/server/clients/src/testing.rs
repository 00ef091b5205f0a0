//! Clients for tests of what acts on them.

use crate::client::{Attached, Client, Transport};
use crate::credentials::Credentials;
use shale_format::Durability;
use shale_nvm::MapOptions;
use std::path::PathBuf;

/// A client with a log in memory and no process behind it.
pub fn lone(id: u32, transport: Transport) -> Client {
    let log = MapOptions::new().anonymous(8192).unwrap();
    Client::new(Attached {
        id,
        slot: id,
        transport,
        pid: 1,
        person: Credentials {
            uid: 1000,
            groups: vec![],
        },
        may_steal: true,
        log_fd: rustix::io::dup(log.fds().next().unwrap()).unwrap(),
        log: Box::new(log.on(shale_nvm::Path::Log).clone()),
        log_path: PathBuf::new(),
        policy: Durability::Strict,
        nvm_log: None,
        salt: 1,
        ring_bytes: 1 << 20,
        connection: 0,
        open_token: u128::MAX - u128::from(id),
    })
    .unwrap()
}
