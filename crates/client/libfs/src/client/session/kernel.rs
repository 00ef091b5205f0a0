//! What only a session is asked that serves a kernel.

use super::Session;

impl Session {
    /// From now on this session serves a kernel. `continues`: one that a process before
    /// this one served, so that it may have references to any inode.
    pub fn serve_kernel(&self, continues: bool) {
        self.services().kernel.serve(continues);
    }

    /// The kernel gave `count` references to an inode back; whether it has none left, and
    /// [`Self::forget`] is due.
    pub fn unrefer(&self, ino: u64, count: u64) -> bool {
        self.services().kernel.unrefer(ino, count)
    }

    /// Whether the kernel that is served may have a reference to an inode.
    pub fn kernel_refers_to(&self, ino: u64) -> bool {
        self.services().kernel.refers_to(ino)
    }

    /// The inodes that the kernel is known to have references to, and the root.
    pub fn kernel_references(&self) -> Vec<u64> {
        self.services().kernel.all()
    }

    /// How often calls have used an inode, or others that are counted together with it.
    pub fn uses_of(&self, ino: u64) -> u64 {
        self.services().kernel.uses_of(ino)
    }

    /// The request has been answered to the kernel: its records need not be kept.
    pub fn answered(&self, request: u64) {
        self.services().log.requests.answered(request);
    }

    /// The kernel sends requests for the first time again: all those that it sent again after a crash have been read. Some time later
    /// what they did is forgotten.
    pub fn resent_are_read(&self) {
        self.services().log.requests.resent_are_read();
    }
}
