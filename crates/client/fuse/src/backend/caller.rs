//! What a request does not tell of its caller: all of its groups, and its capabilities. The kernel is asked. The
//! caller waits for the answer to its request meanwhile, so they are its own.

use std::fs;

/// May write any file.
pub(crate) const CAP_DAC_OVERRIDE: u32 = 1;
/// May keep set-user-ID and set-group-ID.
pub(crate) const CAP_FSETID: u32 = 4;
/// May shut a file system down.
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// Groups and capabilities of a thread.
pub(crate) struct Privileges {
    status: String,
    /// It is in the user namespace of this process. In another one it may have every capability, over nothing.
    is_here: bool,
}

impl Privileges {
    /// Of thread `tid`; `None` if this process does not see it, as if it is in another pid namespace.
    pub(crate) fn of(tid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let here = fs::read_link("/proc/self/ns/user");
        let there = fs::read_link(format!("/proc/{tid}/ns/user"));
        Some(Self {
            status,
            is_here: matches!((here, there), (Ok(here), Ok(there)) if here == there),
        })
    }

    fn field(&self, name: &str) -> &str {
        let mut lines = self.status.lines();
        lines
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
    }

    /// Whether the group is one of its supplementary groups.
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        let mut groups = self.field("Groups:").split_whitespace();
        groups.any(|group| group.parse() == Ok(gid))
    }

    /// Whether the capability is effective.
    pub(crate) fn has(&self, capability: u32) -> bool {
        let all = u64::from_str_radix(self.field("CapEff:").trim(), 16);
        self.is_here && all.is_ok_and(|all| all & (1 << capability) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read_from_the_status() {
        let of = |status: &str, is_here| Privileges {
            status: status.to_owned(),
            is_here,
        };
        let member = of(
            "Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t0000000000000000\n",
            true,
        );
        assert!(member.is_in(24) && !member.is_in(2) && !member.has(CAP_FSETID));
        let capable = "CapPrm:\t000001ffffffffff\nGroups:\t \nCapEff:\t0000000000200012\n";
        let here = of(capable, true);
        assert!(!here.is_in(0) && !here.has(0));
        assert!([CAP_FSETID, CAP_DAC_OVERRIDE, CAP_SYS_ADMIN].map(|c| here.has(c)) == [true; 3]);
        assert!(!of(capable, false).has(CAP_SYS_ADMIN));
        assert!(!of("", true).is_in(0) && !of("CapEff:\tx\n", true).has(CAP_FSETID));
        assert!(Privileges::of(0).is_none());
    }
}
