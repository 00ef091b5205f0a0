//! Values of settings: which there can be, how they are written and shown.

use serde::{Deserialize, Serialize};
use shale_sys::size;
use std::ops::RangeInclusive;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A percentage, bytes, or bytes a second.
    Number(u64),
    /// A name.
    Word(String),
    /// Numbers of users.
    Users(Vec<u32>),
}

/// Which values a setting can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// Percent.
    Percent(RangeInclusive<u32>),
    /// Bytes.
    Bytes(RangeInclusive<u64>),
    /// Bytes a second, this at least, or 0: no limit.
    Rate(u64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Any text without control characters.
    Text,
    /// Users, by name or number.
    Users,
}

/// How a user's name or number is looked up.
pub type FindUser<'f> = &'f dyn Fn(&str) -> Result<u32, String>;

impl Range {
    /// In which unit it is.
    pub fn unit(&self) -> &'static str {
        match self {
            Range::Percent(_) => "percent",
            Range::Bytes(_) => "bytes",
            Range::Rate(_) => "bytes a second",
            Range::OneOf(_) | Range::Text => "name",
            Range::Users => "users",
        }
    }

    /// In words.
    pub fn text(&self) -> String {
        match self {
            Range::Percent(range) => format!("{} to {}", range.start(), range.end()),
            Range::Bytes(range) => {
                format!(
                    "{} to {}",
                    size::show(*range.start()),
                    size::show(*range.end())
                )
            }
            Range::Rate(0) => "any, 0: no limit".to_owned(),
            Range::Rate(least) => format!("{} or more, 0: no limit", size::show(*least)),
            Range::OneOf(words) => words.join(", "),
            Range::Text => "any name".to_owned(),
            Range::Users => "users, with commas between them".to_owned(),
        }
    }

    /// The value that somebody wrote.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(&self, text: &str, user: FindUser<'_>) -> Result<Value, String> {
        let outside = || format!("'{text}' is not in its range: {}", self.text());
        match self {
            Range::Percent(range) => {
                let digits = text.strip_suffix('%').unwrap_or(text);
                let percent = digits.parse().ok().filter(|n| range.contains(n));
                percent
                    .map(|n: u32| Value::Number(n.into()))
                    .ok_or_else(outside)
            }
            Range::Bytes(range) => {
                let bytes = size::parse(text).ok().filter(|n| range.contains(n));
                bytes.map(Value::Number).ok_or_else(outside)
            }
            Range::Rate(least) => {
                let bytes = size::parse(text).ok().filter(|n| *n == 0 || n >= least);
                bytes.map(Value::Number).ok_or_else(outside)
            }
            Range::OneOf(words) => match words.contains(&text) {
                true => Ok(Value::Word(text.to_owned())),
                false => Err(outside()),
            },
            Range::Text => match text.is_empty() || text.chars().any(char::is_control) {
                true => Err(outside()),
                false => Ok(Value::Word(text.to_owned())),
            },
            Range::Users => {
                let users = text.split(',').filter(|one| !one.is_empty());
                Ok(Value::Users(users.map(user).collect::<Result<_, _>>()?))
            }
        }
    }

    /// A value as people read it.
    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Range::Percent(_), Value::Number(n)) => format!("{n}%"),
            (Range::Bytes(_), Value::Number(n)) => size::show(*n),
            (Range::Rate(_), Value::Number(0)) => "no limit".to_owned(),
            (Range::Rate(_), Value::Number(n)) => format!("{} a second", size::show(*n)),
            (_, Value::Number(n)) => n.to_string(),
            (_, Value::Word(word)) => word.clone(),
            (_, Value::Users(users)) if users.is_empty() => "nobody".to_owned(),
            (_, Value::Users(users)) => {
                let users: Vec<String> = users.iter().map(u32::to_string).collect();
                users.join(",")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Result<u32, String> {
        match text {
            "anna" => Ok(1000),
            number => number.parse().map_err(|_| format!("'{number}' is no user")),
        }
    }

    #[test]
    fn what_is_outside_of_a_range_is_refused_with_the_range() {
        let percent = Range::Percent(1..=90);
        let bytes = Range::Bytes(16 << 20..=4 << 30);
        let rate = Range::Rate(64 << 10);
        let words = Range::OneOf(&["model", "lazy"]);
        for (range, text, value) in [
            (&percent, "1", Value::Number(1)),
            (&percent, "90%", Value::Number(90)),
            (&bytes, "16M", Value::Number(16 << 20)),
            (&bytes, "4G", Value::Number(4 << 30)),
            (&rate, "0", Value::Number(0)),
            (&rate, "64K", Value::Number(64 << 10)),
            (&words, "lazy", Value::Word("lazy".to_owned())),
            (&Range::Users, "anna,7", Value::Users(vec![1000, 7])),
            (&Range::Users, "", Value::Users(vec![])),
        ] {
            assert_eq!(range.parse(text, &user), Ok(value), "{text}");
        }
        for (range, text, part) in [
            (&percent, "0", "1 to 90"),
            (&percent, "91", "1 to 90"),
            (&percent, "-1", "1 to 90"),
            (&percent, "5.5", "1 to 90"),
            (&bytes, "16777215", "16 MiB to 4 GiB"),
            (&bytes, "5G", "16 MiB to 4 GiB"),
            (&bytes, "x", "16 MiB to 4 GiB"),
            (&rate, "65535", "64 KiB or more"),
            (&words, "Lazy", "model, lazy"),
            (&Range::Text, "a\nb", "any name"),
            (&Range::Text, "", "any name"),
            (&Range::Users, "nobody-here", "no user"),
        ] {
            let why = range.parse(text, &user).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn values_are_shown_with_their_unit() {
        for (range, value, text) in [
            (Range::Percent(1..=100), Value::Number(95), "95%"),
            (Range::Bytes(0..=1), Value::Number(1 << 20), "1 MiB"),
            (Range::Rate(1), Value::Number(0), "no limit"),
            (Range::Rate(1), Value::Number(1 << 20), "1 MiB a second"),
            (Range::Users, Value::Users(vec![]), "nobody"),
            (Range::Users, Value::Users(vec![1, 2]), "1,2"),
        ] {
            assert_eq!(range.show(&value), text);
        }
    }
}
