//! What goes to the user: text on standard output, and something that moves while a verb
//! waits, on a terminal only.

use indicatif::ProgressBar;
use shale_sys::printable;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::exit;
use std::time::Duration;

/// Prints to standard output. A reader that has gone (`shale log show … | head`) ends
/// the program without a word. Names are other users': no control character of theirs reaches a terminal.
pub fn print(text: &str) {
    let text = printable::lines(text);
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => exit(0),
        Err(e) => {
            eprintln!("shale: standard output: {e}");
            exit(1);
        }
    }
}

/// [`print`](terminal::print) of a formatted line.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::terminal::print(&(format!($($part)*) + "\n"))
    };
}
pub(crate) use say;

/// A number of things, whose name in the singular it is: "1 file", "2 files".
pub fn count(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {name}{plural}")
}

/// Tells the user something on standard error, after the program's name; as [`print`](terminal::print).
macro_rules! note {
    ($($part:tt)*) => {
        eprintln!("shale: {}", shale_sys::printable::lines(&format!($($part)*)))
    };
}
pub(crate) use note;

/// Shows on standard error that something is being waited for, until it is dropped.
#[derive(Debug)]
pub struct Waiting(Option<ProgressBar>);

impl Waiting {
    /// Begins to show `what`; nothing where standard error is no terminal.
    pub fn start(what: &str) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        }))
    }

    /// Shows something else from now on.
    pub fn at(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_of_something_is_one() {
        assert_eq!(
            [0, 1, 2].map(|n| count(n, "file")),
            ["0 files", "1 file", "2 files"]
        );
    }
}
