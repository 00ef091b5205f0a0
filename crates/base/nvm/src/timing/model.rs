//! Models of slow NVM, attached to a mapping when it is made.
//!
//! * Strata §5: every read costs an extra latency; a write is slowed only once the
//!   window's share of bandwidth is used up, by σ·(1 − NVMb/DRAMb)/NVMb for σ bytes.
//! * HiNFS §5.1: every line that goes to the medium costs a spin, and at most
//!   Nw = B/(1/L) threads write at once.
//!
//! A plain store costs nothing under either: it stays in the cache until it is flushed.
//! One [`Timing`] is one medium: mappings of the same medium in a process share it ([`Timing::of_process`]).
//! Processes do not see each other's use: with several, each has the bandwidth and the writers of the model for itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::LINE_BYTES;
use shale_sys::clock::{Tsc, calibrate};

/// Bandwidth of HiNFS's NVM, bytes per second (§5.1).
const HINFS_BYTES_PER_S: u64 = 1_000_000_000;

/// How slow the medium is, as data.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Model {
    /// As fast as the memory that it is.
    #[default]
    None,
    /// Strata §5.
    Strata {
        /// Added to each read, in nanoseconds.
        read_extra_ns: u64,
        /// NVM bandwidth over DRAM bandwidth, in (0, 1].
        bandwidth_ratio: f64,
        /// After how many milliseconds the count of bytes written starts again.
        window_ms: u64,
        /// DRAM bandwidth in bytes per second.
        dram_bytes_per_s: u64,
    },
    /// HiNFS §5.1.
    Hinfs {
        /// Spin for each line flushed or streamed, in nanoseconds (50 to 800 in the paper).
        write_ns: u64,
        /// How many threads write at once; the others wait. At least 1.
        writers_max: u32,
    },
}

impl Model {
    /// The names that [`Model::named`] knows, for messages.
    pub const NAMES: &str = "strata, hinfs, hinfs-NS with 50 to 800 ns a line";

    /// A model by its name: `strata` is [`Model::strata`], `hinfs` [`Model::hinfs`], and `hinfs-NS` the same with another latency of
    /// a line, of those of HiNFS's Figure 12.
    pub fn named(name: &str) -> Option<Model> {
        match name {
            "strata" => Some(Model::strata()),
            "hinfs" => Some(Model::hinfs()),
            _ => {
                let ns = name.strip_prefix("hinfs-")?.parse().ok()?;
                let is_of_paper = (50..=800).contains(&ns);
                is_of_paper.then(|| Model::hinfs_with(ns, HINFS_BYTES_PER_S))
            }
        }
    }

    /// Strata's NVM: 300 ns reads over DRAM's 100, an eighth of the bandwidth, 10 ms.
    pub const fn strata() -> Model {
        Model::Strata {
            read_extra_ns: 200,
            bandwidth_ratio: 0.125,
            window_ms: 10,
            dram_bytes_per_s: 62_800_000_000,
        }
    }

    /// HiNFS's NVM: 200 ns a line, 1 GB/s.
    pub const fn hinfs() -> Model {
        Model::hinfs_with(200, HINFS_BYTES_PER_S)
    }

    /// HiNFS's model for a line latency and a bandwidth in bytes per second:
    /// Nw = B/(1/L), counted in lines, at least 1.
    pub const fn hinfs_with(write_ns: u64, bytes_per_s: u64) -> Model {
        let writers = bytes_per_s * write_ns / (1_000_000_000 * LINE_BYTES as u64);
        Model::Hinfs {
            write_ns,
            writers_max: if writers == 0 { 1 } else { writers as u32 },
        }
    }
}

/// A model at work on one medium.
#[derive(Debug)]
pub struct Timing {
    model: Model,
    tsc: Tsc,
    /// Strata: number of the window that `window_bytes` belongs to.
    window: AtomicU64,
    window_bytes: AtomicU64,
    /// HiNFS: threads writing now.
    writers: AtomicU32,
    delayed_ns: AtomicU64,
}

impl Timing {
    /// Starts a model. Calibrates the time stamp counter (5 ms, once per process).
    ///
    /// # Panics
    /// If the ratio is outside (0, 1], the window 0, the DRAM bandwidth 0, or
    /// `writers_max` is 0.
    pub fn new(model: Model) -> Arc<Timing> {
        match model {
            Model::None => {}
            Model::Strata {
                bandwidth_ratio,
                window_ms,
                dram_bytes_per_s,
                ..
            } => {
                assert!(bandwidth_ratio > 0.0 && bandwidth_ratio <= 1.0);
                assert!(window_ms > 0 && dram_bytes_per_s > 0);
            }
            Model::Hinfs { writers_max, .. } => assert!(writers_max > 0),
        }
        Arc::new(Timing {
            model,
            tsc: calibrate(),
            window: AtomicU64::new(0),
            window_bytes: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            delayed_ns: AtomicU64::new(0),
        })
    }

