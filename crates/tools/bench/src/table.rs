//! Reports as text for people: numbers with units, columns as wide as they need to be.

use std::fmt;

/// "64 B", "4 KiB", "1 MiB".
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// A number with a comma before each three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes lines below a head: the first `words` columns are words and start left; numbers end right. A line whose `group`
/// differs from that of the line before has an empty one in front.
pub(crate) fn write_table<const N: usize, G: PartialEq>(
    f: &mut fmt::Formatter<'_>,
    words: usize,
    head: [&str; N],
    rows: &[(G, [String; N])],
) -> fmt::Result {
    let head = head.map(str::to_owned);
    let mut widths = [0; N];
    for cells in rows.iter().map(|(_, cells)| cells).chain([&head]) {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    line(f, words, &head, &widths)?;
    let mut last = None;
    for (group, cells) in rows {
        if last.is_some_and(|last| last != group) {
            writeln!(f)?;
        }
        last = Some(group);
        line(f, words, cells, &widths)?;
    }
    Ok(())
}

fn line<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    words: usize,
    cells: &[String; N],
    widths: &[usize; N],
) -> fmt::Result {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        match column < words {
            true => write!(f, "{gap}{cell:<width$}")?,
            false => write!(f, "{gap}{cell:>width$}")?,
        }
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_readable() {
        assert_eq!(
            [64, 1_000, 4_096, 1 << 20].map(size_text),
            ["64 B", "1000 B", "4 KiB", "1 MiB"]
        );
        assert_eq!(
            [7, 1_000, 1_234_567].map(grouped),
            ["7", "1,000", "1,234,567"]
        );
    }

    struct Table;

    impl fmt::Display for Table {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let row =
                |group, word: &str, number: &str| (group, [word.to_owned(), number.to_owned()]);
            let rows = [
                row(1, "one", "1"),
                row(1, "hundred", "100"),
                row(2, "two", "2"),
            ];
            write_table(f, 1, ["word", "n"], &rows)
        }
    }

    #[test]
    fn words_start_left_numbers_end_right_and_groups_stand_apart() {
        let expected = "word       n\none        1\nhundred  100\n\ntwo        2\n";
        assert_eq!(Table.to_string(), expected);
    }
}
