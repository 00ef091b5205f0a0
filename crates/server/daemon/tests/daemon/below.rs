//! What a client may ask of blocks below NVM.

use crate::served::{Hand, Place};
use shale_format::{BlockAddr, TierId};
use shale_pool::DeviceKind;
use shale_pool::volume_file::DeviceFile;
use shale_proto::{Reply, Request};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const TRUSTED: u32 = 1002;

fn image(path: PathBuf) -> DeviceFile {
    DeviceFile {
        path,
        size_bytes: 16 << 20,
        zone_bytes: None,
        model: None,
        kind: DeviceKind::Conventional,
        overprovision_percent: None,
    }
}

fn opened(hand: &Hand, addr: BlockAddr) -> (Reply, Vec<OwnedFd>) {
    hand.ask_for(Request::OpenLower { addr: addr.raw() })
}

/// Nothing that a client asks for hurts anybody, whatever address it names; a descriptor it gets for flash alone, and that
/// one reads and does nothing else.
#[test]
fn clients_get_flash_to_read_and_nothing_else() {
    let place = Place::new(48);
    let mut config = place.config();
    config.volume.trusted_uids = vec![TRUSTED];
    config.volume_path = Some(place.file());
    let daemon = crate::served::start(config);
    let hand = Hand::judged(&daemon, TRUSTED);
    let everywhere = |hand: &Hand| {
        let nonsense = [
            0,
            1,
            1 << 55,
            1 << 56,
            2 << 56,
            3 << 56,
            u64::MAX >> 8,
            u64::MAX,
        ];
        for addr in nonsense.map(BlockAddr::from_raw) {
            for blocks in [0, 1, u32::MAX] {
                let raw = addr.raw();
                let reply = hand.ask(Request::ReadLower { addr: raw, blocks });
                let nothing = matches!(&reply, Reply::Lower { data, .. } if data.is_empty());
                assert!(
                    nothing || matches!(reply, Reply::Refused { .. }),
                    "{addr:?} {reply:?}"
                );
            }
        }
        let outside = nonsense.map(|raw| opened(hand, BlockAddr::from_raw(raw | 1 << 40)));
        assert!(
            outside
                .iter()
                .all(|(r, fds)| fds.is_empty() && *r != Reply::Device)
        );
        assert!(
            matches!(hand.ask(Request::Space), Reply::Space(_)),
            "it answers on"
        );
    };
    everywhere(&hand);
    let path = |name: &str| place.nvm().join(name);
    daemon
        .add_device(TierId::Ssd, &image(path("ssd.img")), false)
        .unwrap();
    daemon
        .add_device(TierId::Hdd, &image(path("hdd.img")), false)
        .unwrap();
    everywhere(&hand);
    let (disk, none) = opened(&hand, BlockAddr::new(TierId::Hdd, 0));
    assert_eq!((disk, none.len()), (Reply::Device, 0));
    let (flash, fds) = opened(&hand, BlockAddr::new(TierId::Ssd, 0));
    assert_eq!((flash, fds.len()), (Reply::Device, 1));
    assert_eq!(
        rustix::io::pwrite(&fds[0], &[0; 4096], 0),
        Err(rustix::io::Errno::BADF)
    );
    // Nor is it locked by it: the next daemon finds it free.
    drop(hand);
    daemon.shutdown().unwrap();
    drop(daemon);
    place.start().shutdown().unwrap();
    drop(fds);
}
