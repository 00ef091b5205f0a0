//! The images that a power cut could leave, as differences to the base.
//!
//! [`Cutter`] steps through a recording. At any point it knows what is certain to be on the
//! media and, unit by unit of 8 bytes, what might be there instead. It does what
//! [`shale_record::Replay`] does, but keeps only what differs from the base, and knows
//! the hash of an image without making it: a million images can be looked at.
//!
//! Invariants: an [`Image`] holds no unit that is equal to the base; its hash is the
//! exclusive or of its units' hashes, so equal images have equal hashes however they came
//! about.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use shale_nvm::StoreKind;
use shale_record::{Action, Recorded};

use shale_bench::chance::Chance;

const UNIT: usize = 8;
const LINE: u64 = 64;
const MEDIUM_SHIFT: u32 = 40;

/// Medium and offset of a unit in one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    fn new(medium: usize, offset: usize) -> Key {
        Key((medium as u64) << MEDIUM_SHIFT | offset as u64)
    }

    /// Index of the medium.
    pub fn medium(self) -> usize {
        (self.0 >> MEDIUM_SHIFT) as usize
    }

    /// Bytes from its start.
    pub fn offset(self) -> usize {
        (self.0 & ((1 << MEDIUM_SHIFT) - 1)) as usize
    }

    fn line(self) -> u64 {
        self.0 / LINE
    }
}

/// Hashes one number by mixing it: the keys are numbers.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = mix(self.0 ^ n);
    }
}

fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// The hash of one unit with one value.
fn unit_hash(key: Key, value: u64) -> u128 {
    let low = mix(mix(key.0.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ value);
    let high = mix(low.wrapping_add(mix(value ^ 0x2545_f491_4f6c_dd1d)) ^ key.0.rotate_left(17));
    u128::from(high) << 64 | u128::from(low)
}

type Units = HashMap<Key, u64, BuildHasherDefault<Mix>>;

/// What media hold, as a difference to the base.
#[derive(Debug, Clone, Default)]
pub struct Image {
    units: Units,
    /// Equal for equal images.
    pub hash: u128,
}

impl Image {
    /// No difference to a base whose hash is `id`.
    pub fn of(id: u128) -> Image {
        Image {
            units: Units::default(),
            hash: id,
        }
    }

    fn set(&mut self, base: Ground<'_>, key: Key, value: u64) {
        let before = base_unit(base, key);
        if let Some(old) = self.units.remove(&key) {
            self.hash ^= unit_hash(key, old);
        }
        if value != before {
            self.units.insert(key, value);
            self.hash ^= unit_hash(key, value);
        }
    }

    fn get(&self, base: Ground<'_>, key: Key) -> u64 {
        let known = self.units.get(&key);
        known.copied().unwrap_or_else(|| base_unit(base, key))
    }

    /// The units that differ from the base.
    pub fn units(&self) -> impl Iterator<Item = (Key, [u8; UNIT])> {
        self.units
            .iter()
            .map(|(&key, value)| (key, value.to_le_bytes()))
    }
}

/// What media hold that images are differences to.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'b> {
    /// The NVM tier.
    pub segment: &'b [u8],
    /// Logs; one that is not there is zeros, as before it is used.
    pub logs: &'b [Vec<u8>],
}

impl<'b> From<&'b [u8]> for Ground<'b> {
    fn from(segment: &'b [u8]) -> Self {
        Ground { segment, logs: &[] }
    }
}

impl<'b> From<&'b Vec<u8>> for Ground<'b> {
    fn from(segment: &'b Vec<u8>) -> Self {
        segment[..].into()
    }
}

fn base_unit(base: Ground<'_>, key: Key) -> u64 {
    let at = key.offset();
    let medium = match key.medium() {
        0 => Some(base.segment),
        n => base.logs.get(n - 1).map(|log| &log[..]),
    };
    medium.map_or(0, |bytes| {
        u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
    })
}

/// A value of a unit that is not certain.
#[derive(Debug, Clone)]
struct Version {
    event: usize,
    key: Key,
    value: u64,
    kind: StoreKind,
    thread: usize,
    /// Threads that began to write it back, as bits.
    flushed_by: u64,
}

