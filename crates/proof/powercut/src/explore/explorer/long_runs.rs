//! Long runs: a thousand steps of several clients in turns, and faults after which it goes on:
//! power cuts in the middle of a step, unmounts, deaths of clients.
//!
//! Images of such a run are no small differences to a volume that is known beforehand. So what is
//! certain moves into the base ([`Explorer`] has one of its own then) before a step is looked at,
//! and the place where images are recovered moves with it. After a power cut one of the images
//! that it could have left, recovered, is what the run goes on with.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::explore::explorer::{Explorer, Failure};
use crate::images::{Cutter, Image, Paused};
use crate::recording::legs::{self, Leg, Look, Steps};
use crate::recovery::check::{self, fsck};
use crate::volume::base::Base;
use crate::volume::lower_tiers::{Below, Contents, Left, Waves};
use crate::volume::media::PAGE_BYTES;
use crate::wrong::Wrong;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::Memory;
use shale_model::workload::words::{Step, Workload};

/// Media and numbers of pages.
type Pages = BTreeSet<(usize, usize)>;

type Found<T> = std::result::Result<T, Box<Failure>>;

/// Steps of a run that had returned and had begun.
type Windows = Vec<(usize, usize)>;

/// An image with which the run may go on.
struct Chosen {
    event: usize,
    image: Image,
    below: Option<Contents>,
    windows: Windows,
}

fn failure(workload: &Workload, wrong: Wrong) -> Box<Failure> {
    Box::new(Failure {
        workload: workload.to_string(),
        event: None,
        windows: Vec::new(),
        survivors: None,
        wrong,
    })
}

/// The states in which devices below may be when power fails after so many events: before each
/// of their flushes, and at a point of NVM. `None`: there are no devices.
fn moments(
    waves: &mut Option<Waves<'_>>,
    (event, point): (usize, bool),
    seed: u64,
) -> Vec<Option<Left>> {
    let Some(waves) = waves else {
        return if point { vec![None] } else { Vec::new() };
    };
    let mut chance = Chance::new(seed ^ (event as u64) << 24);
    let mut all = Vec::new();
    while waves.to_flush(event) {
        all.extend(waves.left(&mut chance).into_iter().map(Some));
        waves.step();
    }
    if point {
        all.extend(waves.left(&mut chance).into_iter().map(Some));
    }
    all
}

/// A number for this workload alone.
fn id_of(workload: &Workload, seed: u64) -> u128 {
    let part = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, seed, workload).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    part(1) << 64 | part(2)
}

