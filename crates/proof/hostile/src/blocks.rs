//! Steal records that name blocks which are not the client's.

use super::attacker::*;
use super::{Case, Scene, harmless, refused};
use shale_format::superblock::Superblock;
use shale_format::{BlockAddr, Ino, TierId};
use shale_proto::message::BlockRun;
use shale_proto::{Reply, Request};
use shale_volume::Mapping;

const NOT_GRANTED: &str = "not granted";

/// An attacker of the daemon's own user with some granted blocks and a file.
fn granted(scene: &Scene<'_>) -> (Attacker, u64, u64) {
    let mut a = scene.stage.same_user();
    let ino = a.number();
    a.take(1);
    let name = scene.name(&format!("f{}", a.attached.client));
    a.append(create_as(1, ino, 0o100_644, (0, 0), name.as_bytes(), b""));
    let Reply::Blocks { runs, .. } = a.ask(Request::GrantBlocks { blocks: 64 }) else {
        panic!("no blocks");
    };
    assert!(runs[0].blocks >= 16);
    (a, ino, runs[0].addr)
}

/// Steals what `which` chooses, given the first granted block.
fn stolen(scene: &Scene<'_>, which: impl Fn(&Scene<'_>, u64) -> (u64, u32)) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    let (addr, blocks) = which(scene, first);
    a.append(steal(ino, 0, addr, blocks, 1));
    let reply = a.digest();
    assert!(scene.stage.inode(ino).is_none_or(|i| i.blocks == 0));
    (a, reply)
}

/// A block of root's file.
fn of_another(scene: &Scene<'_>, _: u64) -> (u64, u32) {
    let view = scene.stage.daemon.volume().view();
    let inode = view.inode(Ino(scene.stage.things.inside)).unwrap().unwrap();
    match view.map_block(&inode, shale_format::FileBlock(0)).unwrap() {
        Mapping::Data { addr, .. } => (addr.raw(), 1),
        other => panic!("{other:?}"),
    }
}

fn twice(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    a.append(steal(ino, 0, first, 4, 1));
    a.append(steal(ino, 65536, first + 3, 4, 1));
    let reply = a.digest();
    (a, reply)
}

fn twice_later(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    a.append(steal(ino, 0, first, 4, 1));
    assert!(matches!(a.digest(), Reply::Digested { .. }));
    a.append(steal(ino, 65536, first, 1, 1));
    let reply = a.digest();
    (a, reply)
}

fn returned(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    let run = || Request::ReturnBlocks {
        runs: vec![BlockRun {
            addr: first,
            blocks: 8,
        }],
    };
    assert_eq!(a.ask(run()), Reply::Done);
    assert!(matches!(a.ask(run()), Reply::Refused { .. }), "only once");
    a.append(steal(ino, 0, first, 1, 1));
    let reply = a.digest();
    (a, reply)
}

fn of_another_client(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (_holder, _, first) = granted(scene);
    let (mut a, ino, _) = granted(scene);
    a.append(steal(ino, 0, first, 1, 1));
    let reply = a.digest();
    (a, reply)
}

/// What was in a block that was never written does not come to light behind the end.
fn old_bytes(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    let volume = scene.stage.daemon.volume();
    let old = [0x5e; 4096];
    volume
        .write_at(BlockAddr::from_raw(first), 0, &old)
        .unwrap();
    a.append(steal(ino, 0, first, 1, 10));
    a.append(truncate(ino, 4096));
    let reply = a.digest();
    let found = scene.stage.content(ino).unwrap();
    assert!(found.len() == 4096 && found[10..].iter().all(|&b| b == 0));
    (a, reply)
}

