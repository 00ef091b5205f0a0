//! Keys of `status` as the release before called them: beside the new ones for one release, for scripts that read them.

use serde_json::{Map, Value};

/// Each key with its old name.
const OLD_KEYS: [(&str, &str); 12] = [
    ("aborted_bytes", "vain_bytes"),
    ("backref_misses", "missed_owners"),
    ("contended_inodes", "bouncing"),
    ("detached_clients", "departed"),
    ("direct_to_tier_bytes", "straight_bytes"),
    ("evacuating", "emptying"),
    ("inode_scans", "looks"),
    ("pinned_bytes", "waiting_bytes"),
    ("pooled_log_bytes", "spare_log_bytes"),
    ("space_wait_max_ns", "longest_wait_ns"),
    ("space_waits", "waits"),
    ("tail_cache_hits", "kept_reads"),
];

/// Adds the old names to each object of a status.
pub(super) fn add(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(add);
            add_to(fields);
        }
        Value::Array(items) => items.iter_mut().for_each(add),
        _ => {}
    }
}

fn add_to(fields: &mut Map<String, Value>) {
    for (new, old) in OLD_KEYS {
        if let Some(value) = fields.get(new).cloned() {
            let before = fields.insert(old.to_owned(), value);
            assert!(before.is_none(), "{old} is a key of its own");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn old_names_are_beside_the_new_ones_at_every_depth() {
        let mut status = json!({
            "migration": {"space_waits": 3, "up_bytes": 1},
            "tiers": [{"devices": [{"evacuating": true}]}],
            "detached_clients": [{"pid": 7}],
        });
        add(&mut status);
        assert_eq!(status["migration"]["waits"], 3);
        assert_eq!(status["migration"]["space_waits"], 3);
        assert_eq!(status["tiers"][0]["devices"][0]["emptying"], true);
        assert_eq!(status["departed"], status["detached_clients"]);
        assert_eq!(status["migration"].as_object().unwrap().len(), 3);
    }
}
