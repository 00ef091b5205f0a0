//! Which pages are marked.

use super::*;
use shale_nvm::MapOptions;

#[test]
fn every_kind_of_store_marks_its_pages() {
    let pages = Arc::new(DirtyPages::new(80 * 4096));
    let map = MapOptions::new()
        .recorder(pages.clone())
        .anonymous(80 * 4096)
        .unwrap();
    assert_eq!(pages.take(), []);
    map.store(4090, &[1; 12]);
    assert_eq!(pages.take(), [0, 1]);
    map.copy_nt(3 * 4096, &[1; 8192]);
    assert_eq!((pages.len(), pages.take()), (2, vec![3, 4]));
    map.store_u64(70 * 4096, 8);
    map.zero_nt(64 * 4096 + 64, 4096 - 64);
    map.copy_nt_with(10 * 4096 - 64, &[&[1; 64], &[2; 64]]);
    assert_eq!(pages.take(), [9, 10, 64, 70]);
    map.flush(0, 4096);
    map.fence();
    let mut found = [0; 64];
    map.load(4090, &mut found);
    assert!(pages.is_empty());
}

/// A page is marked after it was stored to: who takes the marks, and copies then, has seen every store that is not
/// marked again.
#[test]
fn a_mark_that_was_taken_is_of_a_store_that_is_seen() {
    use shale_nvm::{Event, Path, Recorder, StoreKind};
    let pages = DirtyPages::new(4096);
    pages.record(Path::Data, &mut |sink| {
        let bytes = &[1];
        sink.note(Event::Store {
            kind: StoreKind::Word,
            offset: 8,
            bytes,
        });
        assert!(pages.is_empty(), "marked while it is stored");
    });
    assert_eq!(pages.take(), [0]);
}

#[test]
fn marks_of_many_threads_are_all_taken() {
    let pages = Arc::new(DirtyPages::new(256 * 4096));
    let map = MapOptions::new()
        .recorder(pages.clone())
        .anonymous(256 * 4096)
        .unwrap();
    let mut taken = BTreeSet::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let map = &map;
            scope.spawn(move || (0..64).for_each(|n| map.store((n * 4 + thread) * 4096, &[1])));
        }
        for _ in 0..100 {
            taken.extend(pages.take());
        }
    });
    taken.extend(pages.take());
    assert!(taken.iter().copied().eq(0..256));
}
