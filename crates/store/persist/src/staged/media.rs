//! The device of an area, by byte of the area; after the first write or flush that fails, nothing is
//! written any more.

use super::AreaLayout;
use super::error::{PersistError, Result, no_area};
use shale_block::{BlockError, IO_BYTES, TierDevice};
use shale_sys::mutants;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one request, where there are more.
pub(super) const REQUEST_BYTES: usize = 1 << 20;

/// See the module.
pub(super) struct Media {
    device: Arc<dyn TierDevice>,
    at: u64,
    poisoned: AtomicBool,
}

impl Media {
    /// The area at byte `at` of `device`. Refuses where there is no place for it.
    pub(super) fn new(device: Arc<dyn TierDevice>, at: u64, layout: AreaLayout) -> Result<Self> {
        layout.check()?;
        let (name, bytes) = (device.name(), device.bytes());
        if !at.is_multiple_of(IO_BYTES as u64) {
            return no_area(format!(
                "{name}: byte {at} is no multiple of {IO_BYTES}, where an area could begin"
            ));
        }
        match at.checked_add(layout.bytes()) {
            Some(end) if end <= bytes => Ok(Self {
                device,
                at,
                poisoned: AtomicBool::new(false),
            }),
            _ => no_area(format!(
                "{name}: an area of {} bytes at {at} ends behind the device, which has {bytes}",
                layout.bytes()
            )),
        }
    }

    /// Name of the device and place of the area, for messages.
    pub(super) fn name(&self) -> String {
        format!("{}, byte {}", self.device.name(), self.at)
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.device.read(self.at + at, into)
    }

    fn change(&self, change: impl FnOnce() -> std::result::Result<(), BlockError>) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(PersistError::Poisoned);
        }
        change().map_err(|e| {
            let forgotten = mutants::is_on("staging-failure-forgotten");
            self.poisoned.store(!forgotten, Ordering::Release);
            PersistError::Device(e)
        })
    }

    pub(super) fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        self.change(|| self.device.write(self.at + at, from))
    }

    pub(super) fn write_durable(&self, at: u64, from: &[u8]) -> Result<()> {
        self.change(|| self.device.write_durable(self.at + at, from))
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.change(|| self.device.flush())
    }

    /// Zeros, not durable yet.
    pub(super) fn zero(&self, at: u64, bytes: u64) -> Result<()> {
        let zeros = vec![0; REQUEST_BYTES];
        for from in (0..bytes).step_by(REQUEST_BYTES) {
            let n = (bytes - from).min(REQUEST_BYTES as u64) as usize;
            self.write(at + from, &zeros[..n])?;
        }
        Ok(())
    }
}

/// Whether the medium says that it cannot read these blocks (as flash does of a torn page), and not that it failed.
pub(super) fn is_unreadable(error: &BlockError) -> bool {
    /// `EBADMSG`, `ENODATA`, `EILSEQ`: an error-correcting code, a medium error, a protected block.
    const OF_THE_MEDIUM: [i32; 3] = [74, 61, 84];
    let torn = matches!(
        error,
        BlockError::TornPage { .. } | BlockError::HalfErased { .. }
    );
    torn || error
        .raw_os_error()
        .is_some_and(|n| OF_THE_MEDIUM.contains(&n))
}
