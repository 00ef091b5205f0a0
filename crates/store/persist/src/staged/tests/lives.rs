//! Random lives of an area, cut anywhere, and what is found afterwards; then the life goes on.

use super::cut_device::CutDevice;
use super::*;
use shale_sys::random::next_random;

/// What the area was given, and what it promised.
struct Life {
    device: Arc<CutDevice>,
    area: StagedArea,
    memory: Memory,
    dirty: BTreeSet<u64>,
    /// Every checkpoint, with the step of the device after which it is certain.
    checkpoints: Vec<(usize, Found)>,
    /// Every batch, in the same way.
    batches: Vec<(usize, Batch)>,
    seed: u64,
}

/// A checkpoint, what the image holds, and the first batch that is needed.
#[derive(Clone)]
struct Found {
    checkpoint: Checkpoint,
    memory: Memory,
    keep_from: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let device = CutDevice::holding(vec![0xee; DEVICE_BYTES as usize]);
        let area = StagedArea::make(device.clone(), AT, LAYOUT, UUID).unwrap();
        let checkpoint = area.last_checkpoint();
        assert_eq!(checkpoint.number, 0);
        let empty = Found {
            checkpoint,
            memory: Memory::default(),
            keep_from: 1,
        };
        Self {
            checkpoints: vec![(device.steps(), empty)],
            device,
            area,
            memory: Memory::default(),
            dirty: BTreeSet::new(),
            batches: Vec::new(),
            seed,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        next_random(&mut self.seed) % below
    }

    fn store(&mut self) {
        for _ in 0..1 + self.random(6) {
            let page = self.random(PAGES);
            let fill = self.random(256) as u8;
            let _ = match fill {
                0 => self.memory.remove(&page),
                _ => self.memory.insert(page, [fill; PAGE_BYTES]),
            };
            self.dirty.insert(page);
        }
    }

