//! The text of a volume file with other values, and with the comments, the order and the spacing that it had.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

/// By which key a table of an array is the same one as before: the path of a device, the directory of NVM.
const NAMES: [&str; 2] = ["path", "dir"];

/// `old` with the values of `new`; `None`: one of them is no TOML.
pub(super) fn changed(old: &str, new: &str) -> Option<String> {
    let mut old: DocumentMut = old.parse().ok()?;
    let new: DocumentMut = new.parse().ok()?;
    change_table(old.as_table_mut(), new.as_table());
    Some(old.to_string())
}

fn change_table(old: &mut Table, new: &Table) {
    old.retain(|key, _| new.contains_key(key));
    for (key, wanted) in new {
        match (old.get_mut(key), wanted) {
            (Some(Item::Value(there)), Item::Value(wanted)) => change_value(there, wanted),
            (Some(Item::Table(there)), Item::Table(wanted)) => change_table(there, wanted),
            (Some(Item::ArrayOfTables(there)), Item::ArrayOfTables(wanted)) => {
                *there = change_array(there, wanted);
            }
            _ => {
                old.insert(key, unplaced(wanted));
            }
        }
    }
}

/// The value itself, without the ways in which it can be written.
fn plain(value: &Value) -> Option<toml::Value> {
    let value = value.clone().decorated("", "");
    let table: toml::Table = toml::from_str(&format!("v = {value}")).ok()?;
    table.get("v").cloned()
}

fn change_value(there: &mut Value, wanted: &Value) {
    if plain(there) == plain(wanted) {
        return;
    }
    let decor = there.decor().clone();
    *there = wanted.clone();
    *there.decor_mut() = decor;
}

fn change_array(old: &ArrayOfTables, new: &ArrayOfTables) -> ArrayOfTables {
    let name = |table: &Table| {
        let mut names = NAMES.iter().filter_map(|key| table.get(key)?.as_str());
        names.next().map(str::to_owned)
    };
    let mut all = ArrayOfTables::new();
    for (n, wanted) in new.iter().enumerate() {
        let same = match name(wanted) {
            Some(wanted) => old
                .iter()
                .find(|there| name(there).as_ref() == Some(&wanted)),
            None => old.get(n),
        };
        // One entry alone is the same one, wherever it is now.
        let same = same.or_else(|| old.get(0).filter(|_| old.len() == 1 && new.len() == 1));
        let table = match same {
            Some(there) => {
                let mut there = there.clone();
                change_table(&mut there, wanted);
                there
            }
            None => unplaced_table(wanted),
        };
        all.push(table);
    }
    all
}

/// What comes from another text has no place in this one: it stands behind what is before it in its table.
fn unplaced(item: &Item) -> Item {
    match item {
        Item::Table(table) => Item::Table(unplaced_table(table)),
        Item::ArrayOfTables(tables) => {
            let mut all = ArrayOfTables::new();
            for table in tables {
                all.push(unplaced_table(table));
            }
            Item::ArrayOfTables(all)
        }
        other => other.clone(),
    }
}

fn unplaced_table(table: &Table) -> Table {
    let mut table = table.clone();
    table.set_position(None);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
# Which media.
name = \"v\" # for people
log_bytes = 0x1000000
trusted_uids = [
    1000, # anna
]
migrate_at_percent = 90

# The one NVM.
[[nvm]]
dir = \"n\"
size_bytes = 1

# The first SSD.
[[ssd]]
path = \"a\" # behind the door

# The second SSD.
[[ssd]]
path = \"b\"
";

    #[test]
    fn only_what_is_another_value_changes() {
        let same = "name = \"v\"\nlog_bytes = 16777216\ntrusted_uids = [1000]\nmigrate_at_percent = 90\n\
                    [[nvm]]\ndir = \"n\"\nsize_bytes = 1\n[[ssd]]\npath = \"a\"\n[[ssd]]\npath = \"b\"\n";
        assert_eq!(changed(OLD, same).unwrap(), OLD);
        let less = same.replace("migrate_at_percent = 90\n", "");
        let less = changed(OLD, &less).unwrap();
        assert_eq!(less, OLD.replace("migrate_at_percent = 90\n", ""));
        let other = same.replace("\"v\"", "\"w\"");
        let other = changed(OLD, &other).unwrap();
        assert_eq!(other, OLD.replace("\"v\"", "\"w\""));
        let larger = same.replace("size_bytes = 1\n", "size_bytes = 2\n");
        let larger = changed(OLD, &larger).unwrap();
        assert_eq!(larger, OLD.replace("size_bytes = 1\n", "size_bytes = 2\n"));
    }

    #[test]
    fn entries_come_and_go_and_the_others_keep_their_comments() {
        let new = "name = \"v\"\nlog_bytes = 16777216\ntrusted_uids = [1000]\nmigrate_at_percent = 80\n\
                   digest_at_percent = 5\n[next_mount]\nlog_bytes = 5\n\
                   [[nvm]]\ndir = \"n\"\nsize_bytes = 1\n[[ssd]]\npath = \"b\"\n[[ssd]]\npath = \"c\"\n[[hdd]]\npath = \"d\"\n";
        let text = changed(OLD, new).unwrap();
        let all = |text: &str| toml::from_str::<toml::Table>(text).unwrap();
        assert_eq!(all(&text), all(new), "{text}");
        for kept in [
            "# Which media.",
            "# for people",
            "# anna",
            "# The one NVM.",
            "# The second SSD.",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        assert!(
            !text.contains("The first SSD") && !text.contains("door"),
            "{text}"
        );
        assert!(changed("x = ", new).is_none());
    }
}
