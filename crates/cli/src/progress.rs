//! Something that moves while a verb waits, on a terminal only.

use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::time::Duration;

/// Shows on standard error that something is being waited for, until it is dropped.
#[derive(Debug)]
pub struct Waiting(Option<ProgressBar>);

impl Waiting {
    /// Begins to show `what`; nothing where standard error is no terminal.
    pub fn start(what: &'static str) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(what);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
