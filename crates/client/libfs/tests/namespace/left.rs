//! A client that is still there when its daemon is not: what it got stays true, and from
//! then on every call says that it is not served.

use crate::place::{Place, tree};
use shale_libfs::{Errno, OFlags};
use std::sync::atomic::{AtomicBool, Ordering};

const LINE: usize = 10;

#[test]
fn what_returned_counts_and_nothing_else_does() {
    for round in 0..4u64 {
        let mut place = Place::new();
        let a = place.attach(false);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        let file = tree(&a).open(b"/f", flags, 0o644).unwrap();
        let stop = AtomicBool::new(false);
        let returned = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut lines = 0;
                loop {
                    match file.write(format!("{lines:09}\n").as_bytes()) {
                        Ok(n) => assert_eq!(n, LINE),
                        Err(e) => break (lines, e),
                    }
                    lines += 1;
                    // Few enough that nobody has to be asked for anything.
                    std::thread::sleep(std::time::Duration::from_micros(20));
                    assert!(!stop.load(Ordering::Relaxed), "it goes on after its daemon");
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5 + round * 7));
            place.restart(false);
            std::thread::sleep(std::time::Duration::from_millis(50));
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert_eq!(returned.1, Errno::IO);
        let mut byte = [0];
        assert_eq!(file.pread(0, &mut byte), Err(Errno::IO));
        assert_eq!(file.stat().err(), Some(Errno::IO));
        assert_eq!(file.pwrite(0, &[b'x'; 8192]), Err(Errno::IO));

        let b = place.attach(false);
        let mut found = vec![0; LINE * (returned.0 + 2)];
        let now = tree(&b).open(b"/f", OFlags::RDONLY, 0).unwrap();
        let bytes = now.pread(0, &mut found).unwrap();
        let expected: String = (0..returned.0).map(|n| format!("{n:09}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&found[..bytes]), expected);
    }
}