impl Version {
    fn is_certain_after_fence_of(&self, thread: usize) -> bool {
        match self.kind {
            StoreKind::Nt => self.thread == thread,
            StoreKind::Word | StoreKind::Copy => self.flushed_by & bit(thread) != 0,
        }
    }
}

fn bit(thread: usize) -> u64 {
    1 << (thread % 64)
}

/// What survives whatever was not fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caches {
    /// Nothing is certain before its fence; lines may be evicted by themselves.
    Volatile,
    /// Caches are in the persistence domain; write-combining buffers are not.
    Persistent,
}

/// A position in a recording.
#[derive(Clone)]
pub struct Cutter<'e> {
    events: &'e [Recorded],
    base: Ground<'e>,
    caches: Caches,
    at: usize,
    durable: Image,
    current: Units,
    /// By number of the line.
    pending: BTreeMap<u64, Vec<Version>>,
}

impl<'e> Cutter<'e> {
    /// Before the first of `events`, with `image` on the media.
    pub fn new(
        events: &'e [Recorded],
        base: impl Into<Ground<'e>>,
        image: Image,
        caches: Caches,
    ) -> Self {
        Cutter {
            events,
            base: base.into(),
            caches,
            at: 0,
            current: image.units.clone(),
            durable: image,
            pending: BTreeMap::new(),
        }
    }

    /// Stops here for a while.
    pub fn pause(self) -> Paused {
        Paused {
            at: self.at,
            durable: self.durable,
            current: self.current,
            pending: self.pending,
        }
    }

    /// Goes on where `paused` stopped, with the same events and what is on the media by now.
    pub fn resume(
        events: &'e [Recorded],
        base: Ground<'e>,
        paused: Paused,
        caches: Caches,
    ) -> Self {
        Cutter {
            events,
            base,
            caches,
            at: paused.at,
            durable: paused.durable,
            current: paused.current,
            pending: paused.pending,
        }
    }

    /// How many events have happened.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether the next event is a fence: what is uncertain now will not be behind it.
    pub fn before_fence(&self) -> bool {
        let next = self.events.get(self.at);
        next.is_some_and(|event| event.action == Action::Fence)
    }

    /// Lets one more event happen; whether there was one.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.get(self.at) else {
            return false;
        };
        match &event.action {
            Action::Store {
                kind,
                offset,
                bytes,
            } => self.store(event, *kind, *offset, bytes),
            Action::Flush { offset, lines } => {
                let first = Key::new(event.medium, *offset).line();
                for (_, versions) in self.pending.range_mut(first..first + *lines as u64) {
                    for version in versions {
                        version.flushed_by |= bit(event.thread);
                    }
                }
            }
            Action::Fence => self.fence(event.thread),
        }
        self.at += 1;
        true
    }

    fn store(&mut self, event: &Recorded, kind: StoreKind, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let (first, skip) = (at / UNIT * UNIT, at % UNIT);
            let n = (UNIT - skip).min(bytes.len() - done);
            let key = Key::new(event.medium, first);
            let known = self.current.get(&key).copied();
            let mut value = known
                .unwrap_or_else(|| base_unit(self.base, key))
                .to_le_bytes();
            value[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
            let value = u64::from_le_bytes(value);
            self.current.insert(key, value);
            self.pending.entry(key.line()).or_default().push(Version {
                event: self.at,
                key,
                value,
                kind,
                thread: event.thread,
                flushed_by: 0,
            });
            done += n;
        }
    }

    fn fence(&mut self, thread: usize) {
        let (durable, base) = (&mut self.durable, self.base);
        self.pending.retain(|_, versions| {
            let mut certain: Vec<(Key, usize)> = Vec::new();
            for version in versions.iter() {
                if version.is_certain_after_fence_of(thread) {
                    durable.set(base, version.key, version.value);
                    certain.push((version.key, version.event));
                }
            }
            // Older values of these units can no longer come back.
            let stays = |v: &Version| !certain.iter().any(|c| c.0 == v.key && c.1 >= v.event);
            versions.retain(stays);
            !versions.is_empty()
        });
    }

    /// What units of a medium are known to hold is this now, for certain. To be asked between two
    /// events.
    pub fn is_now(&mut self, medium: usize, bytes: &[u8]) {
        let known = self.current.keys().chain(self.durable.units.keys());
        let known: Vec<Key> = known
            .copied()
            .filter(|key| key.medium() == medium)
            .collect();
        for key in known {
            let found = bytes.get(key.offset()..key.offset() + UNIT);
            let found = found.and_then(|unit| unit.try_into().ok());
            let value = found.map_or(0, u64::from_le_bytes);
            self.durable.set(self.base, key, value);
            self.current.insert(key, value);
            self.pending.remove(&key.line());
        }
    }

    /// A medium is new: zeros, whatever was on it. To be asked between two events.
    pub fn forget(&mut self, medium: usize) {
        let here = |key: Key| key.medium() == medium;
        let gone: Vec<Key> = self.durable.units.keys().copied().collect();
        for key in gone.into_iter().filter(|key| here(*key)) {
            self.durable.set(self.base, key, 0);
        }
        self.current.retain(|key, _| !here(*key));
        for versions in self.pending.values_mut() {
            versions.retain(|version| !here(version.key));
        }
        self.pending.retain(|_, versions| !versions.is_empty());
    }

    /// What is uncertain if power fails now.
    pub fn cut(&self) -> Cut<'_> {
        let mut units = Vec::new();
        let mut kept = Cow::Borrowed(&self.durable);
        for versions in self.pending.values() {
            for version in versions {
                let alone = versions.iter().filter(|v| v.key == version.key).count() == 1;
                if alone && self.durable.get(self.base, version.key) == version.value {
                    continue;
                }
                if self.caches == Caches::Persistent && version.kind != StoreKind::Nt {
                    kept.to_mut().set(self.base, version.key, version.value);
                    // What it was before can no longer be there.
                    units.retain(|unit: &Version| unit.key != version.key);
                } else {
                    units.push(version.clone());
                }
            }
        }
        units.sort_by_key(|v| (v.event, v.key));
        Cut::new(self, kept, units)
    }
}

