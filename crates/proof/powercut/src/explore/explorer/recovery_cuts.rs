//! Power fails once more while an image is recovered, and a third time while that is.

use std::sync::Arc;

use crate::explore::explorer::{Explorer, Found, is_chosen};
use crate::images::{Cutter, Image};
use crate::recording::run::Run;
use crate::recovery::check::Recovered;
use shale_bench::Result;
use shale_bench::chance::Chance;

/// Power fails so often at most.
const FAILURES: u64 = 3;
/// Of the images that a second cut leaves, one in so many is cut a third time.
const THIRD_ONE_IN: u64 = 128;

impl Explorer {
    /// Cuts power while `image` is recovered: the tree has to be the same in the end. It is the
    /// `failures`-th time.
    pub(crate) fn cut_recovery(
        &mut self,
        run: &Run,
        image: &Image,
        whole: &Recovered,
        (failures, seed): (u64, u64),
    ) -> Result<Found<()>> {
        let base = Arc::clone(&self.base);
        let (ground, caches) = (base.ground(), self.depth.caches);
        let (most, all) = (self.depth.images_per_cut_again, self.depth.all_subsets);
        let mut cutter = Cutter::new(&whole.events, ground, image.clone(), caches);
        loop {
            if cutter.before_fence() {
                let cut = cutter.cut();
                let mut chance = Chance::new(seed ^ image.hash as u64 ^ cutter.at() as u64);
                for mut mask in cut.masks(most, all, &mut chance) {
                    let hash = cut.hash(&mut mask);
                    let known = self.known.image(hash).lock().get(&hash).copied();
                    if known == Some(whole.parts) {
                        continue;
                    }
                    let place = format!("cut again at event {} of recovery", cutter.at());
                    let next = cut.image(&mask);
                    let found = self.look_again(run, (image, whole), &next, (failures, seed))?;
                    if let Err(wrong) = found {
                        return Ok(Err(format!("{place}: {wrong}")));
                    }
                }
            }
            if !cutter.step() {
                return Ok(Ok(()));
            }
        }
    }

    /// Recovers `next`, which a cut in the recovery of `image` left.
    fn look_again(
        &mut self,
        run: &Run,
        (image, whole): (&Image, &Recovered),
        next: &Image,
        (failures, seed): (u64, u64),
    ) -> Result<Found<()>> {
        let again = match self.recover(run, next, failures)? {
            Ok(again) => again,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if again.parts != whole.parts {
            let (one, two) = (self.tree_of(run, image)?, self.tree_of(run, next)?);
            let differences = one.and_then(|one| Ok(one.differences(&two?)));
            let shown = differences.map_or_else(|e| e, |all| all.join("; "));
            return Ok(Err(format!("another tree: {shown}")));
        }
        let deeper = failures < FAILURES && is_chosen(next.hash, THIRD_ONE_IN, seed);
        match deeper {
            true => self.cut_recovery(run, next, &again, (failures + 1, seed)),
            false => Ok(Ok(())),
        }
    }
}
