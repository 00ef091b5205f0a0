//! How long a function may be, and the list of those that may be longer.

use super::finding::Finding;
use super::lexer::{Lexed, line_of, word_offsets};

/// Lines from `fn` to the closing brace, both included. About 70 is the habit; a lower bound than this
/// was obeyed with tuples as parameters and methods spread over files, which reads worse.
const FUNCTION_LINES_MAX: usize = 100;

/// Functions allowed to be longer, each with its reason.
#[derive(Debug, Default)]
pub struct Allowed {
    rows: Vec<AllowedRow>,
}

#[derive(Debug)]
struct AllowedRow {
    path: String,
    function: String,
    reason: String,
    used: bool,
}

impl Allowed {
    /// Reads lines of `path function reason`; `#` starts a comment line.
    pub fn parse(text: &str) -> Self {
        let written = text.lines().map(str::trim);
        let rows = written
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let mut words = line
                    .splitn(3, char::is_whitespace)
                    .map(|word| word.trim().to_owned());
                let mut next = || words.next().unwrap_or_default();
                AllowedRow {
                    path: next(),
                    function: next(),
                    reason: next(),
                    used: false,
                }
            });
        Self {
            rows: rows.collect(),
        }
    }

    fn allows(&mut self, path: &str, function: &str) -> bool {
        let row = self
            .rows
            .iter_mut()
            .find(|row| row.path == path && row.function == function);
        row.is_some_and(|row| {
            row.used = true;
            true
        })
    }

    /// Rows that excuse nothing any more, or give no reason.
    pub fn unused(&self, list: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for row in &self.rows {
            let name = format!("{} {}", row.path, row.function);
            if !row.used {
                findings.push(Finding::new(
                    list,
                    format!("{name}: no such long function; take the line out"),
                ));
            }
            if row.reason.is_empty() {
                findings.push(Finding::new(list, format!("{name}: say why it is long")));
            }
        }
        findings
    }
}

/// Functions above the limit that the list does not excuse.
pub fn check(place: &str, lexed: &Lexed, allowed: &mut Allowed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in functions(&lexed.code) {
        if function.lines > FUNCTION_LINES_MAX && !allowed.allows(place, &function.name) {
            findings.push(Finding::new(
                format!("{place}:{}", function.line),
                format!(
                    "function {} has {} lines, at most {FUNCTION_LINES_MAX}",
                    function.name, function.lines
                ),
            ));
        }
    }
    findings
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

fn functions(code: &str) -> Vec<Function> {
    let found = word_offsets(code, "fn").filter_map(|start| {
        let rest = &code[start + 2..];
        let signature = rest.trim_start();
        let name: String = signature
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        // A function pointer's type and a macro's `$name` have no name here.
        if name.is_empty() {
            return None;
        }
        let body = body_end(rest)?;
        let line = line_of(code, start);
        Some(Function {
            name,
            line,
            lines: line_of(code, start + 2 + body) - line + 1,
        })
    });
    found.collect()
}

/// Offset of the brace that closes the body, if there is a body.
fn body_end(text: &str) -> Option<usize> {
    let mut round = 0i32;
    let mut braces = 0i32;
    for (offset, c) in text.char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            ';' if round == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && round == 0 {
                    return Some(offset);
                }
                if braces < 0 {
                    return None;
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(lines: usize) -> String {
        format!(
            "impl X {{\n    fn long(&self) -> [u8; 2] {{\n{}    }}\n}}\n",
            "        f(\"}\");\n".repeat(lines - 2)
        )
    }

    #[test]
    fn a_long_function_is_named() {
        let text = source(FUNCTION_LINES_MAX);
        assert_eq!(
            check("a.rs", &Lexed::new(&text), &mut Allowed::default()),
            []
        );
        let text = source(FUNCTION_LINES_MAX + 1);
        let findings = check("a.rs", &Lexed::new(&text), &mut Allowed::default());
        assert_eq!(findings[0].place, "a.rs:2");
        assert!(
            findings[0].what.contains("long has 101 lines"),
            "{findings:?}"
        );
    }

    #[test]
    fn the_list_excuses_and_must_be_needed() {
        let mut allowed =
            Allowed::parse("# why\na.rs long a table\nb.rs gone once was\nc.rs mute\n");
        let text = source(FUNCTION_LINES_MAX + 1);
        assert_eq!(check("a.rs", &Lexed::new(&text), &mut allowed), []);
        let findings = allowed.unused("list");
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].what.contains("b.rs gone"));
        assert!(findings[2].what.contains("say why"));
    }

    #[test]
    fn declarations_and_pointers_are_no_functions() {
        assert!(functions("trait T { fn f(&self, x: [u8; 4]); } type P = fn(u8);").is_empty());
        let names: Vec<_> = functions("fn a() { fn b() {} } fn c<T>() where T: X {}")
            .into_iter()
            .map(|function| function.name)
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