/// A granted block is linked as it was. That shows nothing that its client may not read anyway:
/// a caller that may steal is the daemon's own user, and has the whole tier mapped. Nobody else may.
fn left_unwritten(scene: &Scene<'_>) -> (Attacker, Reply) {
    let (mut a, ino, first) = granted(scene);
    let (segment, mapped) = a.ask_for_fds(Request::Segments { first: 0 });
    assert!(matches!(segment, Reply::Segments { .. }) && !mapped.is_empty());
    a.append(steal(ino, 0, first, 1, 4096));
    let reply = a.digest();
    let mut seen = [0; 4096];
    let at = BlockAddr::from_raw(first).byte();
    let file = std::fs::File::from(mapped.into_iter().next().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, at).unwrap();
    if scene.alone {
        assert_eq!(scene.stage.content(ino).unwrap(), seen);
    }
    (a, reply)
}

/// The block of the superblock's own structures that `which` finds.
fn of_volume(scene: &Scene<'_>, which: fn(&Superblock) -> u64) -> (Attacker, Reply) {
    let block = which(scene.stage.daemon.volume().superblock());
    stolen(scene, |_, _| (block, 1))
}

/// The block in which the root directory's inode lies.
fn inode_block(scene: &Scene<'_>, _: u64) -> (u64, u32) {
    let view = scene.stage.daemon.volume().view();
    let file = view.root().unwrap().inode_file;
    let slot = shale_format::inode::slot_of(Ino::ROOT).0;
    match view.map_block(&file, slot).unwrap() {
        Mapping::Data { addr, .. } => (addr.raw(), 1),
        other => panic!("{other:?}"),
    }
}

/// A node of the root directory's entries.
fn directory_node(scene: &Scene<'_>, _: u64) -> (u64, u32) {
    let view = scene.stage.daemon.volume().view();
    let root = view.inode(Ino::ROOT).unwrap().unwrap();
    let mut found = None;
    let _ = view.nodes(&root, &mut |node, _| {
        found = Some(node.addr.raw());
        std::ops::ControlFlow::Break(())
    });
    (found.unwrap(), 1)
}

/// A user other than the daemon's writes to no block of the volume.
fn other_user(scene: &Scene<'_>) -> (Attacker, Reply) {
    let mut a = scene.attacker();
    let (reply, fds) = a.ask_for_fds(Request::GrantBlocks { blocks: 64 });
    let Reply::Blocks { runs, .. } = reply else {
        panic!("{reply:?}");
    };
    assert!(runs.is_empty() && fds.is_empty());
    let data = scene.stage.daemon.volume().superblock().data_block;
    let ino = a.make(1, &scene.name("f"), b"mine");
    a.append(steal(ino, 0, data + 2000, 1, 1));
    let reply = a.digest();
    (a, reply)
}

