//! Deliberate mistakes, for tests that have to find them.
//!
//! Code that matters asks [`is_on`] at the place where a mistake would be natural. Without the
//! feature `mutants`, which no program that is shipped has, the answer is a constant `false`
//! and nothing of it is left in the program. With it a test switches on one at a time.

#[cfg(feature = "mutants")]
mod switch {
    use parking_lot::RwLock;

    static ON: RwLock<Option<&'static str>> = RwLock::new(None);

    /// Switches on this mutant alone, in all threads; `None`: none.
    pub fn switch_on(name: Option<&'static str>) {
        *ON.write() = name;
    }

    pub(super) fn is_on(name: &str) -> bool {
        *ON.read() == Some(name)
    }
}

#[cfg(feature = "mutants")]
pub use switch::switch_on;

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
