//! Tests of waiting for readers.

use super::barrier::Barrier;
use super::page::ClientPage;
use super::readers::*;
use shale_nvm::{Access, Map, Piece};
use shale_proto::shared_pages::client_page::{self, READER_SLOTS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn client_side(page: &ClientPage) -> Map {
    let piece = Piece {
        fd: page.fd().unwrap(),
        bytes: client_page::BYTES,
    };
    Map::open(vec![piece], Access::ReadWrite).unwrap()
}

#[test]
fn waits_for_who_is_inside_and_for_nobody_else() {
    let barrier = Barrier::register().unwrap();
    let page = ClientPage::new().unwrap();
    let client = client_side(&page);
    let last = client_page::reader_slot(READER_SLOTS - 1);
    client.store_u64(client_page::reader_slot(3), 8);
    barrier.run();
    assert!(
        ActiveReaders::snapshot(&page).passed(&page),
        "even: outside"
    );
    client.store_u64(last, 5);
    barrier.run();
    let mut inside = ActiveReaders::snapshot(&page);
    assert!(!inside.passed(&page), "odd: inside");
    client.store_u64(last, 7);
    assert!(inside.passed(&page), "inside of another call: passed");
}

/// However often the waiting thread is not run: the sleeps count as long as they take.
#[test]
fn waiting_ends_at_the_limit() {
    let limit = Duration::from_millis(200);
    let mut waiting = Backoff::default();
    let begun = std::time::Instant::now();
    let steps = std::iter::from_fn(|| waiting.step(limit).then_some(()));
    let steps = steps
        .inspect(|()| std::thread::sleep(Duration::ZERO))
        .count();
    let took = begun.elapsed();
    assert!(took >= limit && steps > 10, "{steps} steps in {took:?}");
}

#[test]
fn own_readers_hold_back_only_who_came_after() {
    let readers = Arc::new(LocalReaders::default());
    let first = readers.enter();
    let before = readers.entered();
    let later = readers.enter();
    let passed = Arc::new(AtomicBool::new(false));
    let (r, p) = (readers.clone(), passed.clone());
    let waiter = std::thread::spawn(move || {
        r.wait_for(before);
        p.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!passed.load(Ordering::SeqCst));
    drop(first);
    waiter.join().unwrap();
    drop(later);
}