    /// The model at work on the one medium of this kind that the process has, started when it is first asked for.
    ///
    /// # Panics
    /// As [`Timing::new`].
    pub fn of_process(model: Model) -> Arc<Timing> {
        static ALL: Mutex<Vec<Weak<Timing>>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|timing| timing.strong_count() > 0);
        let same = |timing: Arc<Timing>| (timing.model == model).then_some(timing);
        if let Some(timing) = all.iter().filter_map(Weak::upgrade).find_map(same) {
            return timing;
        }
        let timing = Timing::new(model);
        all.push(Arc::downgrade(&timing));
        timing
    }

    /// The model.
    pub fn model(&self) -> Model {
        self.model
    }

    /// Nanoseconds of delay handed out so far, over all threads; waiting for other
    /// writers not included.
    pub fn delayed_ns(&self) -> u64 {
        self.delayed_ns.load(Ordering::Acquire)
    }

    fn delay(&self, ns: u64) {
        if ns > 0 {
            self.delayed_ns.fetch_add(ns, Ordering::AcqRel);
            self.tsc.spin_ns(ns);
        }
    }

    /// Delays a read.
    #[inline]
    pub fn read(&self, bytes: usize) {
        if let Model::Strata { read_extra_ns, .. } = self.model
            && bytes > 0
        {
            self.delay(read_extra_ns);
        }
    }

    /// Delays a write of `bytes` that sends `lines` lines to the medium.
    #[inline]
    pub fn write(&self, lines: usize, bytes: usize) {
        match self.model {
            Model::None => {}
            Model::Strata { .. } => {
                let ns = self.charge(self.tsc.now_ns(), bytes as u64);
                self.delay(ns);
            }
            Model::Hinfs {
                write_ns,
                writers_max,
            } => {
                self.enter(writers_max);
                self.delay(write_ns * lines as u64);
                self.writers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Counts `bytes` into the window of `now_ns` and says by how many nanoseconds
    /// the write is slowed.
    fn charge(&self, now_ns: u64, bytes: u64) -> u64 {
        let Model::Strata {
            bandwidth_ratio,
            window_ms,
            dram_bytes_per_s,
            ..
        } = self.model
        else {
            return 0;
        };
        let window_ns = window_ms * 1_000_000;
        let window = now_ns / window_ns;
        let counted = self.window.load(Ordering::Acquire);
        if counted != window
            && self
                .window
                .compare_exchange(counted, window, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            self.window_bytes.store(0, Ordering::Release);
        }
        let used = self.window_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let nvm_bytes_per_ns = dram_bytes_per_s as f64 * bandwidth_ratio / 1e9;
        if used as f64 <= nvm_bytes_per_ns * window_ns as f64 {
            return 0;
        }
        (bytes as f64 * (1.0 - bandwidth_ratio) / nvm_bytes_per_ns) as u64
    }

    /// Waits until fewer than `writers_max` threads write, and becomes one.
    fn enter(&self, writers_max: u32) {
        loop {
            let writers = self.writers.load(Ordering::Acquire);
            if writers < writers_max
                && self
                    .writers
                    .compare_exchange_weak(
                        writers,
                        writers + 1,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    )
                    .is_ok()
            {
                return;
            }
            // Yield: with more writers than cores the one that is inside must get to run.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_follow_from_bandwidth_and_latency() {
        // 1 GB/s at 200 ns a line of 64 bytes: 3.1 writers.
        assert_eq!(
            Model::hinfs(),
            Model::Hinfs {
                write_ns: 200,
                writers_max: 3
            }
        );
        assert_eq!(
            Model::hinfs_with(50, 100_000_000),
            Model::Hinfs {
                write_ns: 50,
                writers_max: 1
            }
        );
    }

    #[test]
    fn models_have_names() {
        assert_eq!(Model::named("strata"), Some(Model::strata()));
        assert_eq!(Model::named("hinfs-200"), Some(Model::hinfs()));
        let slow = Model::hinfs_with(800, 1_000_000_000);
        assert_eq!(Model::named("hinfs-800"), Some(slow));
        for name in ["", "hinfs-", "hinfs-49", "hinfs-801", "hinfs-x", "flash"] {
            assert_eq!(Model::named(name), None, "{name}");
        }
    }

    #[test]
    fn mappings_of_a_process_share_one_medium() {
        let model = Model::hinfs_with(799, 1_000_000_000);
        let first = Timing::of_process(model);
        assert!(Arc::ptr_eq(&first, &Timing::of_process(model)));
        assert!(!Arc::ptr_eq(&first, &Timing::of_process(Model::strata())));
    }

    #[test]
    fn strata_slows_only_beyond_the_window() {
        let timing = Timing::new(Model::Strata {
            read_extra_ns: 0,
            bandwidth_ratio: 0.125,
            window_ms: 10,
            dram_bytes_per_s: 8_000_000_000,
        });
        // NVM: 1 GB/s, so 10 MB in a window.
        let now = 70_000_000;
        assert_eq!(timing.charge(now, 10_000_000), 0);
        // sigma * (1 - 1/8) / (1 byte per ns)
        assert_eq!(timing.charge(now + 9_999_999, 4_096), 3_584);
        assert_eq!(timing.charge(now + 10_000_000, 4_096), 0);
    }

    #[test]
    fn hinfs_charges_each_line() {
        let timing = Timing::new(Model::hinfs());
        let start = std::time::Instant::now();
        timing.write(100, 6_400);
        timing.read(4_096);
        assert_eq!(timing.delayed_ns(), 20_000);
        assert!(start.elapsed().as_nanos() >= 19_800);
    }

    #[test]
    fn never_more_writers_than_allowed() {
        let timing = Timing::new(Model::Hinfs {
            write_ns: 1_000,
            writers_max: 2,
        });
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        timing.enter(2);
                        most.fetch_max(timing.writers.load(Ordering::Acquire), Ordering::AcqRel);
                        timing.writers.fetch_sub(1, Ordering::AcqRel);
                    }
                });
            }
        });
        assert!(most.load(Ordering::Acquire) <= 2);
        assert_eq!(timing.writers.load(Ordering::Acquire), 0);
    }

    #[test]
    fn no_model_no_delay() {
        let timing = Timing::new(Model::None);
        timing.read(1 << 20);
        timing.write(1 << 14, 1 << 20);
        assert_eq!(timing.delayed_ns(), 0);
    }
}
