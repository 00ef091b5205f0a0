//! Threads that send notifications, with nothing open but the device.
//!
//! In the kernel a notification may wait, and no signal ends that, for a page or a directory that is locked by a request which
//! this very process has not answered. If the process is killed then, the thread that waits stays until the next
//! daemon has answered the request. And with a thread all that it has open stays: were that the process's table, the locks of
//! the volume and of its devices would keep out the next daemon for ever. So each sender has a table of
//! its own (`CLOSE_RANGE_UNSHARE`), and what else was open goes with the other threads, as ever.
//!
//! A sender serves one notification at a time, and who wants to notify waits for it: one that waits in the kernel holds up
//! nobody else's. Senders log nothing and open nothing: the log is closed there.
//!
//! Lock order: the list is a leaf.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use parking_lot::Mutex;

use crate::serving::transport::{Alone, Device, run_at_once};

/// Senders that are kept when nobody notifies.
const KEPT: usize = 4;

/// A thread that sends.
struct Sender {
    /// Closed: it ends.
    messages: SyncSender<Vec<u8>>,
    results: Receiver<io::Result<()>>,
}

impl Sender {
    fn start(device: &Device) -> io::Result<Self> {
        let (messages, wanted) = sync_channel(1);
        let (done, results) = sync_channel(1);
        let fd = device.as_fd().as_raw_fd();
        let run = move || {
            // It holds up others for some microseconds, and they it for long on a busy machine.
            let _ = run_at_once();
            let failed = done.clone();
            if let Err(error) = Device::alone(fd, |device| send_all(device, &wanted, &done)) {
                let _ = failed.send(Err(error));
            }
        };
        thread::Builder::new()
            .name("notify".to_owned())
            .spawn(run)?;
        // The descriptor is open here until the thread has one of its own.
        results.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { messages, results })
    }

    fn send(&self, message: Vec<u8>) -> io::Result<()> {
        self.messages.send(message).map_err(|_| gone())?;
        self.results.recv().unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that notifies is gone")
}

fn send_all(device: &Alone, messages: &Receiver<Vec<u8>>, done: &SyncSender<io::Result<()>>) {
    let mut result = Ok(());
    while done.send(result).is_ok() {
        let Ok(message) = messages.recv() else {
            return;
        };
        result = device.notify(&message);
    }
}

/// The senders of one device.
pub(crate) struct Senders {
    device: Arc<Device>,
    idle: Mutex<Vec<Sender>>,
    warned: AtomicBool,
}

impl Senders {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            idle: Mutex::default(),
            warned: AtomicBool::new(false),
        }
    }

    /// The device, for what waits for nobody.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Sends a notification and waits until the kernel has done what it says.
    pub(crate) fn send(&self, message: Vec<u8>) -> io::Result<()> {
        let idle = self.idle.lock().pop();
        let sender = match idle.map_or_else(|| Sender::start(&self.device), Ok) {
            Ok(sender) => sender,
            Err(error) => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "notifications are sent by any thread that has one: \
                        a kill at the wrong moment may keep the next daemon out");
                }
                return self.device.notify(&message);
            }
        };
        let result = sender.send(message);
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(sender);
        }
        result
    }
}