    fn append(&mut self) {
        let large = self.random(3) == 0;
        let pieces: Vec<StagedPiece> = (0..1 + self.random(4))
            .map(|_| {
                let most = if large { 40_000 } else { 3_000 };
                let bytes = vec![self.random(256) as u8; 1 + self.random(most) as usize];
                let bytes_all = bytes.len() as u64;
                let plain = piece(self.random(256) as u32, self.random(1 << 40), bytes);
                match self.random(3) {
                    0 => {
                        let from = self.random(bytes_all);
                        with_placed(plain, &[(from, 1 + self.random(bytes_all - from))])
                    }
                    _ => plain,
                }
            })
            .collect();
        match append_pieces(&self.area, &pieces) {
            Ok(number) => {
                let batch = Batch { number, pieces };
                self.batches.push((self.device.steps(), batch));
            }
            Err(PersistError::Full { needed, free }) => {
                assert!(needed > free);
                let next = self.area.next_batch();
                self.checkpoint(next);
                append_pieces(&self.area, &pieces).unwrap();
                let batch = Batch {
                    number: next,
                    pieces,
                };
                self.batches.push((self.device.steps(), batch));
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn checkpoint(&mut self, keep_from: BatchNumber) {
        let dirty: Vec<u64> = std::mem::take(&mut self.dirty).into_iter().collect();
        let pages = self.area.pages_to_copy(&dirty);
        assert!(dirty.iter().all(|page| pages.contains(page)));
        let (txid, clean) = (self.random(1 << 30), self.random(2) == 1);
        let zero = [0; PAGE_BYTES];
        let memory = self.memory.clone();
        let mut copies = pages.iter().map(|p| (*p, memory.get(p).unwrap_or(&zero)));
        let done = self
            .area
            .write_checkpoint(&mut copies, txid, keep_from, clean);
        let checkpoint = done.unwrap();
        assert_eq!((checkpoint.txid, checkpoint.clean), (txid, clean));
        let found = Found {
            checkpoint,
            memory,
            keep_from: keep_from
                .get()
                .max(self.checkpoints.last().unwrap().1.keep_from),
        };
        self.checkpoints.push((self.device.steps(), found));
    }

    fn act(&mut self) {
        match self.random(8) {
            0 => {
                let oldest = self.checkpoints.last().unwrap().1.keep_from;
                let next = self.area.next_batch().get();
                let keep_from = oldest + self.random(next - oldest + 1);
                self.checkpoint(BatchNumber(keep_from));
            }
            1 | 2 => self.store(),
            _ => self.append(),
        }
    }

    /// Cuts the power during a step since `from`, opens what is left, and compares it with what was promised.
    fn cut(mut self, from: usize) -> Life {
        let cut = from + self.random((self.device.steps() - from) as u64 + 1) as usize;
        let bytes = self.device.cut(cut, &mut self.seed);
        let device = CutDevice::holding(bytes);
        let area = StagedArea::open(device.clone(), AT, LAYOUT, UUID).unwrap();
        let certain = self
            .checkpoints
            .iter()
            .rposition(|(step, _)| *step <= cut)
            .unwrap();
        let last = area.last_checkpoint();
        let may_be = &self.checkpoints[certain..self.checkpoints.len().min(certain + 2)];
        let found = may_be.iter().find(|(_, found)| found.checkpoint == last);
        let Some((_, found)) = found.cloned() else {
            panic!("cut at {cut}: found {last:?}");
        };
        let is_whole = image_of(&area) == found.memory;
        assert!(is_whole, "cut at {cut}, {last:?}: another image");
        let batches = batches_of(&area);
        let kept = |(_, batch): &&(usize, Batch)| batch.number.get() >= found.keep_from;
        let (promised, later): (Vec<_>, Vec<_>) = self
            .batches
            .iter()
            .filter(kept)
            .partition(|(step, _)| *step <= cut);
        let promised: Vec<&Batch> = promised.iter().map(|(_, batch)| batch).collect();
        let in_flight = later.first().map(|(_, batch)| batch);
        let as_promised = batches.iter().eq(promised.iter().copied());
        let with_last = promised.iter().copied().chain(in_flight);
        assert!(
            as_promised || batches.iter().eq(with_last),
            "cut at {cut}: {:?} where {:?} and perhaps {:?} are expected",
            numbers(&batches),
            promised.iter().map(|b| b.number.0).collect::<Vec<_>>(),
            in_flight.map(|b| b.number.0)
        );
        let mut life = Life {
            checkpoints: vec![(0, found.clone())],
            batches: batches.into_iter().map(|batch| (0, batch)).collect(),
            memory: found.memory,
            dirty: BTreeSet::new(),
            device,
            area,
            seed: self.seed,
        };
        if life.random(2) == 1 {
            // The memory tier is still there, with stores that nobody noted.
            life.store();
            life.dirty.clear();
            let memory = life.memory.clone();
            life.area.compare(&mut |page, into| {
                *into = *memory.get(&page).unwrap_or(&[0; PAGE_BYTES]);
            });
        }
        life
    }
}

fn numbers(batches: &[Batch]) -> Vec<u64> {
    batches.iter().map(|batch| batch.number.0).collect()
}

/// A life with some cuts.
fn live(seed: u64) {
    let mut life = Life::new(seed);
    let mut from = life.device.steps();
    for _ in 0..6 {
        for _ in 0..life.random(24) {
            life.act();
        }
        life = life.cut(from);
        from = 0;
    }
}

#[test]
fn what_was_promised_is_there_after_every_power_cut() {
    let lives = std::env::var("SHALE_LIVES")
        .ok()
        .and_then(|n| n.parse().ok());
    (0..lives.unwrap_or(60)).for_each(live);
}

/// The same device, cut at every step of a checkpoint and of an append in many ways.
#[test]
fn every_step_of_one_life_may_be_the_last() {
    let mut seed = 7;
    for round in 0..3 {
        let mut life = Life::new(round);
        let from = life.device.steps();
        for _ in 0..20 {
            life.act();
        }
        life.checkpoint(life.area.next_batch());
        for cut in from..=life.device.steps() {
            let bytes = life.device.cut(cut, &mut seed);
            let area = StagedArea::open(CutDevice::holding(bytes), AT, LAYOUT, UUID).unwrap();
            let last = area.last_checkpoint();
            let found = life
                .checkpoints
                .iter()
                .find(|(_, found)| found.checkpoint == last);
            assert!(image_of(&area) == found.unwrap().1.memory);
        }
    }
}
