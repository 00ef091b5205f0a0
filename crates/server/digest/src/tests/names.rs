//! Names by hand.

use super::world::{DIR, FILE, Rename, World, create_twin};
use crate::image::Image;
use crate::{Mode, OwnLog, plan, scan};
use shale_format::inode::Inode;
use shale_format::record::flag;
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino, LogPos};
use shale_oplog::encode;
use shale_volume::{Dirent, Mapping, Result, View};

#[test]
fn what_is_made_and_deleted_never_reaches_the_volume() {
    let mut w = World::new();
    let used = w.volume().space().used;
    for n in 0..100 {
        let name = format!("mail{n}");
        w.create(1, 100 + n, &name, FILE);
        w.write(100 + n, 0, &[7; 5000]);
        w.write(100 + n, 5000, &[8; 5000]);
        w.unlink(1, 100 + n, &name, flag::FREE_NOW);
    }
    let plan = w.plan().unwrap();
    assert_eq!(plan.new_blocks, 0);
    assert_eq!(plan.inodes.len(), 1, "the times of the directory");
    assert_eq!(plan.created.len(), 100);
    let done = w.digest_once();
    assert_eq!(
        done.stats.skipped, 399,
        "all but the last, which set the directory's time"
    );
    assert_eq!(done.stats.bytes_skipped, 1_000_000);
    assert_eq!(w.volume().space().used, used);
    assert_eq!(w.names(1), Default::default());
}

/// Varmail: a set of files; each turn deletes one, makes one (append, fsync), appends to
/// one, reads one. Most of what a turn logs is undone within the chunk.
#[test]
fn varmail_skips_at_least_eighty_percent() {
    let mut w = World::new();
    let mut alive: Vec<u64> = Vec::new();
    let mut seed = 1u64;
    let mut next = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    for ino in 100..3_100 {
        let name = |ino: u64| format!("m{ino}");
        w.create(1, ino, &name(ino), FILE);
        w.write(ino, 0, &[1; 700]);
        alive.push(ino);
        let grows = alive[next(alive.len())];
        w.write(grows, 700, &[2; 300]);
        if alive.len() > 50 {
            let gone = alive.swap_remove(next(alive.len()));
            w.unlink(1, gone, &name(gone), flag::FREE_NOW);
        }
    }
    let done = w.digest_once();
    let ratio = done.stats.skipped_ratio();
    assert!(ratio >= 0.8, "{ratio}: {:?}", done.stats);
    assert_eq!(w.names(1).len(), alive.len());
}

#[test]
fn names_move_in_chains_and_over_files() {
    let mut w = World::new();
    w.create(1, 100, "old", FILE);
    w.write(100, 0, b"old content");
    w.digest();
    w.create(1, 101, "a", FILE);
    w.write(101, 0, b"new content");
    w.rename(Rename::file((1, "a"), 101, (1, "b")));
    w.rename(Rename::file((1, "b"), 101, (1, "c")));
    let over = Rename::file((1, "c"), 101, (1, "old")).over(100, 8);
    w.rename(Rename {
        free_now: true,
        ..over
    });
    let used = w.volume().space().used;
    let done = w.digest_once();
    assert_eq!(done.stats.entries, 1, "only the one name changes");
    assert_eq!(w.names(1), [("old".into(), 101)].into());
    assert_eq!(w.content(101), b"new content");
    assert!(w.inode(100).is_none());
    assert_eq!(w.volume().space().used, used, "one block came, one went");
}

