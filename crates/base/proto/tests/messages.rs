//! The decoder of messages gets spoiled ones: a message or an error, never more memory than the
//! packet could stand for. Seeded.

use shale_proto::message::{BlockRun, MESSAGE_BYTES_MAX, PROTO_VERSION, decode, encode};
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};

struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn requests(r: &mut Seeded) -> Vec<Request> {
    let runs = (0..r.below(20))
        .map(|_| BlockRun {
            addr: r.next(),
            blocks: r.next() as u32,
        })
        .collect();
    vec![
        Request::Attach {
            version: PROTO_VERSION,
            log_bytes: r.next(),
            durability: r.next() as u8,
        },
        Request::ReturnBlocks { runs },
        Request::Lease {
            ino: r.next(),
            mode: LeaseMode::Shared,
            request_mode: LeaseRequestMode::RevokeAndHold,
        },
        Request::Reserve {
            wanted: r.next(),
            least: 1,
        },
        Request::HardenAll,
        Request::ReserveForPage { bytes: r.next() },
        Request::Freeze { max_ns: r.next() },
        Request::Thaw,
        Request::Detach,
    ]
}

#[test]
fn spoiled_messages() {
    let mut read = 0;
    for seed in 0..20_000 {
        let mut r = Seeded(seed);
        for request in requests(&mut r) {
            let bytes = encode(&request).unwrap();
            assert_eq!(decode::<Request>(&bytes).unwrap(), request);
            let mut spoiled = bytes.clone();
            for _ in 0..1 + r.below(3) {
                match r.below(4) {
                    0 => spoiled.truncate(r.below(spoiled.len() as u64 + 1) as usize),
                    1 => spoiled.extend((0..r.below(12)).map(|_| 0xff)),
                    _ if !spoiled.is_empty() => {
                        let at = r.below(spoiled.len() as u64) as usize;
                        spoiled[at] = r.next() as u8;
                    }
                    _ => {}
                }
            }
            if let Ok(found) = decode::<Request>(&spoiled) {
                read += 1;
                if let Request::ReturnBlocks { runs } = &found {
                    assert!(runs.len() <= spoiled.len());
                }
            }
            drop(decode::<Reply>(&spoiled));
        }
    }
    assert!(read > 1000, "{read}: some are messages still");
}

/// A length that no packet can hold is not believed.
#[test]
fn lengths_that_lie() {
    for tag in 0..=32u8 {
        for filler in [0xff, 0x80, 0x01, 0x7f] {
            for n in 0..24 {
                let bytes = [&[tag][..], &vec![filler; n], &[1]].concat();
                drop(decode::<Request>(&bytes));
                drop(decode::<Reply>(&bytes));
            }
        }
    }
    assert!(decode::<Request>(&vec![0xff; MESSAGE_BYTES_MAX]).is_err());
}