impl Explorer {
    /// Does a long run, and looks at some of its steps and at all faults.
    ///
    /// # Errors
    /// The outer error: it could not be looked at. The inner one: what is wrong.
    pub(crate) fn explore_run(
        &mut self,
        workload: &Workload,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Found<()>> {
        let first = Arc::clone(&self.base);
        self.base = Arc::new(Base {
            id: id_of(workload, seed),
            ..first.moving()
        });
        let mut strayed = Pages::new();
        let found = self.explore_legs(workload, seed, stop, &mut strayed);
        self.base = Arc::clone(&first);
        self.go_to_base(&strayed)?;
        found
    }

    fn explore_legs(
        &mut self,
        workload: &Workload,
        seed: u64,
        stop: &dyn Fn() -> bool,
        strayed: &mut Pages,
    ) -> Result<Found<()>> {
        let steps: Vec<(usize, Step)> = workload.steps.iter().copied().enumerate().collect();
        let mut model = self.base.model.clone();
        let mut rest: Steps<'_> = &steps;
        for leg in 0.. {
            if rest.is_empty() || stop() {
                break;
            }
            let fault = |s: &(usize, Step)| matches!(s.1, Step::Cut | Step::Stop);
            let length = rest.iter().position(fault).map_or(rest.len(), |n| n + 1);
            let (now, later) = rest.split_at(length);
            let ran = legs::run(
                &mut self.stage,
                &self.base,
                workload,
                (leg, now),
                model,
                seed,
            )?;
            let ran = match ran {
                Ok(ran) => ran,
                Err(wrong) => return Ok(Err(failure(workload, wrong))),
            };
            model = match self.end_leg(workload, (leg, now), ran, (seed, stop), strayed)? {
                Ok(model) => model,
                Err(failure) => return Ok(Err(failure)),
            };
            let counts = &self.known.counts;
            counts.steps.fetch_add(now.len() as u64, Ordering::Relaxed);
            let faults = now
                .iter()
                .filter(|s| fault(s) || matches!(s.1, Step::Kill(_)));
            let faults = faults.count() as u64;
            counts.faults.fetch_add(faults, Ordering::Relaxed);
            rest = later;
        }
        Ok(Ok(()))
    }

    /// Looks at a leg, and moves the base to where it ended. Gives the model of that.
    fn end_leg(
        &mut self,
        workload: &Workload,
        (leg, steps): (u64, Steps<'_>),
        ran: Leg,
        (seed, stop): (u64, &dyn Fn() -> bool),
        strayed: &mut Pages,
    ) -> Result<Found<Memory>> {
        let is_cut = matches!(steps.last(), Some((_, Step::Cut)));
        if !is_cut && let Err(wrong) = fsck(&self.stage) {
            return Ok(Err(failure(
                workload,
                format!("unmounted, leg {leg}: {wrong}"),
            )));
        }
        let mut moved = Pages::new();
        let chosen = self.look_at_leg(workload, &ran, is_cut, (seed, stop), &mut moved);
        strayed.extend(&moved);
        let chosen = match chosen? {
            Ok(chosen) => chosen,
            Err(failure) => return Ok(Err(failure)),
        };
        let [before, after] = ran.models;
        let mut next = after;
        if let (Some(chosen), Some(look)) = (&chosen, ran.looks.last()) {
            self.moving_base().below = chosen.below.clone();
            self.ward.put_below(&self.base);
            let base = Arc::clone(&self.base);
            let logs = workload.clients();
            let done = check::recover(&mut self.ward, &base, &chosen.image, logs, &|_| None)?;
            let right = done.and_then(|recovered| {
                match look.run.is_right(&chosen.windows, &recovered.parts) {
                    true => Ok(look.run.tracks[0].is_after(0, &recovered.parts)),
                    false => Err("the run goes on with another tree".to_owned()),
                }
            });
            match right {
                Ok(true) => next = before,
                Ok(false) => {}
                Err(wrong) => {
                    return Ok(Err(Box::new(Failure {
                        event: Some(chosen.event),
                        windows: chosen.windows.clone(),
                        ..*failure(workload, format!("leg {leg}: {wrong}"))
                    })));
                }
            }
        }
        self.move_base(chosen.is_some(), leg, &mut moved)?;
        strayed.extend(moved);
        Ok(Ok(next))
    }

    /// Looks at steps of a leg. Gives an image of a cut in the last one, if that `is_cut`.
    fn look_at_leg(
        &mut self,
        workload: &Workload,
        ran: &Leg,
        is_cut: bool,
        (seed, stop): (u64, &dyn Fn() -> bool),
        moved: &mut Pages,
    ) -> Result<Found<Option<Chosen>>> {
        let mut paused = None;
        let mut chosen = None;
        let begun = self.base.below.clone();
        let mut waves = begun.map(|on| Waves::new(&ran.noted, on, self.depth.devices));
        for (n, look) in ran.looks.iter().enumerate() {
            let mut waits = self.go_to(ran, paused.take(), look.begun);
            self.flush(&mut waits, moved);
            if let Some(waves) = &mut waves {
                waves.pass_to(look.begun);
            }
            let mut chance = Chance::new(seed ^ look.begun as u64);
            let length = (look.returned - look.begun) as u64;
            let fails_at = look.begun + chance.below(length + 1) as usize;
            let is_last = is_cut && n + 1 == ran.looks.len();
            loop {
                let at = waits.at();
                let fails = is_last && at == fails_at;
                let point = waits.is_before_fence(&ran.events) || at == look.returned || fails;
                for left in moments(&mut waves, (at, point), seed) {
                    let left = left.as_ref();
                    if !stop() {
                        let look_at = |this: &mut Self, cutter: &Cutter<'_>| {
                            this.look_at(&look.run, cutter, seed)
                        };
                        let (later, found) = self.with(ran, waits, left, look_at);
                        waits = later;
                        if let Err(found) = found? {
                            let (survivors, wrong) = *found;
                            return Ok(Err(Box::new(Failure {
                                event: Some(at),
                                windows: look.run.windows(at),
                                survivors: Some(survivors),
                                ..*failure(workload, wrong)
                            })));
                        }
                    }
                    if fails && (chosen.is_none() || chance.below(2) == 0) {
                        let choose = |this: &mut Self, cutter: &Cutter<'_>| {
                            this.choose(look, cutter, &mut chance)
                        };
                        let (later, one) = self.with(ran, waits, left, choose);
                        waits = later;
                        chosen = Some(one);
                    }
                }
                if at >= look.returned {
                    break;
                }
                waits = self.go_to(ran, Some(waits), at + 1);
            }
            paused = Some(waits);
        }
        Ok(Ok(chosen))
    }

    /// Goes on with what `ran` stored until `event` events have happened, or as far as there are any.
    fn go_to(&self, ran: &Leg, paused: Option<Paused>, event: usize) -> Paused {
        let (ground, caches) = (self.base.ground(), self.depth.caches);
        let mut cutter = match paused {
            Some(paused) => Cutter::resume(&ran.events, ground, paused, caches),
            None => Cutter::new(&ran.events, ground, Image::of(self.base.id), caches),
        };
        while cutter.at() < event && cutter.step() {}
        cutter.pause()
    }

