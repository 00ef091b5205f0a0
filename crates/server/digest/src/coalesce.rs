//! The net effect of a run of records: per inode what it is afterwards, where its
//! bytes come from, which of its entries change.
//!
//! Records are taken in order. Each sees the volume as the records before left it
//! (`Coalesced` over [`Image`]), is checked against that, then changes it. What records undo
//! never shows: an inode made and freed leaves a tombstone, a slot that is as it was is
//! no change, overwritten bytes have no piece. Nothing here writes.
//!
//! Who made what is kept as the index of the record ("by"), so that a record of which
//! nothing is left can be distinguished from one that counts.

mod files;
mod names;

pub(crate) use files::shifts;

use super::access_policy::{AccessPolicy, Change, Operation};
use super::content::Content;
use super::image::Image;
use super::ranges::Ranges;
use shale_format::acl::{Acl, AclError, AclKind};
use shale_format::inode::{self, Inode};
use shale_format::record::{RecordHeader, flag};
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, Ino};
use shale_sys::mutants;
use shale_volume::VolumeError;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

/// No record.
pub const NOBODY: u32 = u32::MAX;

/// Why the run stops at a record.
#[derive(Debug)]
pub enum Stop {
    /// The record must not be digested.
    Bad(Cow<'static, str>),
    /// The volume could not be read.
    Volume(VolumeError),
}

impl From<VolumeError> for Stop {
    fn from(e: VolumeError) -> Self {
        Stop::Volume(e)
    }
}

pub(crate) type Step<T> = Result<T, Stop>;

/// Stops at a record that must not be digested.
pub(crate) fn bad<T>(why: &'static str) -> Step<T> {
    Err(Stop::Bad(why.into()))
}

/// Checks a condition of a record.
pub(crate) fn need(holds: bool, why: &'static str) -> Step<()> {
    if holds { Ok(()) } else { bad(why) }
}

/// The record at work.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Its index in the chunk.
    pub index: u32,
    /// Its header.
    pub header: RecordHeader,
}

impl At {
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.header.flags & bit != 0
    }
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its type, as in `d_type`.
    pub kind: u8,
    /// The name.
    pub name: Box<[u8]>,
}

/// One key of a directory: before the run and after it.
#[derive(Clone, Debug)]
pub struct Slot {
    /// In the volume.
    pub base: Option<Entry>,
    /// After the records so far.
    pub now: Option<Entry>,
    /// The record that changed it last.
    pub by: u32,
}

/// The net effect on the entries of one directory.
#[derive(Clone, Debug, Default)]
pub struct DirDelta {
    /// Keys that were looked at.
    pub slots: BTreeMap<DirKey, Slot>,
    groups: HashSet<DirKey>,
}

/// Which record set a property of an inode last.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// The record that made it.
    pub create: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size.
    pub size: u32,
    /// Access, modify and change time.
    pub time: [u32; 3],
    /// Count of names.
    pub links: u32,
    /// Flags that users change.
    pub flags: u32,
    /// The directory it is in.
    pub parent: u32,
    /// The record that freed what had the number in the volume.
    pub freed: u32,
}

impl Marks {
    const NONE: Marks = Marks {
        create: NOBODY,
        mode: NOBODY,
        uid: NOBODY,
        gid: NOBODY,
        size: NOBODY,
        time: [NOBODY; 3],
        links: NOBODY,
        flags: NOBODY,
        parent: NOBODY,
        freed: NOBODY,
    };

    /// All of them.
    pub fn all(&self) -> [u32; 12] {
        let [a, m, c] = self.time;
        [
            self.create,
            self.mode,
            self.uid,
            self.gid,
            self.size,
            a,
            m,
            c,
            self.links,
            self.flags,
            self.parent,
            self.freed,
        ]
    }
}

/// The net effect on the extended attributes of one inode.
#[derive(Clone, Debug)]
pub struct XattrDelta {
    /// All attributes afterwards.
    pub now: Xattrs,
    /// The record that changed each name last.
    pub by: BTreeMap<Vec<u8>, u32>,
}

/// The net effect on one inode number.
#[derive(Clone, Debug)]
pub struct InodeDelta {
    /// In the volume.
    pub base: Option<Inode>,
    /// After the records so far: attributes, size and count of names are right, roots
    /// are not. `None`: free.
    pub now: Option<Inode>,
    /// `now` was made by this run; `base`, if there is one, is another inode that had
    /// the number before and goes.
    pub fresh: bool,
    /// Content of a file, target of a symbolic link.
    pub content: Content,
    /// Entries of a directory.
    pub dir: DirDelta,
    /// Entries of the directory `base`, when `now` is another inode.
    pub base_dir: DirDelta,
    /// Extended attributes, if one changed.
    pub xattrs: Option<XattrDelta>,
    /// Who set what.
    pub marks: Marks,
}

