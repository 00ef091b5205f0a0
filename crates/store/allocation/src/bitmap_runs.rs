//! Runs of blocks and the words of a bitmap.

use crate::run::Run;

/// Calls `f` with every word that a run touches and the mask of its bits there.
pub fn for_words(first: u64, len: u64, mut f: impl FnMut(usize, u64)) {
    let end = first + len;
    let mut at = first;
    while at < end {
        let bit = at % 64;
        let n = (64 - bit).min(end - at);
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1 << n) - 1) << bit
        };
        f((at / 64) as usize, mask);
        at += n;
    }
}

/// Joins ascending single bits of words to runs.
pub fn runs_of(words: impl Iterator<Item = (usize, u64)>) -> Vec<Run> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (word, mut bits) in words {
        while bits != 0 {
            let skip = bits.trailing_zeros();
            let n = (bits >> skip).trailing_ones();
            let first = word as u64 * 64 + u64::from(skip);
            match runs.last_mut() {
                Some(last) if last.0 + last.1 == first => last.1 += u64::from(n),
                _ => runs.push((first, u64::from(n))),
            }
            bits = match skip + n {
                64 => 0,
                done => bits >> done << done,
            };
        }
    }
    runs.into_iter()
        .map(|(first, len)| Run::nvm(first, len))
        .collect()
}