    /// Does something at a moment of `ran`, with `left` on the devices below.
    fn with<T>(
        &mut self,
        ran: &Leg,
        mut paused: Paused,
        left: Option<&Left>,
        act: impl FnOnce(&mut Self, &Cutter<'_>) -> T,
    ) -> (Paused, T) {
        let mark = left.map_or(0, |left| left.hash);
        if let Some(left) = left {
            self.moving_base().below = Some(left.contents.clone());
            self.ward.put_below(&self.base);
        }
        self.moving_base().id ^= mark;
        paused.mark(mark);
        let base = Arc::clone(&self.base);
        let cutter = Cutter::resume(&ran.events, base.ground(), paused, self.depth.caches);
        let done = act(self, &cutter);
        let mut paused = cutter.pause();
        drop(base);
        self.moving_base().id ^= mark;
        paused.mark(mark);
        (paused, done)
    }

    fn choose(&self, look: &Look, cutter: &Cutter<'_>, chance: &mut Chance) -> Chosen {
        let cut = cutter.cut();
        let (most, all) = (self.depth.images_per_cut, self.depth.all_subsets);
        let mut masks = cut.masks(most, all, chance);
        let mut mask = masks.swap_remove(chance.below(masks.len() as u64) as usize);
        cut.hash(&mut mask);
        Chosen {
            event: cutter.at(),
            image: cut.image(&mask),
            below: self.base.below.clone(),
            windows: look.run.windows(cutter.at()),
        }
    }

    /// The base as only this explorer has it, during a run.
    fn moving_base(&mut self) -> &mut Base {
        Arc::get_mut(&mut self.base).expect("a run has a base of its own")
    }

    /// Moves what is certain into the base and onto the ward.
    fn flush(&mut self, paused: &mut Paused, moved: &mut Pages) {
        let certain = paused.flush();
        let base = self.moving_base();
        base.id = certain.hash;
        let mut pages = Pages::new();
        for (key, value) in certain.units() {
            let (medium, page) = (key.medium(), key.offset() / PAGE_BYTES);
            let at = key.offset() % PAGE_BYTES;
            base.page_mut(medium, page)[at..at + value.len()].copy_from_slice(&value);
            pages.insert((medium, page));
        }
        for &(medium, page) in &pages {
            let bytes = self.moving_base().page_mut(medium, page).to_vec();
            self.ward.map(medium).store(page * PAGE_BYTES, &bytes);
        }
        moved.extend(pages);
    }

    /// The base becomes what is on the ward, or on the stage, without logs.
    fn move_base(&mut self, is_on_ward: bool, leg: u64, moved: &mut Pages) -> Result<()> {
        moved.extend(self.stage.touched().chain(self.ward.touched()));
        let from = if is_on_ward { &self.ward } else { &self.stage };
        let source = from.segment.clone();
        let below = from.below.as_ref().map(Below::contents);
        let base = self.moving_base();
        base.below = below;
        base.id = base.id.rotate_left(9) ^ u128::from(leg + 1);
        for &(medium, page) in &*moved {
            let bytes = base.page_mut(medium, page);
            match medium {
                0 => source.load(page * PAGE_BYTES, bytes),
                _ => bytes.fill(0),
            }
        }
        self.go_to_base(moved)
    }

    /// Stage and ward hold the base again, from which these pages may differ.
    fn go_to_base(&mut self, pages: &Pages) -> Result<()> {
        for place in [&mut self.stage, &mut self.ward] {
            for &(medium, page) in pages {
                place.touch(medium, page * PAGE_BYTES);
            }
            place.reset(&self.base)?;
            place.put_below(&self.base);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::base::More;
    use crate::workloads::sequences::{Kind, open_again};
    use shale_model::{Act, Side};

    /// Operations that are refused change nothing: most of a run has to be others.
    #[test]
    fn a_run_changes_things_to_its_end() {
        let base = Base::make("/dev/shm".as_ref(), More::Nothing).unwrap();
        let mut done = [0; 2];
        for number in 0..20 {
            let workload = Kind::Runs.workload(number, 3);
            let mut model = base.model.clone();
            open_again(&mut model, Step::Stop, workload.clients());
            let half = workload.steps.len() / 2;
            for (n, step) in workload.steps.iter().enumerate() {
                if let Step::Item { client, item } = *step {
                    model.set_client(client);
                    let act: Act = workload.act(item, n);
                    done[n / half % 2] += usize::from(model.act(&act).is_ok());
                } else {
                    open_again(&mut model, *step, workload.clients());
                }
            }
        }
        assert!(done.iter().all(|&n| n > 20 * 500 / 2), "{done:?}");
    }
}
