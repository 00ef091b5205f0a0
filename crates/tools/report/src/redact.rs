//! What may hold names of users' files or of their programs is left out of texts and JSON.
//!
//! Nothing is trusted to be harmless because nobody thought of it: paths pass only if they are known to be of the volume's media or of
//! Shale itself, quoted text never, and what follows an unknown path on its line goes with it, since a name may have blanks.

use serde_json::Value;
use std::path::PathBuf;

/// What stands where something was left out.
pub const LEFT_OUT: &str = "(left out)";

/// Directories of Shale, and of the system where no user has files: what is below them passes.
const OF_SHALE: [&str; 6] = [
    "/run/shale",
    "/dev/fuse",
    "/sys",
    "/proc",
    "/etc/shale",
    "/rustc",
];
/// Fields of log lines whose values are names.
const NAME_FIELDS: [&str; 3] = ["name=", "names=", "path="];

/// Knows which paths may be shown.
#[derive(Clone, Debug)]
pub struct Redactor {
    /// Paths that pass, the longest first; with what is below them where that is a directory of the volume.
    shown: Vec<(String, bool)>,
}

impl Redactor {
    /// `exact`: paths that pass as they are, such as a mount point, a device and a volume file. `whole`: directories that pass with
    /// all that is in them, such as an NVM directory.
    pub fn new(exact: &[PathBuf], whole: &[PathBuf]) -> Self {
        let text = |path: &PathBuf| path.to_str().map(str::to_owned);
        let is_some = |path: &String| path.len() > 1;
        let exact = exact.iter().filter_map(text).map(|path| (path, false));
        let whole = whole.iter().filter_map(text).map(|path| (path, true));
        let fixed = OF_SHALE.map(|path| (path.to_owned(), true));
        let all = exact.chain(whole).chain(fixed);
        let mut shown: Vec<_> = all.filter(|(path, _)| is_some(path)).collect();
        shown.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self { shown }
    }

    /// Text, line by line.
    pub fn text(&self, text: &str) -> String {
        let lines: Vec<String> = text.lines().map(|line| self.line(line)).collect();
        lines.join("\n") + if text.ends_with('\n') { "\n" } else { "" }
    }

    fn line(&self, line: &str) -> String {
        let (mut out, mut rest) = (String::new(), line);
        if let Some((before, field)) = NAME_FIELDS.iter().filter_map(|f| field(rest, f)).min() {
            let kept = self.line(&rest[..before]);
            return format!("{kept}{field}{LEFT_OUT}");
        }
        while let Some(at) = rest.find(|c| "/\"'`".contains(c)) {
            let before = rest[..at].chars().next_back();
            let (begin, tail) = rest.split_at(at);
            let in_word = before.is_some_and(char::is_alphanumeric);
            if !tail.starts_with('/') {
                let quote = &tail[..1];
                let after = tail[1..].chars().next();
                let in_word = in_word && after.is_some_and(char::is_alphanumeric);
                match (in_word && quote == "'", tail.rfind(quote)) {
                    (true, _) => {
                        out += begin;
                        out += quote;
                        rest = &tail[1..];
                        continue;
                    }
                    (false, Some(last)) if last > 0 => {
                        out += begin;
                        out += LEFT_OUT;
                        rest = &tail[last + 1..];
                        continue;
                    }
                    _ => return out + begin + LEFT_OUT,
                }
            }
            let passes = match before.is_some_and(|c| c.is_alphanumeric() || "._-".contains(c)) {
                true => in_source(begin, tail),
                false => self.passes(tail),
            };
            match passes {
                Some(bytes) => {
                    out += begin;
                    out += &tail[..bytes];
                    rest = &tail[bytes..];
                }
                None => {
                    let word = begin.rfind(char::is_whitespace).map_or(0, |n| n + 1);
                    return out + &begin[..word] + LEFT_OUT;
                }
            }
        }
        out + rest
    }

    /// Bytes of the path with which a text begins, if it may be shown.
    fn passes(&self, text: &str) -> Option<usize> {
        self.shown.iter().find_map(|(path, with_all)| {
            let rest = text.strip_prefix(path.as_str())?;
            let ends = |c: char| c.is_whitespace() || ":,;()[]{}\"'`".contains(c);
            let word = rest.find(ends).unwrap_or(rest.len());
            match (word, with_all) {
                (0, _) => Some(path.len()),
                (n, true) if rest.starts_with('/') => Some(path.len() + n),
                // A full stop ends a sentence.
                (1, _) if rest.starts_with('.') => Some(path.len()),
                _ => None,
            }
        })
    }

