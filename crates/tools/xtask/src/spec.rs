//! `cargo xtask spec`: the byte layouts of `shale-format` as tables in `docs/SPEC.md`.
//!
//! A table stands between `<!-- generated:NAME -->` and `<!-- end -->`, NAME being
//! the structure's name in the source. Everything outside the marks is left alone.
//! Every structure must be there, and every mark must name a structure.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use shale_format::layout::Table;
use shale_format::spec::tables;

use crate::error::{Error, read};

const SPEC: &str = "docs/SPEC.md";
const OPEN: &str = "<!-- generated:";
const CLOSE: &str = "<!-- end -->";

/// Whether to write the file or only to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rewrite the file.
    Write,
    /// Fail where the file is not as it would be written.
    Check,
}

/// Regenerates the tables, or checks that they are current.
pub fn run(root: &Path, mode: Mode) -> Result<(), Error> {
    let path = root.join(SPEC);
    let written = read(&path)?;
    let generated = regenerate(&written, &tables())?;
    if written == generated {
        println!("spec: {SPEC} is current");
        return Ok(());
    }
    if mode == Mode::Check {
        let line = first_difference(&written, &generated);
        return Err(Error::Spec(format!(
            "{SPEC}:{line} is not what the source says; run `cargo xtask spec`"
        )));
    }
    std::fs::write(&path, generated).map_err(|source| Error::File { path, source })?;
    println!("spec: {SPEC} rewritten");
    Ok(())
}

fn first_difference(a: &str, b: &str) -> usize {
    let same = a.lines().zip(b.lines()).take_while(|(a, b)| a == b);
    same.count() + 1
}

fn regenerate(spec: &str, tables: &[Table]) -> Result<String, Error> {
    let mut missing: BTreeSet<&str> = tables.iter().map(|table| table.name).collect();
    let mut out = String::with_capacity(spec.len());
    let mut rest = spec;
    while let Some(start) = rest.find(OPEN) {
        let after = &rest[start + OPEN.len()..];
        let (name, body) = after
            .split_once(" -->")
            .ok_or_else(|| Error::Spec(format!("{SPEC}: a mark `{OPEN}` without `-->`")))?;
        let table = tables
            .iter()
            .find(|table| table.name == name)
            .ok_or_else(|| {
                Error::Spec(format!(
                    "{SPEC} asks for {name}, and the source has no such layout"
                ))
            })?;
        // The next mark may not come before this one's end.
        let end = body.find(CLOSE).filter(|end| !body[..*end].contains(OPEN));
        let end = end.ok_or_else(|| Error::Spec(format!("{SPEC}: {name} has no `{CLOSE}`")))?;
        missing.remove(name);
        out.push_str(&rest[..start]);
        let _ = write!(out, "{OPEN}{name} -->\n{}{CLOSE}", render(table));
        rest = &body[end + CLOSE.len()..];
    }
    out.push_str(rest);
    if missing.is_empty() {
        return Ok(out);
    }
    let wanted: Vec<String> = missing
        .iter()
        .map(|name| format!("{OPEN}{name} -->\n{CLOSE}"))
        .collect();
    Err(Error::Spec(format!(
        "{SPEC} lacks layouts; put these where they belong:\n{}",
        wanted.join("\n")
    )))
}

fn render(table: &Table) -> String {
    // A bar would end the cell.
    let cell = |text: &str| {
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace('|', "\\|")
    };
    let mut out = format!(
        "`{}`, {} bytes. {}\n\n",
        table.name,
        table.bytes,
        cell(table.about)
    );
    out.push_str("| Offset | Bytes | Field | Meaning |\n| ---: | ---: | --- | --- |\n");
    for field in table.fields {
        let _ = writeln!(
            out,
            "| {} | {} | `{}` | {} |",
            field.offset,
            field.bytes,
            field.name,
            cell(field.meaning)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::layout::Field;

    const FIELDS: &[Field] = &[Field {
        name: "magic",
        offset: 0,
        bytes: 8,
        meaning: "says a|b",
    }];
    const TABLE: Table = Table {
        name: "Head",
        bytes: 8,
        about: "A head.",
        fields: FIELDS,
    };

    #[test]
    fn a_table_is_written_between_its_marks_and_stays_as_it_is() {
        let spec = "before\n<!-- generated:Head -->\nold\n<!-- end -->\nafter\n";
        let once = regenerate(spec, &[TABLE]).unwrap();
        assert!(once.starts_with("before\n<!-- generated:Head -->\n`Head`, 8 bytes. A head.\n"));
        assert!(
            once.contains("| 0 | 8 | `magic` | says a\\|b |\n<!-- end -->\nafter\n"),
            "{once}"
        );
        assert_eq!(regenerate(&once, &[TABLE]).unwrap(), once);
        assert_eq!(first_difference(spec, &once), 3);
    }

    #[test]
    fn marks_that_cannot_be_filled_are_refused() {
        let message = |spec: &str| regenerate(spec, &[TABLE]).unwrap_err().to_string();
        assert!(message("no marks").contains("<!-- generated:Head -->"));
        assert!(message("<!-- generated:Tail -->\n<!-- end -->").contains("no such layout"));
        assert!(message("<!-- generated:Head -->\n").contains("has no `<!-- end -->`"));
    }

    #[test]
    fn check_fails_on_a_difference_and_write_mends_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(SPEC);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let marks: Vec<String> = tables()
            .iter()
            .map(|table| format!("{OPEN}{} -->\n{CLOSE}\n", table.name))
            .collect();
        std::fs::write(&path, marks.concat()).unwrap();
        assert!(run(place.path(), Mode::Check).is_err());
        run(place.path(), Mode::Write).unwrap();
        run(place.path(), Mode::Check).unwrap();
    }

    #[test]
    fn fields_of_every_layout_lie_end_to_end() {
        for table in tables() {
            let mut end = 0;
            for field in table.fields {
                assert_eq!(field.offset, end, "{}.{}", table.name, field.name);
                end += field.bytes;
            }
            assert_eq!(end, table.bytes, "{}", table.name);
        }
    }
}
