//! Tests of lease words.

use crate::lease_word::*;
use LeaseMode::{Exclusive, Shared};
use shale_proto::LeaseMode;

#[test]
fn a_word_stands_for_its_generation_and_mode() {
    let word = LeaseWord::default();
    assert!(!word.was_set() && !word.covers(0, Shared));
    word.set(0, Shared);
    assert!(word.covers(0, Shared) && !word.covers(0, Exclusive));
    word.set(u32::MAX, Exclusive);
    assert!(word.covers(u32::MAX, Shared) && word.covers(u32::MAX, Exclusive));
    assert!(!word.covers(0, Shared));
    word.clear();
    assert!(!word.covers(u32::MAX, Shared));
}