fn tier_of_many(scene: &Scene<'_>) -> (Attacker, Reply) {
    let a = scene.stage.same_user();
    let total = scene.stage.daemon.volume().space().total;
    let mut held = 0;
    for round in 0..50 {
        // For one call, which gets all of them or none, and ahead of use.
        let blocks = if round % 2 == 0 { 1 << 20 } else { 4096 };
        match a.ask(Request::GrantBlocks { blocks }) {
            Reply::Blocks { runs, .. } => {
                held += runs.iter().map(|r| u64::from(r.blocks)).sum::<u64>();
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(held <= total / 4 + 1, "{held} of {total}");
    let reply = a.digest();
    (a, reply)
}

/// Maps all that it can and frees it, again and again: others keep three quarters of the tier.
fn mapped_much(scene: &Scene<'_>) -> (Attacker, Reply) {
    // What fits the log.
    const ROUNDS: usize = 24;
    let mut a = scene.attacker();
    let ino = a.make(1, &scene.name("mapped"), b"");
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        let bytes = 1 << 20;
        a.ask(Request::Reserve {
            wanted: bytes,
            least: bytes,
        });
        a.append(write(ino, 0, &vec![round as u8; 512 << 10]));
        a.digest();
        for _ in 0..4 {
            let (reply, fds) = a.ask_for_fds(Request::Map {
                ino,
                first: 0,
                blocks: 128,
            });
            match reply {
                Reply::Mapped { .. } => kept.extend(fds.into_iter().next()),
                Reply::NotMapped => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let volume = scene.stage.daemon.volume();
    let (space, held) = (volume.space(), volume.held_blocks());
    assert!(held <= space.total / 4, "{held} of {}", space.total);
    assert!(
        scene
            .stage
            .content(ino)
            .unwrap()
            .iter()
            .all(|&b| b == ROUNDS as u8 - 1)
    );
    let reply = a.digest();
    drop(kept);
    (a, reply)
}

pub const CASES: &[Case] = &[
    refused(
        "block of another file",
        |s| stolen(s, of_another),
        NOT_GRANTED,
    ),
    refused(
        "superblock",
        |s| stolen(s, |_, _| (BlockAddr::nvm(0).raw(), 1)),
        "addr",
    ),
    refused("root block", |s| stolen(s, |_, _| (1, 1)), NOT_GRANTED),
    refused(
        "bitmap",
        |s| {
            stolen(s, |s, _| {
                (s.stage.daemon.volume().superblock().bitmap_block, 1)
            })
        },
        NOT_GRANTED,
    ),
    refused(
        "log table",
        |s| of_volume(s, |_| shale_format::superblock::LOG_TABLE_BLOCK),
        NOT_GRANTED,
    ),
    refused(
        "journal",
        |s| of_volume(s, |sb| sb.journal_block),
        NOT_GRANTED,
    ),
    refused(
        "second superblock",
        |s| of_volume(s, Superblock::second_block),
        NOT_GRANTED,
    ),
    refused("block of inodes", |s| stolen(s, inode_block), NOT_GRANTED),
    refused(
        "node of a directory",
        |s| stolen(s, directory_node),
        NOT_GRANTED,
    ),
    refused(
        "more than granted",
        |s| stolen(s, |_, first| (first, 1 << 20)),
        NOT_GRANTED,
    ),
    refused(
        "before the grant",
        |s| stolen(s, |_, first| (first - 1, 2)),
        NOT_GRANTED,
    ),
    refused(
        "all blocks",
        |s| stolen(s, |_, _| (1, u32::MAX)),
        NOT_GRANTED,
    ),
    refused("no block", |s| stolen(s, |_, first| (first, 0)), "blocks"),
    refused(
        "beyond the device",
        |s| stolen(s, |_, _| (1 << 50, 1)),
        NOT_GRANTED,
    ),
    refused(
        "at the end of the address",
        |s| stolen(s, |_, _| ((1 << 56) - 1, 2)),
        "no such blocks",
    ),
    refused("size 2^63", |s| stolen(s, |_, _| (1 << 63, 1)), "addr"),
    refused(
        "another tier",
        |s| stolen(s, |_, first| (BlockAddr::new(TierId::Ssd, first).raw(), 1)),
        "no such blocks",
    ),
    refused("used twice", twice, "used twice"),
    refused("used twice, later", twice_later, NOT_GRANTED),
    refused("returned before", returned, NOT_GRANTED),
    refused("granted to another client", of_another_client, NOT_GRANTED),
    refused(
        "not at a block of the file",
        |s| {
            let (mut a, ino, first) = granted(s);
            a.append(steal(ino, 100, first, 1, 1));
            let reply = a.digest();
            (a, reply)
        },
        "offset",
    ),
    refused(
        "end behind the blocks",
        |s| {
            let (mut a, ino, first) = granted(s);
            a.append(steal(ino, 0, first, 1, 4097));
            let reply = a.digest();
            (a, reply)
        },
        "end",
    ),
    harmless("old bytes behind the end", old_bytes),
    harmless("block left unwritten", left_unwritten),
    refused("of another user", other_user, NOT_GRANTED),
    harmless("grants without end", tier_of_many),
    harmless("mappings without end", mapped_much),
];
