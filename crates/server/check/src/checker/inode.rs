//! Inodes: their fields, and all that they refer to.

use super::Checker;
use crate::acl::{self, Wrong};
use crate::block_refs::{Claimed, Owner, Part};
use crate::inode::{extents, kind};
use crate::report::{Object, Severity};
use shale_format::dirent::kind_of_mode;
use shale_format::inode::{Inode, flag};
use shale_format::limits::{
    BLOCK_BYTES, FILE_BYTES_MAX, LINKS_MAX, SYMLINK_BYTES_MAX, XATTR_TOTAL_BYTES_MAX,
};
use shale_format::xattr::{self, XattrHeader, Xattrs};
use shale_format::{BlockAddr, Ino, TierId};
use shale_volume::{VolumeError, check_target};

const NS_PER_S: u32 = 1_000_000_000;

impl Checker<'_> {
    /// Checks an inode in use and all that it refers to.
    pub(super) fn check_inode(&mut self, inode: &Inode) {
        let object = Object::Inode(inode.ino);
        self.check_fields(inode);
        self.check_xattrs(inode);
        if inode.is_dir() {
            self.check_dir(inode);
            return;
        }
        let mapped = extents(
            &self.media,
            &mut self.claims,
            &mut self.findings,
            (inode, self.root.txid, self.sb.has_extents_below()),
            &mut |_| (),
        );
        self.totals.extents += mapped.extents;
        self.totals.nodes += mapped.nodes;
        if !self.findings.quiet {
            let counts = self.extent_leaves_below.iter_mut().zip(mapped.below);
            counts.for_each(|(count, n)| *count += n);
        }
        self.extents_missing |= mapped.broken;
        let f = &mut self.findings;
        if !mapped.broken {
            f.equal(object, "count of blocks", mapped.blocks, inode.blocks);
        }
        if !inode.has_content() && mapped.extents > 0 {
            f.error(
                object,
                None,
                "blocks of an inode that has no content",
                (0, mapped.blocks),
            );
        }
        match mapped.first {
            _ if !inode.is_symlink() => {}
            Some(addr) => self.check_target(inode, addr),
            None if mapped.broken => {}
            None => f.error(object, None, "symbolic link without its target", ("", "")),
        }
    }

    /// The target of a symbolic link, in NVM: one below has the checksum of its block, which `scrub` verifies.
    fn check_target(&mut self, inode: &Inode, addr: BlockAddr) {
        let mut block = [0; BLOCK_BYTES];
        let in_nvm = addr.tier() == Some(TierId::Nvm);
        let target = block.get_mut(..inode.size as usize);
        let Some(target) = target.filter(|_| in_nvm && !self.findings.quiet) else {
            return;
        };
        if !self.media.load_run(addr.index(), target) {
            return;
        }
        if let Err(VolumeError::Format(e)) = check_target(inode, target) {
            let object = Object::Inode(inode.ino);
            self.findings.undecodable(object, Some(addr.index()), &e);
        }
    }

    fn check_fields(&mut self, inode: &Inode) {
        let (f, object) = (&mut self.findings, Object::Inode(inode.ino));
        if !kind::ALL.contains(&kind_of_mode(inode.mode)) || inode.mode > 0o177_777 {
            f.error(
                object,
                None,
                "type of an inode",
                ("", format!("mode {:o}", inode.mode)),
            );
        }
        if (inode.ino == Ino::ROOT.0 || inode.ino == Ino::ORPHANS.0) && !inode.is_dir() {
            let found = format!("mode {:o}", inode.mode);
            f.error(object, None, "type of an inode", ("a directory", found));
        }
        if inode.time_ns.iter().any(|&ns| ns >= NS_PER_S) {
            let found = format!("{:?}", inode.time_ns);
            f.error(
                object,
                None,
                "nanoseconds of a time",
                ("0 to 999999999", found),
            );
        }
        if inode.txid > self.root.txid {
            let what = "inode of a batch that never was";
            f.error(
                object,
                None,
                what,
                (format!("{} or less", self.root.txid), inode.txid),
            );
        }
        if inode.flags & !flag::ALL != 0 {
            f.error(
                object,
                None,
                "unknown flags of an inode",
                ("0 to 511", inode.flags),
            );
        }
        let strange = inode.flags & flag::CHANGEABLE & !self.sb.inode_flags();
        if strange != 0 {
            let what = "inode with flags in a volume that has none";
            f.error(object, None, what, (0, strange));
        }
        let sizes = match kind_of_mode(inode.mode) {
            kind::FILE => 0..=FILE_BYTES_MAX,
            kind::SYMLINK => 1..=SYMLINK_BYTES_MAX as u64,
            kind::DIRECTORY => 0..=u64::MAX,
            _ => 0..=0,
        };
        if !sizes.contains(&inode.size) {
            let range = format!("{} to {}", sizes.start(), sizes.end());
            f.error(object, None, "size of an inode", (range, inode.size));
        }
        if !inode.is_dir() && inode.nlink > LINKS_MAX {
            let what = "more names than an inode can have";
            f.note(
                Severity::Warning,
                object,
                None,
                what,
                (LINKS_MAX, inode.nlink),
            );
        }
        if !inode.is_dir() {
            f.equal(object, "parent of what is no directory", 0, inode.parent);
        }
    }

    fn check_xattrs(&mut self, inode: &Inode) {
        let object = Object::Inode(inode.ino);
        let bytes = inode.xattr_length();
        let addr = BlockAddr::from_raw(inode.xattr_addr);
        if (bytes == 0) != addr.is_none() {
            let what = "extended attributes with a place and no bytes, or bytes and no place";
            self.findings.error(
                object,
                None,
                what,
                ("", format!("{bytes} bytes at {addr:?}")),
            );
            return;
        }
        if bytes == 0 {
            return;
        }
        if bytes > XATTR_TOTAL_BYTES_MAX + XattrHeader::BYTES {
            let what = "bytes of extended attributes";
            self.findings
                .error(object, None, what, (XATTR_TOTAL_BYTES_MAX, bytes));
            return;
        }
        let (places, part_bytes) = match inode.xattr_scattered() {
            false => (vec![addr], bytes),
            true => {
                let blocks = bytes.div_ceil(BLOCK_BYTES);
                let listed = self.listed_xattrs(inode, addr, blocks);
                (listed.unwrap_or_default(), BLOCK_BYTES)
            }
        };
        let mut buffer = vec![0; bytes];
        let mut whole = !places.is_empty();
        for (&place, part) in places.iter().zip(buffer.chunks_mut(part_bytes)) {
            whole &= self.claim_xattrs(inode, place, part);
        }
        if !whole || self.findings.quiet {
            return;
        }
        match xattr::decode(&buffer, Ino(inode.ino), places[0]) {
            Err(e) => {
                let at = Some(places[0].index());
                self.findings.undecodable(object, at, &e);
            }
            Ok(attrs) => {
                let what = "bytes of extended attributes";
                let found = xattr::encoded_bytes(&attrs);
                self.findings.equal(object, what, bytes, found);
                self.check_acls(inode, &attrs);
            }
        }
    }

    fn check_acls(&mut self, inode: &Inode, attrs: &Xattrs) {
        let (f, object) = (&mut self.findings, Object::Inode(inode.ino));
        match acl::check(&self.sb, inode, attrs) {
            Ok(()) => {}
            Err(Wrong::List(why)) => f.error(object, None, "access control list", ("", why)),
            Err(Wrong::Mode { expected, found }) => {
                let what = "mode beside an access control list";
                let modes = (format!("{expected:o}"), format!("{found:o}"));
                f.error(object, None, what, modes);
            }
        }
    }

    /// The blocks that the list at `addr` names.
    fn listed_xattrs(
        &mut self,
        inode: &Inode,
        addr: BlockAddr,
        blocks: usize,
    ) -> Option<Vec<BlockAddr>> {
        let object = Object::Inode(inode.ino);
        let mut block = [0; BLOCK_BYTES];
        if !self.claim_xattrs(inode, addr, &mut block) {
            return None;
        }
        match xattr::decode_list(&block, Ino(inode.ino), addr) {
            Ok(places) if places.len() == blocks => Some(places),
            Ok(places) => {
                let what = "blocks in a list of extended attributes";
                self.findings.equal(object, what, blocks, places.len());
                None
            }
            Err(e) => {
                self.findings.undecodable(object, Some(addr.index()), &e);
                None
            }
        }
    }

    /// Claims a run of blocks of extended attributes and reads what of it counts; `false`:
    /// there is nothing to look at.
    fn claim_xattrs(&mut self, inode: &Inode, addr: BlockAddr, into: &mut [u8]) -> bool {
        let owner = Owner {
            ino: inode.ino,
            part: Part::Xattrs,
        };
        let blocks = into.len().div_ceil(BLOCK_BYTES) as u64;
        let claimed = self.claims.claim(addr, blocks, owner, &mut self.findings);
        if claimed == Claimed::Outside {
            return false;
        }
        let found = addr.tier() == Some(TierId::Nvm) && self.media.load_run(addr.index(), into);
        if !found && !self.findings.quiet {
            self.findings.error(
                Object::Inode(inode.ino),
                Some(addr.index()),
                "extended attributes in a tier below",
                ("nvm", format!("{addr:?}")),
            );
        }
        found
    }
}