/// A [`Cutter`] that looks at nothing for a while, so that what it differs from can change.
pub struct Paused {
    at: usize,
    durable: Image,
    current: Units,
    pending: BTreeMap<u64, Vec<Version>>,
}

impl Paused {
    /// How many events have happened.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Whether the next of these events is a fence.
    pub fn is_before_fence(&self, events: &[Recorded]) -> bool {
        let next = events.get(self.at);
        next.is_some_and(|event| event.action == Action::Fence)
    }

    /// Changes the hashes of all images from here on; the same once more takes it back.
    pub fn mark(&mut self, by: u128) {
        self.durable.hash ^= by;
    }

    /// Takes what is certain by now, to be put on the media. Hashes stay what they were.
    pub fn flush(&mut self) -> Image {
        let id = self.durable.hash;
        let uncertain = |key: &Key| self.pending.contains_key(&key.line());
        self.current.retain(|key, _| uncertain(key));
        std::mem::replace(&mut self.durable, Image::of(id))
    }
}

/// The moment of a power cut.
pub struct Cut<'c> {
    base: Ground<'c>,
    durable: Cow<'c, Image>,
    /// In the order in which they were stored.
    units: Vec<Version>,
    /// What the hash changes by if the unit survives; none: it has several values.
    change: Vec<Option<u128>>,
    /// Single words, which reach a line in order.
    words: bool,
}

impl<'c> Cut<'c> {
    fn new(cutter: &'c Cutter<'_>, durable: Cow<'c, Image>, units: Vec<Version>) -> Self {
        let base = cutter.base;
        let mut counts: HashMap<Key, usize, BuildHasherDefault<Mix>> = HashMap::default();
        for unit in &units {
            *counts.entry(unit.key).or_default() += 1;
        }
        let one = |key, value| match value == base_unit(base, key) {
            true => 0,
            false => unit_hash(key, value),
        };
        let change = |v: &Version| {
            let alone = counts[&v.key] == 1;
            alone.then(|| one(v.key, durable.get(base, v.key)) ^ one(v.key, v.value))
        };
        Cut {
            base,
            change: units.iter().map(change).collect(),
            words: units.iter().any(|v| v.kind == StoreKind::Word),
            durable,
            units,
        }
    }

    /// How many values are uncertain.
    pub fn uncertain(&self) -> usize {
        self.units.len()
    }

