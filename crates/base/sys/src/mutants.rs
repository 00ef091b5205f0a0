//! Deliberate mistakes, for tests that have to find them.
//!
//! Code that matters asks [`is_on`] at the place where a mistake would be natural. Without the
//! feature `mutants`, which no program that is shipped has, the answer is a constant `false`
//! and nothing of it is left in the program. With it a test switches on one at a time.
//!
//! Where several programs belong to a test, it names the mutant in `SHALE_MUTANT` for all of them.
//!
//! [`between`] stands where another thread may come in between two steps that take no time:
//! a test holds threads up there.

#[cfg(feature = "mutants")]
mod switch {
    use parking_lot::RwLock;
    use std::sync::LazyLock;

    static ON: LazyLock<RwLock<Option<&'static str>>> = LazyLock::new(|| {
        let named = std::env::var("SHALE_MUTANT").ok();
        RwLock::new(named.map(|name| &*name.leak()))
    });

    /// Switches on this mutant alone, in all threads; `None`: none.
    pub fn switch_on(name: Option<&'static str>) {
        *ON.write() = name;
    }

    pub(super) fn is_on(name: &str) -> bool {
        *ON.read() == Some(name)
    }

    static HOLD: RwLock<Option<fn()>> = RwLock::new(None);

    /// Has every thread call `hold` at each [`super::between`]; `None`: nothing.
    pub fn hold_between(hold: Option<fn()>) {
        *HOLD.write() = hold;
    }

    pub(super) fn between() {
        let hold = *HOLD.read();
        if let Some(hold) = hold {
            hold();
        }
    }
}

#[cfg(feature = "mutants")]
pub use switch::{hold_between, switch_on};

/// A moment at which another thread may come in between.
#[inline(always)]
pub fn between() {
    #[cfg(feature = "mutants")]
    switch::between();
}

/// Whether the mutant of that name is switched on.
#[inline(always)]
pub fn is_on(name: &str) -> bool {
    #[cfg(feature = "mutants")]
    return switch::is_on(name);
    #[cfg(not(feature = "mutants"))]
    {
        let _ = name;
        false
    }
}
