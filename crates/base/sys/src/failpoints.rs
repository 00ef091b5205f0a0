//! Points at which a test ends or stops this process, or makes the system say no.
//!
//! As with [`crate::mutants`]: without the feature `failpoints`, which no program that is shipped
//! has, nothing of it is left. With it the environment says what happens, so that it happens in
//! a process of its own: `SHALE_FAILPOINT=NAME:N:WHAT`, the N-th time that NAME is reached.
//!
//! WHAT: `kill` (as by `kill -9`), `stop` (as by `kill -STOP`), `panic` (a mistake in the program); and for the name `io`, which is
//! every open, map, allocation of a file, descriptor or thread: `once` or `ever` (from then on).
//! That it happened is reported on standard error, in a line that begins with `failpoint`.

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::io::Errno;
    use rustix::process::{Signal, getpid, kill_process};

    #[derive(PartialEq)]
    enum What {
        Kill,
        Stop,
        Panic,
        Once,
        Ever,
    }

    struct Plan {
        name: String,
        number: u64,
        what: What,
    }

    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);

    fn plan() -> Option<&'static Plan> {
        let read = || {
            let text = std::env::var("SHALE_FAILPOINT").ok()?;
            let mut words = text.split(':');
            Some(Plan {
                name: words.next()?.to_owned(),
                number: words.next()?.parse().ok()?,
                what: match words.next()? {
                    "kill" => What::Kill,
                    "stop" => What::Stop,
                    "panic" => What::Panic,
                    "once" => What::Once,
                    "ever" => What::Ever,
                    _ => return None,
                },
            })
        };
        PLAN.get_or_init(read).as_ref()
    }

    pub(super) fn reach(name: &str) {
        let Some(plan) = plan().filter(|plan| plan.name == name) else {
            return;
        };
        if REACHED.fetch_add(1, Ordering::AcqRel) + 1 != plan.number {
            return;
        }
        eprintln!("failpoint {name} {}", plan.number);
        assert!(plan.what != What::Panic, "a panic at {name}");
        let signal = match plan.what {
            What::Stop => Signal::STOP,
            _ => Signal::KILL,
        };
        // To oneself it is always allowed.
        let _ = kill_process(getpid(), signal);
    }

    pub(super) fn io() -> Result<(), Errno> {
        let Some(plan) = plan().filter(|plan| plan.name == "io") else {
            return Ok(());
        };
        let reached = REACHED.fetch_add(1, Ordering::AcqRel) + 1;
        let fails = match plan.what {
            What::Ever => reached >= plan.number,
            _ => reached == plan.number,
        };
        if !fails {
            return Ok(());
        }
        if reached == plan.number {
            eprintln!("failpoint io {reached}");
        }
        Err(Errno::NOMEM)
    }
}

/// This point is reached.
#[inline(always)]
pub fn reach(name: &str) {
    #[cfg(feature = "failpoints")]
    armed::reach(name);
    #[cfg(not(feature = "failpoints"))]
    let _ = name;
}

/// The system is about to be asked for something that it may refuse.
///
/// # Errors
/// It refuses (ENOMEM), because a test wants to see that.
#[inline(always)]
pub fn io() -> Result<(), rustix::io::Errno> {
    #[cfg(feature = "failpoints")]
    armed::io()?;
    Ok(())
}
