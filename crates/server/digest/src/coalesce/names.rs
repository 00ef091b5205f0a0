//! Records that change names: create, link, unlink, rename, free. Each is checked
//! against the tree as the records before left it, then takes effect on the net.

use super::{At, Coalesced, Entry, Step, bad, need};
use crate::access_policy::Operation;
use crate::content::BLOCK;
use shale_format::dirent::{check_name, kind_of_mode};
use shale_format::inode::{self, Inode, target_checksum, time};
use shale_format::limits::{DEPTH_MAX, LINKS_MAX, SYMLINK_BYTES_MAX};
use shale_format::record::{CreateBody, RenameBody, flag};
use shale_format::{DirKey, Ino};
use shale_sys::mutants;

/// `RENAME_EXCHANGE`.
const EXCHANGE: u32 = 2;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

fn legal(name: &[u8]) -> Step<()> {
    need(
        check_name(name).is_ok(),
        "no directory entry may have this name",
    )
}

/// An inode as a `Create` record describes it.
fn made(ino: Ino, body: &CreateBody, parent: Ino, at: &At, above: u32) -> Inode {
    let mut i = Inode::free();
    let dir = body.mode & S_IFMT == S_IFDIR;
    i.ino = ino.0;
    i.mode = body.mode;
    i.uid = body.uid;
    i.gid = body.gid;
    i.generation = body.generation;
    i.rdev = body.rdev;
    i.nlink = match (parent, dir) {
        (Ino::NONE, _) => 0,
        (_, true) => 2,
        (_, false) => 1,
    };
    if parent == Ino::NONE {
        i.flags = inode::flag::ORPHAN;
    }
    i.flags |= inode::inherited(above, body.mode);
    if dir {
        i.parent = parent.0;
    }
    for which in [time::ACCESS, time::MODIFY, time::CHANGE, time::BIRTH] {
        i.set_time_ns(which, at.header.time_ns);
    }
    i
}

/// Gives a symbolic link its target; what has none is no link.
fn leads_to(inode: &mut Inode, target: &[u8]) {
    inode.size = target.len() as u64;
    if !target.is_empty() {
        inode.target_checksum = target_checksum(Ino(inode.ino), target);
    }
}

/// Both ends of a rename.
struct Move<'r> {
    from: Ino,
    to: Ino,
    old: &'r [u8],
    new: &'r [u8],
    body: &'r RenameBody,
}