    /// Adds what has to be there too: words reach a line in program order.
    fn closed(&self, mask: &mut [bool]) {
        if !self.words {
            return;
        }
        let mut needed: Vec<u64> = Vec::new();
        for (alive, unit) in mask.iter_mut().zip(&self.units).rev() {
            if unit.kind == StoreKind::Word {
                let line = unit.key.line();
                if *alive && !needed.contains(&line) {
                    needed.push(line);
                }
                *alive |= needed.contains(&line);
            }
        }
    }

    /// The hash of the image that `mask` leaves.
    pub fn hash(&self, mask: &mut [bool]) -> u128 {
        self.closed(mask);
        let mut hash = self.durable.hash;
        let mut several: Vec<(Key, u64)> = Vec::new();
        for ((unit, change), _) in self
            .units
            .iter()
            .zip(&self.change)
            .zip(&*mask)
            .filter(|x| *x.1)
        {
            match change {
                Some(change) => hash ^= change,
                None => match several.iter_mut().find(|s| s.0 == unit.key) {
                    Some(last) => last.1 = unit.value,
                    None => several.push((unit.key, unit.value)),
                },
            }
        }
        for (key, value) in several {
            for value in [self.durable.get(self.base, key), value] {
                if value != base_unit(self.base, key) {
                    hash ^= unit_hash(key, value);
                }
            }
        }
        hash
    }

    /// The image that `mask`, closed by [`Cut::hash`], leaves.
    pub fn image(&self, mask: &[bool]) -> Image {
        let mut image = self.durable.clone().into_owned();
        for (unit, _) in self.units.iter().zip(mask).filter(|x| *x.1) {
            image.set(self.base, unit.key, unit.value);
        }
        image
    }

    /// What could survive: all of it where that is no more than `all` or `most` masks, else a
    /// sample of at most about `most`: none, all, each store alone and missing, prefixes and
    /// suffixes of stores, the same by lines and units, pairs and their complements, and random
    /// ones.
    pub fn masks(&self, most: usize, all: usize, chance: &mut Chance) -> Vec<Vec<bool>> {
        let n = self.units.len();
        if n <= EXHAUSTIVE && 1 << n <= most.max(all) {
            let bits = |set: usize| (0..n).map(|k| set >> k & 1 == 1).collect();
            return (0..1usize << n).map(bits).collect();
        }
        let mut masks = vec![vec![false; n], vec![true; n]];
        let by_store = spans(&self.units, |v| v.event as u64);
        let by_line = spans(&self.units, |v| v.key.line());
        let by_unit: Vec<_> = (0..n).map(|k| k..k + 1).collect();
        let share = most / 8;
        for (spans, most) in [(by_store, share * 3), (by_line, share), (by_unit, share)] {
            for span in sample(spans, most / 4 + 1, chance) {
                masks.push(masked(n, |k| span.contains(&k)));
                masks.push(masked(n, |k| !span.contains(&k)));
                masks.push(masked(n, |k| k < span.end));
                masks.push(masked(n, |k| k >= span.start));
            }
        }
        for _ in 0..share / 2 {
            let (a, b) = (
                chance.below(n as u64) as usize,
                chance.below(n as u64) as usize,
            );
            masks.push(masked(n, |k| k == a || k == b));
            masks.push(masked(n, |k| k != a && k != b));
        }
        while masks.len() < most {
            masks.push((0..n).map(|_| chance.below(2) == 1).collect());
        }
        masks
    }
}

/// All subsets are looked at where they are no more than this, unless reported otherwise.
pub const ALL_SUBSETS: usize = 1 << 6;
/// Up to so many uncertain units every subset is looked at.
const EXHAUSTIVE: usize = 12;

fn masked(n: usize, alive: impl Fn(usize) -> bool) -> Vec<bool> {
    (0..n).map(alive).collect()
}

/// Runs of units that have the same `of`.
fn spans(units: &[Version], of: impl Fn(&Version) -> u64) -> Vec<std::ops::Range<usize>> {
    let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
    for (n, unit) in units.iter().enumerate() {
        match spans.last_mut() {
            Some(last) if of(&units[last.start]) == of(unit) => last.end = n + 1,
            _ => spans.push(n..n + 1),
        }
    }
    spans
}

/// At most `most` of `all`, in order.
fn sample<T>(mut all: Vec<T>, most: usize, chance: &mut Chance) -> Vec<T> {
    if all.len() > most {
        chance.shuffle(&mut all);
        all.truncate(most);
    }
    all
}