#[test]
fn directories_keep_count_and_parent() {
    let mut w = World::new();
    w.create(1, 100, "d", DIR);
    w.create(100, 101, "sub", DIR);
    w.create(1, 102, "e", DIR);
    w.create(1, 103, "f", FILE);
    w.digest();
    assert_eq!(
        (w.inode(1).unwrap().nlink, w.inode(100).unwrap().nlink),
        (4, 3)
    );
    w.rename(Rename::dir((100, "sub"), 101, (102, "sub")));
    w.digest();
    assert_eq!(
        (w.inode(100).unwrap().nlink, w.inode(102).unwrap().nlink),
        (2, 3)
    );
    assert_eq!(w.inode(101).unwrap().parent, 102);
    // A directory and a file change places.
    let swap = Rename::dir((102, "sub"), 101, (1, "f")).over(103, 8);
    w.rename(Rename {
        exchange: true,
        ..swap
    });
    w.digest();
    assert_eq!(w.names(102), [("sub".into(), 103)].into());
    assert_eq!(w.names(1).get("f"), Some(&101));
    assert_eq!(
        (w.inode(1).unwrap().nlink, w.inode(102).unwrap().nlink),
        (5, 2)
    );
    assert_eq!(w.inode(101).unwrap().parent, 1);
    // An empty directory is replaced and freed, in the chunk that emptied it.
    w.create(100, 110, "x", FILE);
    w.digest();
    w.unlink(100, 110, "x", flag::FREE_NOW);
    let over = Rename::dir((1, "f"), 101, (1, "d")).over(100, 4);
    w.rename(Rename {
        free_now: true,
        ..over
    });
    w.digest();
    assert!(w.inode(100).is_none() && w.inode(110).is_none());
    assert_eq!(w.names(1), [("d".into(), 101), ("e".into(), 102)].into());
    assert_eq!(w.inode(1).unwrap().nlink, 4);
}

#[test]
fn links_are_counted_and_orphans_wait_for_their_last_user() {
    let mut w = World::new();
    w.create(1, 100, "a", FILE);
    w.link(1, 100, "b");
    w.link(1, 100, "c");
    w.digest();
    assert_eq!(w.inode(100).unwrap().nlink, 3);
    w.unlink(1, 100, "a", flag::FREE_NOW);
    w.unlink(1, 100, "b", flag::FREE_NOW);
    w.unlink(1, 100, "c", 0);
    w.write(100, 0, b"still written");
    w.digest();
    assert_eq!(w.inode(100).unwrap().nlink, 0);
    assert_eq!(w.content(100), b"still written");
    assert_eq!(w.names(2), [("#100".into(), 100)].into());
    w.push(encode::free(Ino(100)));
    w.digest();
    assert!(w.inode(100).is_none());
    assert_eq!(w.names(2), Default::default());
}

#[test]
fn a_file_without_a_name_gets_one() {
    let mut w = World::new();
    w.push(encode::create(
        Ino::NONE,
        Ino(100),
        shale_format::record::CreateBody {
            mode: FILE,
            uid: 0,
            gid: 0,
            generation: 0,
            rdev: 0,
            name_bytes: 0,
            target_bytes: 0,
            twin: 0,
            reserved: [0; 11],
        },
        &[],
        &[],
    ));
    w.digest();
    assert_eq!(w.names(2).len(), 1);
    w.link(1, 100, "now");
    w.digest();
    assert_eq!((w.names(2).len(), w.names(1).len()), (0, 1));
    assert_eq!(
        (w.inode(100).unwrap().nlink, w.inode(100).unwrap().flags),
        (1, 0)
    );
}

#[test]
fn an_orphaned_directory_is_freed_later() {
    let mut w = World::new();
    w.create(1, 100, "d", DIR);
    w.create(100, 101, "f", FILE);
    w.digest();
    w.unlink(100, 101, "f", flag::FREE_NOW);
    w.unlink(1, 100, "d", flag::DIRECTORY);
    w.digest();
    assert_eq!(w.names(2), [("#100".into(), 100)].into());
    w.push(encode::free(Ino(100)));
    w.digest();
    assert!(w.inode(100).is_none());
    assert_eq!(w.names(2), Default::default());
}

#[test]
fn a_number_is_used_again_in_the_chunk_that_freed_it() {
    let mut w = World::new();
    w.create(1, 100, "a", FILE);
    w.write(100, 0, &[5; 9000]);
    w.set_xattr(100, "user.x", b"1");
    w.digest();
    w.unlink(1, 100, "a", flag::FREE_NOW);
    w.symlink(1, 100, "a", "over/there");
    w.digest();
    assert_eq!(w.content(100), b"over/there");
    let inode = w.inode(100).unwrap();
    assert!(inode.is_symlink() && inode.blocks == 1 && inode.xattr_addr == 0);
}

