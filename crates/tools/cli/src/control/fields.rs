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