    /// All strings of a value. Names of clients are those of users' programs.
    pub fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.json(one)),
            Value::Object(all) => {
                for (key, one) in all {
                    let is_client = ["clients", "departed", "detached_clients"];
                    if is_client.contains(&key.as_str()) {
                        let clients = one.as_array_mut().into_iter().flatten();
                        clients.for_each(without_name);
                    }
                    self.json(one);
                }
            }
            _ => {}
        }
    }

    /// What `fsck --json` found: inodes by number, and values only where these are numbers.
    pub fn findings(&self, report: &mut Value) {
        let findings = report["findings"].as_array_mut();
        for finding in findings.into_iter().flatten() {
            if let Some(ino) = finding["ino"].as_u64() {
                finding["object"] = format!("inode {ino}").into();
            }
            let is_of_name = finding["what"]
                .as_str()
                .is_none_or(|what| what.contains("name"));
            for key in ["expected", "found"] {
                let is_number = |c: char| c.is_ascii_hexdigit() || "x ,.:-".contains(c);
                let text = finding[key].as_str().unwrap_or_default();
                if is_of_name || !text.chars().all(is_number) {
                    finding[key] = LEFT_OUT.into();
                }
            }
        }
        self.json(report);
    }
}

/// Where a field of a log line begins, if the line has it.
fn field<'f>(line: &str, field: &'f str) -> Option<(usize, &'f str)> {
    let mut from = 0;
    while let Some(at) = line[from..].find(field) {
        let before = line[..from + at].chars().next_back();
        if before.is_none_or(char::is_whitespace) {
            return Some((from + at, field));
        }
        from += at + field.len();
    }
    None
}

/// Bytes of what follows a slash in the middle of a word, if that is a place in the sources, or a unit.
fn in_source(begin: &str, tail: &str) -> Option<usize> {
    let word = begin.rfind(char::is_whitespace).map_or(0, |n| n + 1);
    let end = tail.find(char::is_whitespace).unwrap_or(tail.len());
    let first = &begin[word..];
    let is_source = ["crates", "src", "library"].contains(&first);
    let is_unit = first.len() <= 3 && tail[1..end].len() <= 3;
    (is_source || is_unit).then_some(end)
}

fn without_name(client: &mut Value) {
    if client["name"].as_str().is_some_and(|name| name != "mount") {
        client["name"] = LEFT_OUT.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redactor() -> Redactor {
        Redactor::new(
            &["/mnt/data".into(), "/srv/a b.img".into()],
            &["/pmem/shale".into()],
        )
    }

    #[test]
    fn names_of_files_are_left_out_and_what_is_of_the_volume_stays() {
        let r = redactor();
        for (line, kept) in [
            (
                "2026 INFO mounted volume=/etc/shale/d.toml mountpoint=/mnt/data",
                None,
            ),
            ("/srv/a b.img: cannot flush: No space", None),
            ("client=1 log=/pmem/shale/log-003: digest waits", None),
            ("at crates/x/src/a.rs:12: client's log, 12 MiB/s", None),
            ("/mnt/data: unmounted.", None),
            ("see /mnt/data.", None),
            (
                "/mnt/data/private/letter to ann.txt: EIO",
                Some("(left out)"),
            ),
            ("/mnt/database: EIO", Some("(left out)")),
            ("/home/ann/x is bad", Some("(left out)")),
            ("a private/letter is bad", Some("a (left out)")),
            (
                "the name 'secret plan' of 7",
                Some("the name (left out) of 7"),
            ),
            ("found \"it's\" here", Some("found (left out) here")),
            ("it has 'half", Some("it has (left out)")),
            ("keeps names=[a, b] 3", Some("keeps names=(left out)")),
            ("x name=secret y", Some("x name=(left out)")),
            ("hostname=z", None),
        ] {
            assert_eq!(r.text(line), kept.unwrap_or(line));
        }
        assert_eq!(r.text("a\n/x y\n'c'\n"), "a\n(left out)\n(left out)\n");
    }

    #[test]
    fn programs_and_values_of_findings_are_left_out() {
        let r = redactor();
        let mut status = json!({
            "name": "vol", "volume": "/mnt/data/x", "nvm_dir": "/pmem/shale",
            "clients": [{"name": "diary-app", "pid": 4}, {"name": "mount"}],
            "recovery": {"problems": ["entry 'secret'"]},
        });
        r.json(&mut status);
        let text = status.to_string();
        for secret in ["diary", "secret", "/mnt/data/x"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("vol") && text.contains("/pmem/shale") && text.contains("mount"));
        let mut report = json!({"findings": [
            {"object": "/secret/a", "ino": 7, "what": "missing", "expected": "1", "found": "0x1f"},
            {"object": "inode file", "ino": null, "what": "two entries of one name", "expected": "", "found": "17"},
            {"object": "log-003", "ino": null, "what": "size", "expected": "4", "found": "secret"},
        ]});
        r.findings(&mut report);
        let found = &report["findings"];
        assert_eq!(found[0]["object"], "inode 7");
        assert_eq!(
            (&found[0]["found"], &found[1]["found"]),
            (&json!("0x1f"), &json!(LEFT_OUT))
        );
        assert_eq!(
            (&found[2]["object"], &found[2]["found"]),
            (&json!("log-003"), &json!(LEFT_OUT))
        );
    }
}
