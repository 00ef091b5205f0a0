//! Sizes as people write and read them: binary units.

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Bytes of `64M`, `64MiB`, `1G`, `4096`, …
///
/// # Errors
/// A sentence that says what a size is.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; write for example 64M, 1GiB or 4096");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let unit = text[digits.len()..].to_ascii_uppercase();
    let letter = match unit.as_str() {
        "" | "B" => return Ok(number),
        unit => unit
            .strip_suffix("IB")
            .or_else(|| unit.strip_suffix('B'))
            .unwrap_or(unit),
    };
    UNITS
        .iter()
        .find(|(name, _)| letter.len() == 1 && letter.starts_with(*name))
        .and_then(|&(_, shift)| number.checked_mul(1 << shift))
        .ok_or_else(wrong)
}

/// `1536` as "1.5 KiB".
pub fn show(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some(&(name, shift)) => {
            let whole = bytes as f64 / (1u64 << shift) as f64;
            let decimals = usize::from(whole < 10.0 && !bytes.is_multiple_of(1 << shift));
            format!("{whole:.decimals$} {name}iB")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("12B", 12),
            ("64k", 64 << 10),
            ("64M", 64 << 20),
            ("2GiB", 2 << 30),
            ("1gb", 1 << 30),
            ("3T", 3 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "1.5G",
            "-1",
            "1X",
            "1KM",
            "1iB",
            "99999999T",
            "1 G",
        ] {
            assert!(parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn what_people_read() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (100 << 20, "100 MiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
