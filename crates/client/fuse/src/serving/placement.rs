//! Where the threads that take requests run.
//!
//! That is left to the kernel, but for one case. What a call through the mount costs is two wake-ups. While another processor is idle, the kernel wakes the
//! reader there, and wakes the program on yet another one when the answer is sent, since a reader still runs where the program was:
//! each call wakes idle processors twice, which costs far more than the call itself (DESIGN §21 has the numbers). If all other processors are
//! busy, reader and program share one anyhow, and nothing is to be won.
//!
//! So while one program alone sends requests, and samples show that its reader wakes on another processor, each reader is bound to
//! a processor of its own, and steps back (`SCHED_IDLE`) while it sends a small answer: a processor that runs nothing else counts as idle, and the
//! program goes on where it was. After [`BOUND`] requests the kernel decides again, and samples are taken. As soon as two requests are served at once it
//! decides again, too. Samples cost as much as a request does at best, so after some that say no none are taken for [`NOT_BOUND`] requests.
//!
//! A sample is taken after the answer, by one reader at a time: `/proc/PID/stat` is not there to be read while that process is in the
//! middle of execve(2), and there the kernel closes its files and waits for our answers. Who read it before the answer would wait for ever.
//!
//! Only for a process that may take the policy back (root, or a limit for `nice` of 20), and only with a reader for each processor.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::serving::transport::{has_ordinary_policy, step_back};
use crate::serving::wire::{InHeader, opcode};

/// Of requests that came one at a time, one in so many is looked at.
const SAMPLE_EVERY: u32 = 8;
/// Samples until it is decided.
const SAMPLES: u32 = 8;
/// As many of them at least had reader and program on different processors, where readers are then bound.
const APART_MIN: u32 = 6;
/// Requests that a decision to bind holds for.
const BOUND: u32 = 1024;
/// Requests that one not to holds for: few, since samples err.
const NOT_BOUND: u32 = 192;
/// Bytes of an answer that is sent stepped back: what is copied for longer could be interrupted for as long as others run.
const SMALL_BYTES: usize = 4096;

/// What the readers of a mount know of each other. All numbers are hints.
pub(crate) struct Placement {
    /// Number of readers.
    readers: usize,
    is_allowed: AtomicBool,
    /// Requests that a program waits for and that are being served.
    served: AtomicU32,
    /// The decision: readers are bound.
    near: AtomicBool,
    /// Requests that it still holds for.
    holds: AtomicU32,
    /// Requests since it no longer does, while samples are taken.
    sampled: AtomicU32,
    /// Samples with reader and program apart, of those.
    apart: AtomicU32,
    /// A reader takes a sample.
    samples: AtomicBool,
}

/// What is decided when a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    /// Readers run where the kernel has them run.
    Free,
    /// So, and this request is one of those that a sample is taken of.
    Sampled,
    /// Readers are bound.
    Bound,
}

/// A request that a program waits for is being served, until this is dropped: before its answer is sent.
pub(crate) struct Served<'a> {
    count: Option<&'a AtomicU32>,
    alone: bool,
}

/// Where one reader runs.
pub(crate) struct Place<'a> {
    shared: &'a Placement,
    number: usize,
    /// It steps back while it sends the answer of the request that it serves.
    steps_back: bool,
    /// The thread that a sample is taken of after the answer.
    sampled: Option<u32>,
    bound: Option<Box<Bound>>,
}

/// A reader that is bound.
struct Bound {
    to: CpuSet,
    /// Where it ran before.
    before: CpuSet,
}

impl Placement {
    pub(crate) fn new(readers: usize) -> Self {
        // In a thread of its own: one that may not take the policy back keeps it.
        let may = || step_back(true).and_then(|()| step_back(false)).is_ok();
        let is_allowed =
            readers >= 2 && has_ordinary_policy() && thread::spawn(may).join().unwrap_or(false);
        Self {
            readers,
            is_allowed: AtomicBool::new(is_allowed),
            served: AtomicU32::new(0),
            near: AtomicBool::new(false),
            holds: AtomicU32::new(0),
            sampled: AtomicU32::new(0),
            apart: AtomicU32::new(0),
            samples: AtomicBool::new(false),
        }
    }

