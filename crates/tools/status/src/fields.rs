//! Fields of what a daemon says of itself, which is JSON.

use serde_json::Value;
use shale_sys::size;

/// A number; 0 if it is not there.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

/// A text; `?` if it is not there.
pub fn word<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or("?")
}

/// A number of bytes, as people read it.
pub fn bytes(value: &Value, key: &str) -> String {
    size::show(number(value, key))
}

/// The items of a list; none if it is not there.
pub fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value[key].as_array().into_iter().flatten()
}

/// A number of things, whose name in the singular it is: "1 file", "2 files".
pub fn count(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {name}{plural}")
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
