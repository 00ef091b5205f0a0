//! The size that the kernel knows of one file, and whether it may be too small.
//!
//! While another client has the lease of a file, it grows and the kernel knows nothing of it. When somebody reads beyond
//! the end that it knows, it asks; but it drops the answer if anything about the file has changed in the kernel meanwhile
//! (another program's write has returned), and goes on with the size it knew: the read ends before what was written long
//! ago. So the first answer about the size of such a file is held back until the kernel knows the size by another way: a
//! notification that stores the file's last byte, and the size with it.
//!
//! A size that is too large cannot be mended like this, and the notification would have the answer dropped. So nobody cuts
//! a file below what the kernel knows behind its back, but a client that alone has to do with it ([`super::users`]): then
//! there is nobody whose calls could get between. How large the kernel may think such a file is, is noted when it leaves;
//! the answer is sent as it is.

/// See the module.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelSize {
    /// If the file was away since the kernel got its size: the largest size that it may know.
    largest_known: Option<u64>,
    /// Answers that are held back.
    held_answers: u32,
}

impl KernelSize {
    /// Another client is about to get the file, which is `size` bytes long.
    pub(super) fn leaves(&mut self, size: u64) {
        self.largest_known = self.largest_known.max(Some(size));
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
                self.largest_known = None;
                true
            }
        }
    }

    /// The kernel has forgotten the inode, and what it knew.
    pub(super) fn forgotten(&mut self) {
        self.largest_known = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_cut_while_it_was_away_is_not_made_longer() {
        let mut size = KernelSize::default();
        assert_eq!(size.largest_known(), None);
        size.leaves(100);
        size.leaves(20);
        assert_eq!(size.largest_known(), Some(100));
        assert!(!size.answered(50), "it may have been dropped");
        assert_eq!(size.largest_known(), Some(50));
        assert!(size.answered(50));
        assert_eq!(size, KernelSize::default());
        size.leaves(0);
        assert_eq!(size.largest_known(), Some(0));
        size.forgotten();
        assert_eq!(size, KernelSize::default());
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
