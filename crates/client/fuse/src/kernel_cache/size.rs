//! The size that the kernel knows of one file, and whether it may be too small.
//!
//! While another client has the lease of a file, it grows and the kernel knows nothing of it. When somebody reads beyond
//! the end that it knows, it asks; but it drops the answer if anything about the file has changed in the kernel meanwhile
//! (another program's write has returned), and goes on with the size it knew: the read ends before what was written long
//! ago. So the first answer about the size of such a file is held back until the kernel knows the size by another way: a
//! notification that stores the file's last byte, and the size with it.
//!
//! That notification has the kernel drop the answer for certain, and with it who may do what with the file: for the call that asked, it goes
//! on with the owner and the mode that it knew. So it is sent only where the answer might be dropped anyway, that is, where the file was
//! written through the kernel a moment ago, and not where owner or mode have changed since the file left.
//!
//! A size that is too large cannot be mended like this, and the notification would have the answer dropped. So nobody cuts
//! a file below what the kernel knows behind its back, but a client that alone has to do with it ([`super::users`]): then
//! there is nobody whose calls could get between. How large the kernel may think such a file is, is noted when it leaves;
//! the answer is sent as it is.

/// Owner, group and mode.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u32,
}

/// See the module.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelSize {
    /// If the file was away since the kernel got its size: the largest size that it may know.
    largest_known: Option<u64>,
    /// What the kernel knows of rights, if that is one thing for certain.
    rights: Option<Rights>,
    /// Answers that are held back.
    held_answers: u32,
}

impl KernelSize {
    /// Another client is about to get the file, which is `size` bytes long.
    pub(super) fn leaves(&mut self, size: u64, rights: Rights) {
        let known = self.largest_known.is_none() || self.rights == Some(rights);
        self.rights = known.then_some(rights);
        self.largest_known = self.largest_known.max(Some(size));
    }

    /// Whether the kernel knows these rights for certain, and does not have to learn them by the next answer.
    pub(super) fn knows(&self, rights: Rights) -> bool {
        self.rights == Some(rights)
    }

    /// An answer has gone out by which the kernel knows these rights, and may not know the size.
    pub(super) fn rights_answered(&mut self, rights: Rights) {
        self.rights = Some(rights);
    }

    /// Whether the kernel may know another size than the file has; then the largest that it may know.
    pub(super) fn largest_known(&self) -> Option<u64> {
        self.largest_known
    }

    pub(super) fn hold_answer(&mut self) {
        self.held_answers += 1;
    }

    pub(super) fn holds_answers(&self) -> bool {
        self.held_answers > 0
    }

    /// An answer has gone out, or there is none; whether no other is held back.
    pub(super) fn let_answer_go(&mut self) -> bool {
        assert!(self.held_answers > 0, "an answer that was held back");
        self.held_answers -= 1;
        self.held_answers == 0
    }

    /// An answer has gone out, and the kernel knows the size. If it thought that the file was longer it may have dropped
    /// the answer: next time it does not think so, but may know less. Whether it knows the size for certain.
    pub(super) fn answered(&mut self, size: u64) -> bool {
        match &mut self.largest_known {
            Some(largest) if size < *largest => {
                *largest = size;
                false
            }
            _ => {
                self.forgotten();
                true
            }
        }
    }

    /// The kernel has forgotten the inode, and what it knew.
    pub(super) fn forgotten(&mut self) {
        self.largest_known = None;
        self.rights = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_while_it_was_away_is_not_made_longer() {
        let mut size = KernelSize::default();
        assert_eq!(size.largest_known(), None);
        let rights = Rights::default();
        size.leaves(100, rights);
        size.leaves(20, rights);
        assert_eq!(size.largest_known(), Some(100));
        assert!(!size.answered(50), "it may have been dropped");
        assert_eq!(size.largest_known(), Some(50));
        assert!(size.answered(50));
        assert_eq!(size, KernelSize::default());
        size.leaves(0, rights);
        assert_eq!(size.largest_known(), Some(0));
        size.forgotten();
        assert_eq!(size, KernelSize::default());
    }

    #[test]
    fn rights_are_known_where_they_were_one_thing_each_time() {
        let (mut size, open) = (KernelSize::default(), Rights::default());
        let closed = Rights {
            mode: 0o600,
            ..open
        };
        assert!(!size.knows(open));
        size.leaves(1, open);
        assert!(size.knows(open) && !size.knows(closed));
        size.leaves(1, closed);
        assert!(!size.knows(open) && !size.knows(closed), "one of them");
        size.rights_answered(closed);
        assert!(size.knows(closed) && size.largest_known() == Some(1));
        assert!(size.answered(1) && !size.knows(closed));
    }

    #[test]
    fn answers_are_counted() {
        let mut size = KernelSize::default();
        size.hold_answer();
        size.hold_answer();
        assert!(!size.let_answer_go() && size.holds_answers());
        assert!(size.let_answer_go() && !size.holds_answers());
    }
}
