//! Time as a value that is handed in, and the calibrated time stamp counter.
//!
//! Invariant: what a [`SystemClock`] returns never goes back within the process,
//! whatever is done to the machine's clock.

use std::arch::x86_64::{__cpuid, _rdtsc};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Nanoseconds since 1970-01-01 00:00 UTC. Never goes back.
    fn realtime_ns(&self) -> i64;
    /// Nanoseconds since some moment before the clock was made. Never goes back.
    fn monotonic_ns(&self) -> u64;
}

const NS_PER_S: i64 = 1_000_000_000;

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec * NS_PER_S + time.tv_nsec
}

/// The machine's clock.
///
/// Real time is the kernel's coarse clock, as kernel file systems use it: 6 ns a
/// call instead of 30, and it advances with the timer tick (1–10 ms). When somebody
/// sets the clock back, real time stands still until it has caught up.
#[derive(Debug, Default)]
pub struct SystemClock {
    last_ns: AtomicI64,
}

impl SystemClock {
    /// A clock that has not been read yet.
    pub const fn new() -> Self {
        SystemClock {
            last_ns: AtomicI64::new(i64::MIN),
        }
    }

    /// The later of `now` and everything returned before.
    fn not_before_last(&self, now_ns: i64) -> i64 {
        let last_ns = self.last_ns.load(Ordering::Acquire);
        // Mostly the tick has not moved: then no locked instruction.
        if now_ns <= last_ns {
            return last_ns;
        }
        self.last_ns.fetch_max(now_ns, Ordering::AcqRel).max(now_ns)
    }
}

impl Clock for SystemClock {
    fn realtime_ns(&self) -> i64 {
        self.not_before_last(nanoseconds(clock_gettime(ClockId::RealtimeCoarse)))
    }

    fn monotonic_ns(&self) -> u64 {
        nanoseconds(clock_gettime(ClockId::Monotonic)) as u64
    }
}

/// A clock that moves only when it is set.
#[derive(Debug, Default)]
pub struct ManualClock {
    realtime_ns: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `realtime_ns` since 1970 and a monotonic time of 0.
    pub const fn new(realtime_ns: i64) -> Self {
        ManualClock {
            realtime_ns: AtomicI64::new(realtime_ns),
            monotonic_ns: AtomicU64::new(0),
        }
    }

    /// Moves both times forward.
    pub fn advance_ns(&self, ns: u64) {
        self.realtime_ns.fetch_add(ns as i64, Ordering::AcqRel);
        self.monotonic_ns.fetch_add(ns, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn realtime_ns(&self) -> i64 {
        self.realtime_ns.load(Ordering::Acquire)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::Acquire)
    }
}

/// How to wait for less than a timer can.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tsc {
    /// Ticks per nanosecond, or `None` where the counter does not run evenly.
    ticks_per_ns: Option<f64>,
}

/// Measures the time stamp counter against the monotonic clock: 5 ms the first
/// time, nothing after that.
pub fn calibrate() -> Tsc {
    static CALIBRATED: OnceLock<Tsc> = OnceLock::new();
    *CALIBRATED.get_or_init(|| Tsc {
        ticks_per_ns: tsc_is_even().then(measure_ticks_per_ns),
    })
}

fn tsc_is_even() -> bool {
    const ADVANCED_POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= ADVANCED_POWER && __cpuid(ADVANCED_POWER).edx & (1 << 8) != 0
}

fn monotonic_raw_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::MonotonicRaw)) as u64
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 has RDTSC, and Linux lets programs use it.
    unsafe { _rdtsc() }
}

fn measure_ticks_per_ns() -> f64 {
    const MEASURE_NS: u64 = 5_000_000;
    let (start_ns, start_ticks) = (monotonic_raw_ns(), ticks());
    loop {
        let (now_ns, now_ticks) = (monotonic_raw_ns(), ticks());
        if now_ns - start_ns >= MEASURE_NS {
            return (now_ticks - start_ticks) as f64 / (now_ns - start_ns) as f64;
        }
    }
}

impl Tsc {
    /// Spins for at least `ns` nanoseconds.
    pub fn spin_ns(&self, ns: u64) {
        match self.ticks_per_ns {
            Some(rate) => {
                let start = ticks();
                let wait = (ns as f64 * rate) as u64;
                while ticks().wrapping_sub(start) < wait {
                    std::hint::spin_loop();
                }
            }
            None => {
                let until_ns = monotonic_raw_ns() + ns;
                while monotonic_raw_ns() < until_ns {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Nanoseconds since some fixed moment; cheaper than the kernel's clock.
    pub fn now_ns(&self) -> u64 {
        match self.ticks_per_ns {
            Some(rate) => (ticks() as f64 / rate) as u64,
            None => monotonic_raw_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_never_goes_back() {
        let clock = SystemClock::new();
        let mut last = clock.realtime_ns();
        for _ in 0..10_000 {
            let now = clock.realtime_ns();
            assert!(now >= last);
            last = now;
        }
        // As if the machine's clock had been ahead by an hour and was then set back.
        let ahead = last + 3_600 * NS_PER_S;
        assert_eq!(clock.not_before_last(ahead), ahead);
        assert_eq!(clock.realtime_ns(), ahead);
        assert_eq!(clock.not_before_last(ahead + 1), ahead + 1);
    }

    #[test]
    fn real_time_never_goes_back_between_threads() {
        let clock = SystemClock::new();
        let seen = AtomicI64::new(i64::MIN);
        std::thread::scope(|scope| {
            for thread in 0..4_i64 {
                let (clock, seen) = (&clock, &seen);
                scope.spawn(move || {
                    for step in 0..20_000_i64 {
                        let before = seen.load(Ordering::Acquire);
                        let now = clock.not_before_last(step * 7 - thread * 1_000);
                        assert!(now >= before, "{now} after {before}");
                        seen.fetch_max(now, Ordering::AcqRel);
                    }
                });
            }
        });
    }

    #[test]
    fn real_time_is_near_the_standard_clock() {
        let standard = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let difference = SystemClock::new().realtime_ns() - standard.as_nanos() as i64;
        assert!(difference.abs() < NS_PER_S, "{difference} ns apart");
    }

    #[test]
    fn manual_clock_moves_only_when_set() {
        let clock = ManualClock::new(1_000);
        assert_eq!((clock.realtime_ns(), clock.monotonic_ns()), (1_000, 0));
        clock.advance_ns(5);
        assert_eq!((clock.realtime_ns(), clock.monotonic_ns()), (1_005, 5));
    }

    #[test]
    fn spinning_lasts_as_long_as_asked() {
        let tsc = calibrate();
        let start = std::time::Instant::now();
        tsc.spin_ns(2_000_000);
        let spent = start.elapsed().as_nanos();
        assert!(spent >= 1_980_000, "spun only {spent} ns");
    }
}
