//! Who a call is made for.

/// Who calls, and for which request of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process or thread.
    pub pid: u32,
    /// Mode bits to take away from what is created.
    pub umask: u32,
    /// Request of the kernel that the call answers; 0: none. A request that was
    /// done before a crash is not done again.
    pub request: u64,
}
