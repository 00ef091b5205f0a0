//! Who a call is made for.

/// Who calls, and for which request of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: &'static [u32],
    /// Process or thread.
    pub pid: u32,
    /// Mode bits to take away from what is created.
    pub umask: u32,
    /// Request of the kernel that the call answers; 0: none. A request that was
    /// done before a crash is not done again.
    pub request: u64,
}

impl Caller {
    /// Whether the caller is a member of a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A list of groups that stays for the life of the process, which makes one for each time that it becomes a client. No lock: a child that is
/// forked meanwhile could never take it.
pub fn groups_for_good(groups: &[u32]) -> &'static [u32] {
    match groups {
        [] => &[],
        groups => Box::leak(groups.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_in_the_group_or_a_further_one() {
        let caller = Caller {
            gid: 5,
            groups: groups_for_good(&[7, 8]),
            ..Caller::default()
        };
        assert!(caller.is_in(5) && caller.is_in(8) && !caller.is_in(0));
    }
}
