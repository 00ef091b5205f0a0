//! What goes to the user: text on standard output, and something that moves while a verb
//! waits, on a terminal only.

use crate::failure::{Failure, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use shale_sys::printable;
use std::io::{ErrorKind, Write};
use std::process::exit;
use std::time::Duration;

/// Text without control characters but ends of lines.
pub fn printable(text: &str) -> String {
    printable::lines(text).into_owned()
}

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
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        $crate::terminal::print(&(format!($($part)*) + "\n"))
    };
}
pub use say;

/// Prints an answer as JSON, for people and programs.
///
/// # Errors
/// Its type has no JSON.
pub fn print_json(answer: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(answer).map_err(Failure::because("the answer"))?;
    say!("{text}");
    Ok(())
}

/// Tells the user something on standard error, after the program's name; as [`print`](terminal::print).
#[macro_export]
macro_rules! note {
    ($($part:tt)*) => {
        eprintln!("shale: {}", $crate::terminal::printable(&format!($($part)*)))
    };
}
pub use note;

/// Shows on standard error that something is being waited for, until it is dropped; nothing where that is no terminal.
#[derive(Debug)]
pub struct Waiting(ProgressBar);

impl Waiting {
    /// Begins to show `what`.
    pub fn start(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self(bar)
    }

    /// Begins to show how much is done. `template`: what of it, in the words of [`ProgressStyle`]; a bar and numbers if
    /// there is none.
    pub fn for_progress(template: Option<&str>) -> Self {
        let style = template.and_then(|template| ProgressStyle::with_template(template).ok());
        let style = style.unwrap_or_else(ProgressStyle::default_bar);
        Self(ProgressBar::new(0).with_style(style))
    }

    /// Shows something else from now on.
    pub fn at(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Shows that so much is done.
    pub fn done(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