impl InodeDelta {
    /// The inode in the volume whose content `now` goes on with.
    pub fn continued(&self) -> Option<&Inode> {
        self.base.as_ref().filter(|_| !self.fresh)
    }

    /// Nothing of it is left, and nothing was there before.
    pub fn vanished(&self) -> bool {
        self.base.is_none() && self.now.is_none()
    }
}

/// The net effect of a run of records.
pub struct Coalesced<'a> {
    pub(crate) image: &'a dyn Image,
    pub(crate) policy: &'a dyn AccessPolicy,
    /// By number, also those that were only looked at.
    pub inodes: BTreeMap<Ino, InodeDelta>,
    /// Stolen blocks by raw address, with the record that named them.
    pub stolen: Ranges<u32>,
    /// Granted numbers that were used, also for inodes that are gone again.
    pub created: Vec<Ino>,
    /// Directories looked at on the way up from others.
    pub(crate) steps: u64,
    /// Access control lists in the volume that were asked for.
    acls: RefCell<HashMap<Ino, Option<Acl>>>,
}

impl<'a> Coalesced<'a> {
    /// Nothing yet.
    pub fn new(image: &'a dyn Image, policy: &'a dyn AccessPolicy) -> Self {
        Self {
            image,
            policy,
            inodes: BTreeMap::new(),
            stolen: Ranges::default(),
            created: Vec::new(),
            steps: 0,
            acls: RefCell::default(),
        }
    }

    /// What is known of a number.
    pub(crate) fn slot(&mut self, ino: Ino) -> Step<&mut InodeDelta> {
        use std::collections::btree_map::Entry::{Occupied, Vacant};
        match self.inodes.entry(ino) {
            Occupied(o) => Ok(o.into_mut()),
            Vacant(v) => {
                let base = self.image.inode(ino)?;
                Ok(v.insert(InodeDelta {
                    base,
                    now: base,
                    fresh: false,
                    content: Content::default(),
                    dir: DirDelta::default(),
                    base_dir: DirDelta::default(),
                    xattrs: None,
                    marks: Marks::NONE,
                }))
            }
        }
    }

    /// An inode that exists and that users may name, as it is now.
    pub(crate) fn inode(&mut self, ino: Ino) -> Step<Inode> {
        need(ino.is_user(), "an inode number that no user may name")?;
        match self.slot(ino)?.now {
            Some(i) => Ok(i),
            None => bad("the inode does not exist"),
        }
    }

    /// A directory that can get and lose entries.
    pub(crate) fn live_dir(&mut self, dir: Ino) -> Step<Inode> {
        let i = self.inode(dir)?;
        need(i.is_dir(), "not a directory")?;
        need(i.nlink > 0, "the directory is removed")?;
        Ok(i)
    }

    /// The inode, to be changed; only after [`Self::inode`] gave it.
    pub(crate) fn now(&mut self, ino: Ino) -> (&mut Inode, &mut Marks) {
        let net = self.inodes.get_mut(&ino);
        let net = net.expect("only inodes that were looked at are changed");
        let now = net.now.as_mut();
        (
            now.expect("only inodes that exist are changed"),
            &mut net.marks,
        )
    }

    /// Asks lease and permission.
    pub(crate) fn may(&self, at: &At, inode: &Inode, operation: Operation<'_>) -> Step<()> {
        let acl = match self.policy.asks_acl(inode) && !mutants::is_on("acl-unchecked") {
            true => self.acl(inode)?,
            false => None,
        };
        let change = Change {
            operation,
            inode,
            acl: acl.as_ref(),
            lease: at.header.lease,
        };
        self.policy
            .may_change(&change)
            .map_err(|why| Stop::Bad(why.into()))
    }

    /// The access control list of an inode, as the records before have left it. One in the volume is read once.
    fn acl(&self, inode: &Inode) -> Step<Option<Acl>> {
        let no_list = |e: AclError| Stop::Bad(e.to_string().into());
        let Some(net) = self.inodes.get(&Ino(inode.ino)) else {
            return Ok(None);
        };
        if let Some(xattrs) = &net.xattrs {
            return Acl::among(&xattrs.now, AclKind::Access).map_err(no_list);
        }
        let Some(base) = net.continued().filter(|b| b.xattr_addr != 0) else {
            return Ok(None);
        };
        if let Some(known) = self.acls.borrow().get(&Ino(inode.ino)) {
            return Ok(known.clone());
        }
        let attrs = self.image.xattrs(base)?;
        let acl = Acl::among(&attrs, AclKind::Access).map_err(no_list)?;
        self.acls.borrow_mut().insert(Ino(inode.ino), acl.clone());
        Ok(acl)
    }

    /// Sets times (indexes of [`inode::time`]) to the record's.
    pub(crate) fn touch(&mut self, ino: Ino, at: &At, which: &[usize]) {
        let (now, marks) = self.now(ino);
        for &w in which {
            now.set_time_ns(w, at.header.time_ns);
            if let Some(mark) = marks.time.get_mut(w) {
                *mark = at.index;
            }
        }
    }