    /// Of the calling thread, the reader `number`.
    pub(crate) fn place(&self, number: usize) -> Place<'_> {
        Place {
            shared: self,
            number,
            steps_back: false,
            sampled: None,
            bound: None,
        }
    }

    fn serves(&self, header: &InHeader) -> Served<'_> {
        let count = is_waited_for(header.opcode).then_some(&self.served);
        let others = count.map(|count| count.fetch_add(1, Ordering::Relaxed));
        Served {
            count,
            alone: others == Some(0),
        }
    }

    /// Whether readers are to be bound now that a request has come; `alone`: no other is served.
    fn decides(&self, alone: bool) -> Decision {
        let near = self.near.load(Ordering::Relaxed);
        let holds = self.holds.load(Ordering::Relaxed);
        if !alone && (near || holds == 0) {
            self.decide(false, 0);
            return Decision::Free;
        }
        if holds > 0 {
            self.holds.store(holds - 1, Ordering::Relaxed);
            return match near {
                true => Decision::Bound,
                false => Decision::Free,
            };
        }
        // No longer, until there are enough samples.
        self.near.store(false, Ordering::Relaxed);
        let before = self.sampled.fetch_add(1, Ordering::Relaxed);
        if before >= SAMPLE_EVERY * SAMPLES {
            match self.apart.load(Ordering::Relaxed) {
                APART_MIN.. => self.decide(true, BOUND),
                _ => self.decide(false, NOT_BOUND),
            }
            return Decision::Free;
        }
        match (before + 1).is_multiple_of(SAMPLE_EVERY) {
            true => Decision::Sampled,
            false => Decision::Free,
        }
    }

    /// Takes a sample: `is_apart` tells whether reader and program are on different processors. It may wait until a program has
    /// started another one, for which the other readers serve it: so not two of them take one.
    fn sample(&self, is_apart: impl FnOnce() -> bool) {
        if self.samples.swap(true, Ordering::Acquire) {
            return;
        }
        if is_apart() {
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
        self.samples.store(false, Ordering::Release);
    }

    fn decide(&self, near: bool, holds: u32) {
        self.sampled.store(0, Ordering::Relaxed);
        self.apart.store(0, Ordering::Relaxed);
        self.near.store(near, Ordering::Relaxed);
        self.holds.store(holds, Ordering::Relaxed);
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<'a> Place<'a> {
    /// A request has come: binds the reader or lets it go.
    pub(crate) fn serves(&mut self, header: &InHeader) -> Served<'a> {
        let served = self.shared.serves(header);
        (self.steps_back, self.sampled) = (false, None);
        if served.count.is_some() && self.shared.is_allowed.load(Ordering::Relaxed) {
            self.bind_or_free(header.pid, served.alone);
        }
        served
    }

    fn bind_or_free(&mut self, sender: u32, alone: bool) {
        let decision = self.shared.decides(alone);
        let near = decision == Decision::Bound;
        match (near, &self.bound) {
            (true, None) => self.bound = bind(self.number, self.shared.readers).map(Box::new),
            (false, Some(_)) => self.let_go(),
            _ => {}
        }
        self.steps_back = near && self.bound.is_some();
        self.sampled = (decision == Decision::Sampled).then_some(sender);
    }

    /// Sends an answer of `bytes` bytes.
    pub(crate) fn replies(&mut self, bytes: usize, reply: impl FnOnce()) {
        let stepped = self.steps_back && bytes <= SMALL_BYTES && step_back(true).is_ok();
        reply();
        if stepped && let Err(error) = step_back(false) {
            tracing::warn!(%error, "a thread of the mount runs only when nothing else does: \
                the limit for nice was lowered while it served");
            self.shared.is_allowed.store(false, Ordering::Relaxed);
        }
        if let Some(sender) = self.sampled.take() {
            self.shared.sample(|| is_apart(sender, sched_getcpu()));
        }
    }

    /// Has the reader run where it ran before, unless somebody else has bound it meanwhile.
    fn let_go(&mut self) {
        let Some(bound) = self.bound.take() else {
            return;
        };
        if sched_getaffinity(None).is_ok_and(|now| now == bound.to) {
            // Processors that are gone are left out; if all are, it stays where it is.
            let _ = sched_setaffinity(None, &bound.before);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Binds the calling thread, the reader `number` of `readers`, to a processor, if each that it may run on has a reader and there are several.
fn bind(number: usize, readers: usize) -> Option<Bound> {
    let before = sched_getaffinity(None).ok()?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
    let count = before.count() as usize;
    if !(2..=readers).contains(&count) {
        return None;
    }
    let mut to = CpuSet::new();
    to.set(processors.nth(number % count)?);
    sched_setaffinity(None, &to).ok()?;
    Some(Bound { to, before })
}

/// Whether a program waits for the answer.
fn is_waited_for(kind: u32) -> bool {
    !matches!(
        kind,
        opcode::FORGET
            | opcode::BATCH_FORGET
            | opcode::RELEASE
            | opcode::RELEASEDIR
            | opcode::INTERRUPT
            | opcode::NOTIFY_REPLY
    )
}

/// Whether the thread `sender`, which has its answer, runs or ran on another processor than `own`. Not, if nobody knows. Waits while
/// its process is in the middle of execve(2).
fn is_apart(sender: u32, own: usize) -> bool {
    let stat = fs::read_to_string(format!("/proc/{sender}/task/{sender}/stat"));
    stat.is_ok_and(|stat| processor_of(&stat).is_some_and(|theirs| theirs != own))
}

/// Field 39 of a line of proc_pid_stat(5): the processor that the thread ran on last. The name, field 2, may have spaces and parentheses.
fn processor_of(stat: &str) -> Option<usize> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement() -> Placement {
        let placement = Placement::new(2);
        placement.is_allowed.store(true, Ordering::Relaxed);
        placement
    }

    /// Requests one at a time until readers are bound, at most `most`.
    fn until_near(placement: &Placement, most: u32, is_apart: impl Fn(u32) -> bool) -> Option<u32> {
        (0..most).find(|&n| {
            let decision = placement.decides(true);
            if decision == Decision::Sampled {
                placement.sample(|| is_apart(n));
            }
            decision == Decision::Bound
        })
    }

    fn request(opcode: u32) -> InHeader {
        InHeader {
            opcode,
            pid: std::process::id(),
            ..InHeader::default()
        }
    }

    /// Requests for which samples are taken, and the one at which it is decided.
    const PROBE: u32 = SAMPLE_EVERY * SAMPLES + 1;

    #[test]
    fn readers_are_bound_when_most_samples_are_apart_and_then_looked_at_again() {
        let placement = placement();
        assert_eq!(until_near(&placement, 10 * PROBE, |_| true), Some(PROBE));
        for _ in 1..BOUND {
            assert_eq!(placement.decides(true), Decision::Bound);
        }
        assert_eq!(until_near(&placement, 10 * PROBE, |_| true), Some(PROBE));
    }

    #[test]
    fn readers_are_left_to_the_kernel_when_they_wake_beside_the_program() {
        let placement = placement();
        assert_eq!(until_near(&placement, 10_000, |_| false), None);
        // Every second sample is not enough.
        let every_second = |n: u32| n % (2 * SAMPLE_EVERY) == SAMPLE_EVERY - 1;
        assert_eq!(until_near(&placement, 10_000, every_second), None);
    }

    #[test]
    fn samples_that_say_no_are_few() {
        let (placement, samples) = (placement(), std::cell::Cell::new(0));
        let no = |_| {
            samples.set(samples.get() + 1);
            false
        };
        assert_eq!(until_near(&placement, 10 * (NOT_BOUND + PROBE), no), None);
        assert_eq!(samples.get(), 10 * SAMPLES);
    }

    #[test]
    fn two_requests_at_once_end_it_and_samples_begin_again() {
        let placement = placement();
        assert_eq!(until_near(&placement, 10 * PROBE, |_| true), Some(PROBE));
        assert_eq!(placement.decides(false), Decision::Free);
        assert_eq!(until_near(&placement, PROBE - 1, |_| true), None);
        assert_eq!(placement.decides(false), Decision::Free);
        assert_eq!(until_near(&placement, 10 * PROBE, |_| true), Some(PROBE));
    }

    #[test]
    fn only_requests_that_a_program_waits_for_count() {
        let placement = placement();
        let first = placement.serves(&request(opcode::LOOKUP));
        assert!(first.alone);
        let release = placement.serves(&request(opcode::RELEASE));
        assert!(release.count.is_none());
        assert!(!placement.serves(&request(opcode::WRITE)).alone);
        drop(first);
        assert!(placement.serves(&request(opcode::WRITE)).alone);
    }

    #[test]
    fn a_bound_reader_gets_back_where_it_ran_and_its_policy() {
        let before = sched_getaffinity(None).unwrap();
        if before.count() < 2 {
            return;
        }
        let placement = Placement::new(before.count() as usize);
        if !placement.is_allowed.load(Ordering::Relaxed) {
            return;
        }
        let mut place = placement.place(1);
        placement.decide(true, 2);
        let header = request(opcode::LOOKUP);
        drop(place.serves(&header));
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        place.replies(16, || assert!(!has_ordinary_policy()));
        assert!(has_ordinary_policy());
        place.replies(SMALL_BYTES + 1, || assert!(has_ordinary_policy()));
        // Two at once: free at its next request.
        let _other = placement.serves(&header);
        drop(place.serves(&header));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        place.replies(16, || assert!(has_ordinary_policy()));
    }

    #[test]
    fn a_sample_is_taken_after_the_answer_and_by_one_reader() {
        let placement = placement();
        let mut place = placement.place(0);
        let header = request(opcode::LOOKUP);
        for _ in 1..SAMPLE_EVERY {
            drop(place.serves(&header));
            assert_eq!(place.sampled, None);
        }
        drop(place.serves(&header));
        assert_eq!(place.sampled, Some(header.pid));
        // A reader that waits in one leaves the next ones to nobody.
        placement.sample(|| {
            placement.sample(|| panic!("two at once"));
            true
        });
        assert_eq!(placement.apart.load(Ordering::Relaxed), 1);
        place.replies(16, || assert!(!placement.samples.load(Ordering::Relaxed)));
        assert_eq!(place.sampled, None);
        let alone = Placement::new(1);
        assert!(!alone.is_allowed.load(Ordering::Relaxed));
    }

    #[test]
    fn a_process_that_may_not_take_the_policy_back_is_left_to_the_kernel() {
        let placement = placement();
        placement.is_allowed.store(false, Ordering::Relaxed);
        placement.decide(true, 2);
        let mut place = placement.place(0);
        let header = request(opcode::LOOKUP);
        drop(place.serves(&header));
        assert!(place.bound.is_none() && !place.steps_back);
    }

    #[test]
    fn the_processor_is_read_whatever_a_program_is_called() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let line = format!("77 (a) b (c) {}", fields.join(" "));
        assert_eq!(processor_of(&line), Some(39));
        let own = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(processor_of(&own).is_some());
        assert_eq!(processor_of("77 (sh"), None);
        assert!(!is_apart(0, 0));
    }
}
