//! Leases that nobody uses: when there are too many entries in the table, those go that were asked for
//! least recently (DESIGN §9).
//!
//! A lease that goes is taken from its holders without being given to anybody, in the same steps: the
//! generation words are raised, so that its holders ask before they do anything under it again; a grace period is
//! passed, so that no call goes on; what a writer did is digested. Then the entry is removed, unless
//! somebody has asked for it meanwhile: until then it says who holds it, and any other client that wants the inode
//! takes it from them as ever. Nobody waits for any of this.
//!
//! The kernel may keep names, pages and attributes of an inode whose lease the front end has lost in this
//! way. So from the first such inode on the front end is taken for a reader of every inode of which nothing
//! is known ([`super::super::lease_table::LeaseTable::assume_reader`]), as it is after a restart of the daemon.

use super::super::client::{Client, Transport};
use super::super::lease_table::Leaving;
use super::super::sync::mutants;
use super::LeaseManager;
use shale_proto::LeaseMode;
use std::collections::BTreeMap;
use std::sync::Arc;

impl LeaseManager {
    /// Removes entries of leases if there are too many. Gives how many were to go.
    pub fn trim(&self) -> usize {
        let leaving = self.table.leaving();
        let mut holders: BTreeMap<u32, Arc<Client>> = BTreeMap::new();
        let mut writers: BTreeMap<u32, bool> = BTreeMap::new();
        for lease in &leaving {
            for holder in &lease.holders {
                // One that has gone meanwhile was digested as it went.
                let Some(client) = self.clients.get(holder.client) else {
                    continue;
                };
                if !mutants::is_on("lease-idle-generation") {
                    client.daemon_page.bump_generation(lease.ino);
                }
                if holder.mode == LeaseMode::Exclusive {
                    writers.insert(client.id, true);
                }
                holders.insert(client.id, client);
            }
        }
        let all: Vec<Arc<Client>> = holders.values().cloned().collect();
        if !mutants::is_on("lease-idle-grace") {
            self.grace.wait(&all);
        }
        for (id, digested) in &mut writers {
            *digested = mutants::is_on("lease-idle-digest") || self.digest(&holders[id]).is_ok();
        }
        let goes = |lease: &&Leaving| {
            lease.holders.iter().all(|holder| {
                let client = holders.get(&holder.client);
                let digested = || writers.get(&holder.client).copied().unwrap_or(true);
                client.is_none_or(|client| digested() && self.may_lose(client, lease.ino))
            })
        };
        self.table.left(leaving.iter().filter(goes));
        leaving.len()
    }

    /// Whether a holder that asks for nothing may do without the lease on an inode.
    fn may_lose(&self, client: &Client, ino: u64) -> bool {
        // Nobody asks for what it has been granted to make.
        if client.grants.lock().inos.contains(&ino) {
            return false;
        }
        let hook = self.hook();
        let Some(kernel) = hook.filter(|_| client.transport == Transport::InProcess) else {
            return true;
        };
        // A reader finds what programs write through shared mappings only by way of its holder.
        if kernel.holds_back(ino) {
            return false;
        }
        if kernel.in_use(ino) {
            self.table.assume_reader(client.id);
        }
        true
    }
}