    /// Sets modify and change time.
    pub(crate) fn modified(&mut self, ino: Ino, at: &At) {
        self.touch(ino, at, &[inode::time::MODIFY, inode::time::CHANGE]);
    }

    /// Sets the change time.
    pub(crate) fn changed(&mut self, ino: Ino, at: &At) {
        self.touch(ino, at, &[inode::time::CHANGE]);
    }

    /// Takes set-user-id, and set-group-id of what the group may execute, if the
    /// record says so. From a client that must not keep them, set-group-id goes also if it is not in
    /// the group.
    pub(crate) fn kill_set_id(&mut self, ino: Ino, at: &At) {
        let keeps = self.policy.keeps_set_id();
        if at.has(flag::KILL_SUID) || !keeps {
            let policy = self.policy;
            let (now, marks) = self.now(ino);
            let group = now.mode & 0o010 != 0 || !keeps && !policy.is_in_group(now.gid);
            let gone = 0o4000 | if group { 0o2000 } else { 0 };
            if now.mode & gone != 0 {
                now.mode &= !gone;
                marks.mode = at.index;
            }
        }
    }

    /// The slot of `name` with number `twin`, with all of its group known.
    pub(crate) fn entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        twin: u8,
    ) -> Step<(DirKey, &mut DirDelta)> {
        need(
            u64::from(twin) < DirKey::COLLISIONS,
            "the number among equal hashes is above 63",
        )?;
        let group = self.image.key_group(name);
        let image = self.image;
        let net = self.slot(dir)?;
        if net.dir.groups.insert(group)
            && let Some(base) = net.continued()
        {
            for e in image.collisions(base, group)? {
                let entry = Entry {
                    ino: e.ino,
                    kind: e.kind,
                    name: e.name.into(),
                };
                net.dir.slots.insert(
                    e.key,
                    Slot {
                        base: Some(entry.clone()),
                        now: Some(entry),
                        by: NOBODY,
                    },
                );
            }
        }
        Ok((group.with_twin(twin), &mut net.dir))
    }

    /// The entry `name` with number `twin`. Error: there is none.
    pub(crate) fn existing(&mut self, dir: Ino, name: &[u8], twin: u8) -> Step<(DirKey, Entry)> {
        let (key, net) = self.entry(dir, name, twin)?;
        match net.slots.get(&key).and_then(|s| s.now.as_ref()) {
            Some(e) if *e.name == *name => Ok((key, e.clone())),
            _ => bad("the directory has no such entry"),
        }
    }

    /// The key for a new `name`. Error: the name exists or the key is taken.
    pub(crate) fn vacant(&mut self, dir: Ino, name: &[u8], twin: u8) -> Step<DirKey> {
        let (key, net) = self.entry(dir, name, twin)?;
        let group = key.group_start();
        let group = group..=group.with_twin((DirKey::COLLISIONS - 1) as u8);
        for (k, slot) in net.slots.range(group) {
            if let Some(e) = &slot.now {
                need(*e.name != *name, "the name exists already")?;
                need(*k != key, "another name has this key")?;
            }
        }
        Ok(key)
    }

    /// Sets or clears a slot whose group is known, and keeps the count of entries.
    pub(crate) fn set_entry(&mut self, dir: Ino, key: DirKey, to: Option<Entry>, by: u32) {
        let net = self.inodes.get_mut(&dir);
        let net = net.expect("the group was looked at");
        let slot = net.dir.slots.entry(key).or_insert(Slot {
            base: None,
            now: None,
            by,
        });
        let (before, after) = (slot.now.is_some(), to.is_some());
        slot.now = to;
        slot.by = by;
        if let Some(now) = net.now.as_mut() {
            now.size = now.size + u64::from(after) - u64::from(before);
        }
    }

    /// Frees an inode: nothing of it reaches the volume any more.
    pub(crate) fn free(&mut self, ino: Ino, by: u32) {
        let net = self.inodes.get_mut(&ino);
        let net = net.expect("only inodes that were looked at are freed");
        if !net.fresh {
            net.base_dir = std::mem::take(&mut net.dir);
        }
        net.now = None;
        net.dir = DirDelta::default();
        net.content = Content::default();
        net.xattrs = None;
        let freed = match (net.base.is_some(), net.marks.freed) {
            (true, NOBODY) => by,
            (_, before) => before,
        };
        net.marks = Marks {
            freed,
            ..Marks::NONE
        };
    }

    /// Puts a new inode at a number that is free now.
    pub(crate) fn make(&mut self, inode: Inode, by: u32) -> Step<()> {
        let ino = Ino(inode.ino);
        let net = self.slot(ino)?;
        net.now = Some(inode);
        net.fresh = true;
        net.marks.create = by;
        self.created.push(ino);
        Ok(())
    }
}