impl Coalesced<'_> {
    /// `Create`: an inode and its first name; no directory and no name: `O_TMPFILE`.
    pub(crate) fn create(
        &mut self,
        at: &At,
        body: &CreateBody,
        name: &[u8],
        target: &[u8],
    ) -> Step<()> {
        let (dir, ino) = (Ino(at.header.ino), Ino(at.header.offset));
        need(
            ino.is_user() && ino != Ino::ROOT,
            "an inode number that no user may name",
        )?;
        need(self.slot(ino)?.now.is_none(), "the inode number is in use")?;
        need(
            self.policy.granted_inode(ino),
            "the inode number was not granted",
        )?;
        let link = body.mode & S_IFMT == S_IFLNK;
        need(
            body.mode & !(S_IFMT | 0o7777) == 0
                && matches!(kind_of_mode(body.mode), 1 | 2 | 4 | 6 | 8 | 10 | 12),
            "no inode has this mode",
        )?;
        need(
            link != target.is_empty() && target.len() <= SYMLINK_BYTES_MAX,
            "a link target of this length does not go with the type",
        )?;
        let mut inode = made(ino, body, dir, at, self.flags_of(dir)?);
        leads_to(&mut inode, target);
        if dir == Ino::NONE {
            need(
                name.is_empty() && body.mode & S_IFMT == S_IFREG,
                "only a regular file can begin without a name",
            )?;
            self.may(at, &inode, Operation::Make { parent: None })?;
            return self.make(inode, at.index);
        }
        legal(name)?;
        let parent = self.live_dir(dir)?;
        let make = Operation::Make {
            parent: Some(&parent),
        };
        self.may(at, &inode, make)?;
        self.may(
            at,
            &parent,
            Operation::AddEntry {
                child: &inode,
                fresh: true,
            },
        )?;
        let key = self.vacant(dir, name, body.twin)?;
        self.make(inode, at.index)?;
        if link {
            let content = &mut self.slot(ino)?.content;
            content.target(target.len() as u64, at.index);
        }
        let kind = kind_of_mode(body.mode);
        self.add(
            at,
            dir,
            key,
            Entry {
                ino,
                kind,
                name: name.into(),
            },
        );
        Ok(())
    }

    /// The flags of a directory; what has no name is in none.
    fn flags_of(&mut self, dir: Ino) -> Step<u32> {
        match dir {
            Ino::NONE => Ok(0),
            dir => Ok(self.inode(dir)?.flags),
        }
    }

    /// Puts an entry into a directory: count of subdirectories, times.
    fn add(&mut self, at: &At, dir: Ino, key: DirKey, entry: Entry) {
        let is_dir = entry.kind == kind_of_mode(S_IFDIR);
        self.set_entry(dir, key, Some(entry), at.index);
        if is_dir {
            self.now(dir).0.nlink += 1;
            self.now(dir).1.links = at.index;
        }
        self.modified(dir, at);
    }

    /// Takes an entry out of a directory: count of subdirectories, times.
    fn take(&mut self, at: &At, dir: Ino, key: DirKey, was_dir: bool) -> Step<()> {
        self.set_entry(dir, key, None, at.index);
        if was_dir {
            let (now, marks) = self.now(dir);
            need(now.nlink > 2, "the directory has no subdirectory to lose")?;
            now.nlink -= 1;
            marks.links = at.index;
        }
        self.modified(dir, at);
        Ok(())
    }

    /// `Link`: one more name of a file.
    pub(crate) fn link(&mut self, at: &At, kind: u8, twin: u8, name: &[u8]) -> Step<()> {
        let (dir, ino) = (Ino(at.header.ino), Ino(at.header.offset));
        legal(name)?;
        let child = self.inode(ino)?;
        need(!child.is_dir(), "a hard link to a directory")?;
        need(kind == kind_of_mode(child.mode), "the type is another one")?;
        need(child.nlink < LINKS_MAX, "too many names")?;
        let parent = self.live_dir(dir)?;
        self.may(
            at,
            &parent,
            Operation::AddEntry {
                child: &child,
                fresh: false,
            },
        )?;
        self.may(at, &child, Operation::Name { moves: false })?;
        let key = self.vacant(dir, name, twin)?;
        let (now, marks) = self.now(ino);
        now.nlink += 1;
        now.flags &= !inode::flag::ORPHAN;
        marks.links = at.index;
        self.changed(ino, at);
        self.add(
            at,
            dir,
            key,
            Entry {
                ino,
                kind,
                name: name.into(),
            },
        );
        Ok(())
    }

    /// `Unlink`: one name less; of a directory: it must be empty.
    pub(crate) fn unlink(&mut self, at: &At, kind: u8, twin: u8, name: &[u8]) -> Step<()> {
        let (dir, ino) = (Ino(at.header.ino), Ino(at.header.offset));
        let parent = self.live_dir(dir)?;
        let (key, entry) = self.existing(dir, name, twin)?;
        need(entry.ino == ino, "the name stands for another inode")?;
        let child = self.inode(ino)?;
        need(
            child.is_dir() == at.has(flag::DIRECTORY) && kind == entry.kind,
            "the type is another one",
        )?;
        self.may(at, &parent, Operation::RemoveEntry { child: &child })?;
        self.may(at, &child, Operation::Name { moves: false })?;
        self.take(at, dir, key, child.is_dir())?;
        self.lose_name(at, ino)
    }

    /// One name of an inode is gone. With the last one it becomes an orphan or is freed.
    fn lose_name(&mut self, at: &At, ino: Ino) -> Step<()> {
        let child = self.inode(ino)?;
        let names = if child.is_dir() {
            need(child.size == 0, "the directory is not empty")?;
            need(child.nlink == 2, "the directory has subdirectories")?;
            0
        } else {
            need(child.nlink > 0, "the inode has no name to lose")?;
            child.nlink - 1
        };
        let free_now = at.has(flag::FREE_NOW) || mutants::is_on("orphan-freed");
        if names == 0 && free_now && self.policy.unused_by_others(ino) {
            self.free(ino, at.index);
            return Ok(());
        }
        let (now, marks) = self.now(ino);
        if names == 0 || !mutants::is_on("links-kept") {
            now.nlink = names;
        }
        marks.links = at.index;
        if names == 0 {
            now.flags |= inode::flag::ORPHAN;
        }
        self.changed(ino, at);
        Ok(())
    }

    /// `Free`: the last user of an inode without names has gone.
    pub(crate) fn release(&mut self, at: &At) -> Step<()> {
        let ino = Ino(at.header.ino);
        let orphan = |i: &Inode| i.flags & inode::flag::ORPHAN != 0;
        if self.policy.passes_over_stale_free()
            && ino.is_user()
            && !self.slot(ino)?.now.as_ref().is_some_and(orphan)
        {
            return Ok(());
        }
        let inode = self.inode(ino)?;
        need(
            inode.nlink == 0 && inode.flags & inode::flag::ORPHAN != 0,
            "the inode still has a name",
        )?;
        self.may(at, &inode, Operation::Free)?;
        if self.policy.unused_by_others(ino) {
            self.free(ino, at.index);
        }
        Ok(())
    }

    /// `Rename`.
    pub(crate) fn rename(
        &mut self,
        at: &At,
        body: &RenameBody,
        old: &[u8],
        new: &[u8],
    ) -> Step<()> {
        let (from, to) = (Ino(at.header.ino), Ino(body.new_parent));
        legal(new)?;
        need(
            body.flags & !EXCHANGE == 0,
            "a kind of rename that does not exist",
        )?;
        let source = self.live_dir(from)?;
        let target = self.live_dir(to)?;
        let (key, entry) = self.existing(from, old, body.old_twin)?;
        need(
            entry.ino == Ino(at.header.offset) && entry.kind == body.kind,
            "the old name stands for another inode",
        )?;
        let child = self.inode(entry.ino)?;
        need(
            child.is_dir() == at.has(flag::DIRECTORY),
            "the type is another one",
        )?;
        self.may(at, &source, Operation::RemoveEntry { child: &child })?;
        self.may(
            at,
            &target,
            Operation::AddEntry {
                child: &child,
                fresh: false,
            },
        )?;
        let moves = child.is_dir() && from != to;
        self.may(at, &child, Operation::Name { moves })?;
        if moves {
            self.not_below(to, entry.ino)?;
        }
        let ends = Move {
            from,
            to,
            old,
            new,
            body,
        };
        if body.flags & EXCHANGE != 0 {
            self.exchange(at, &ends, key, entry)
        } else {
            self.replace(at, &ends, key, entry)
        }
    }

    /// What has the new name goes, and the moving inode takes its place.
    fn replace(&mut self, at: &At, ends: &Move<'_>, key: DirKey, entry: Entry) -> Step<()> {
        let Move { from, to, body, .. } = *ends;
        let is_dir = entry.kind == kind_of_mode(S_IFDIR);
        let ino = entry.ino;
        let new_key = if body.replaced == 0 {
            self.take(at, from, key, is_dir)?;
            self.vacant(to, ends.new, body.new_twin)?
        } else {
            let (new_key, gone) = self.existing(to, ends.new, body.new_twin)?;
            need(
                gone.ino == Ino(body.replaced) && gone.kind == body.replaced_kind,
                "the new name stands for another inode",
            )?;
            need(gone.ino != ino, "both names stand for one inode")?;
            let (parent, child) = (self.inode(to)?, self.inode(gone.ino)?);
            need(
                child.is_dir() == is_dir,
                "a directory and a file cannot replace one another",
            )?;
            self.may(at, &parent, Operation::RemoveEntry { child: &child })?;
            self.may(at, &child, Operation::Name { moves: false })?;
            self.take(at, from, key, is_dir)?;
            self.take(at, to, new_key, is_dir)?;
            self.lose_name(at, gone.ino)?;
            new_key
        };
        let name = ends.new.into();
        self.add(at, to, new_key, Entry { name, ..entry });
        self.arrived(at, ino, to, is_dir);
        Ok(())
    }

    /// The two names change inodes.
    fn exchange(&mut self, at: &At, ends: &Move<'_>, key: DirKey, entry: Entry) -> Step<()> {
        let Move { from, to, body, .. } = *ends;
        let (other_key, other) = self.existing(to, ends.new, body.new_twin)?;
        need(
            other.ino == Ino(body.replaced) && other.kind == body.replaced_kind,
            "the new name stands for another inode",
        )?;
        need(other.ino != entry.ino, "both names stand for one inode")?;
        let (source, target) = (self.inode(from)?, self.inode(to)?);
        let child = self.inode(other.ino)?;
        self.may(at, &target, Operation::RemoveEntry { child: &child })?;
        self.may(
            at,
            &source,
            Operation::AddEntry {
                child: &child,
                fresh: false,
            },
        )?;
        let dir_kind = kind_of_mode(S_IFDIR);
        let moves = other.kind == dir_kind && from != to;
        self.may(at, &child, Operation::Name { moves })?;
        if moves {
            self.not_below(from, other.ino)?;
        }
        self.take(at, from, key, entry.kind == dir_kind)?;
        self.take(at, to, other_key, other.kind == dir_kind)?;
        let (old, new) = (ends.old.into(), ends.new.into());
        let (a, b) = (entry.ino, other.ino);
        let (a_dir, b_dir) = (entry.kind == dir_kind, other.kind == dir_kind);
        self.add(at, from, key, Entry { name: old, ..other });
        self.add(at, to, other_key, Entry { name: new, ..entry });
        self.arrived(at, a, to, a_dir);
        self.arrived(at, b, from, b_dir);
        Ok(())
    }

    /// An inode has come to `dir` by a rename.
    fn arrived(&mut self, at: &At, ino: Ino, dir: Ino, is_dir: bool) {
        let (now, marks) = self.now(ino);
        if is_dir && now.parent != dir.0 && !mutants::is_on("rename-parent") {
            now.parent = dir.0;
            marks.parent = at.index;
        }
        self.changed(ino, at);
    }

    /// Checks that directory `dir` is not `top` and not below it.
    fn not_below(&mut self, dir: Ino, top: Ino) -> Step<()> {
        let mut dir = dir;
        for _ in 0..DEPTH_MAX {
            let below = dir == top && !mutants::is_on("ring-unchecked");
            need(!below, "a directory cannot move below itself")?;
            if dir == Ino::ROOT {
                return Ok(());
            }
            self.steps += 1;
            dir = Ino(self.inode(dir)?.parent);
        }
        bad("the directory lies too deep to be checked")
    }
}

const _: () = assert!(
    SYMLINK_BYTES_MAX as u64 <= BLOCK,
    "a link target fills one block"
);
