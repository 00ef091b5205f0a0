//! Where messages go: the log file of a mount, the journal, or standard error.

use crate::bounded_file::LogFile;
use crate::level::{Level, filter};
use std::io::IsTerminal;
use std::sync::Mutex;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Has messages go to a file; without one to the journal, if standard error is connected to it, or to standard error. `level`: how
/// much; `None`: as `SHALE_LOG` says, usually `info`. Only the first call of a process counts.
pub fn start(file: Option<LogFile>, level: Option<Level>) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(level))
        .with_target(false);
    let _ = match file {
        Some(file) => log
            .with_ansi(false)
            .with_writer(Mutex::new(file))
            .try_init(),
        None if to_journal(level) => return,
        None => log
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .try_init(),
    };
}

/// With priorities, and the fields of a message as fields, if the service manager has connected standard error to the journal.
fn to_journal(level: Option<Level>) -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let Ok(error) = rustix::fs::fstat(std::io::stderr()) else {
        return false;
    };
    if !is_stream(&stream, error.st_dev, error.st_ino) {
        return false;
    }
    let Ok(journal) = tracing_journald::layer() else {
        return false;
    };
    let journal = journal
        .with_syslog_identifier("shale".to_owned())
        // As other programs have it: what is logged usually is no notice.
        .with_priority_mappings(PriorityMappings {
            info: Priority::Informational,
            debug: Priority::Debug,
            ..PriorityMappings::new()
        })
        .with_field_prefix(Some("SHALE".to_owned()));
    let all = tracing_subscriber::registry().with(filter(level));
    all.with(journal).try_init().is_ok()
}

/// Whether this is the file that `JOURNAL_STREAM` names, "device:inode": the variable outlives a redirection.
fn is_stream(variable: &str, device: u64, inode: u64) -> bool {
    variable == format!("{device}:{inode}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_asked_only_where_standard_error_is_its_stream() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["", "8:1235", "9:1234", "8", "8:1234 ", "x:y"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }
}