/// All names have one hash.
struct Colliding(View);

impl Image for Colliding {
    fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        self.0.inode(ino)
    }
    fn key_group(&self, _: &[u8]) -> DirKey {
        DirKey(640)
    }
    fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        self.0.collisions(dir, group)
    }
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        self.0.xattrs(inode)
    }
    fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        self.0.map_block(inode, fb)
    }
    fn takes_stores(&self, run: shale_volume::Run) -> bool {
        self.0.takes_stores(run)
    }
    fn has_slot(&self, ino: Ino) -> Result<bool> {
        self.0.has_slot(ino)
    }
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
}

#[test]
fn names_with_one_hash_are_distinguished() {
    let w = World::new();
    w.push(create_twin(1, 100, "a", FILE, 0));
    w.push(create_twin(1, 101, "b", FILE, 1));
    let good = w.writer.published().pos();
    w.push(create_twin(1, 102, "a", FILE, 2));
    let image = Colliding(w.view());
    let plan_to = |limit| {
        let (log, bounds) = (w.source(), scan::BatchLimits::ANY);
        let mode = crate::Mode::Live;
        let batch = scan::gather(&log, &image.0, w.at, limit, mode, &bounds);
        plan::plan(&batch.items, &image, &w.rules)
    };
    let p = plan_to(good).unwrap();
    let keys: Vec<u64> = p.inodes[0].entries.iter().map(|(k, _)| k.0).collect();
    assert_eq!(keys, [640, 641]);
    let refused = plan_to(w.writer.published().pos()).unwrap_err().to_string();
    assert!(refused.contains("the name exists already"), "{refused}");
}

#[test]
fn times_follow_the_operations() {
    let mut w = World::new();
    w.create(1, 100, "a", FILE);
    w.digest();
    let (made, dir) = (w.inode(100).unwrap(), w.inode(1).unwrap());
    w.set_mode(100, 0o6755);
    w.digest();
    let chmod = w.inode(100).unwrap();
    assert_eq!(chmod.mode, 0o106_755);
    assert!(chmod.time_ns[2] > made.time_ns[2] && chmod.time_ns[1] == made.time_ns[1]);
    w.push(encode::write(Ino(100), 0, b"x").flags(flag::KILL_SUID));
    w.digest();
    let written = w.inode(100).unwrap();
    assert_eq!(written.mode, 0o100_755, "both, since the group may execute");
    assert!(written.time_ns[1] > chmod.time_ns[1] && written.time_ns[1] == written.time_ns[2]);
    assert_eq!(written.time_ns[0], made.time_ns[0]);
    assert_eq!(
        w.inode(1).unwrap().time_ns,
        dir.time_ns,
        "the directory did not change"
    );
    w.rename(Rename::file((1, "a"), 100, (1, "b")));
    w.digest();
    assert!(w.inode(1).unwrap().time_ns[1] > dir.time_ns[1]);
    assert!(w.inode(100).unwrap().time_ns[2] > written.time_ns[2]);
}

/// What was freed before, as by a start that swept orphans, or is another inode by now, is
/// left alone: at recovery the log goes on behind the record.
#[test]
fn a_stale_free_record_does_not_end_a_recovered_log() {
    let w = World::new();
    w.create(1, 100, "named", FILE);
    w.create(1, 101, "orphan", FILE);
    w.unlink(1, 101, "orphan", 0);
    for ino in [999, 100, 101, 101] {
        w.push(encode::free(Ino(ino)));
    }
    w.create(1, 102, "behind", FILE);
    let strict = w.plan();
    assert!(strict.is_err(), "a live client has no reason to say that");
    let (log, all) = (w.source(), LogPos(u64::MAX));
    let own = OwnLog::new(Vec::new(), true);
    let done = w.digester.chunk(&log, w.at, all, &own, Mode::Recovery);
    let done = done.unwrap();
    assert!(done.refused.is_none() && done.at_end, "{done:?}");
    let names: Vec<String> = w.names(1).into_keys().collect();
    assert_eq!(names, ["behind", "named"]);
    assert!(w.inode(100).is_some() && w.inode(101).is_none());
}
