//! Folders that hold more files than a reader can take in.

use std::collections::BTreeMap;

use super::finding::Finding;

/// Source files that stand flat in one folder.
const FOLDER_FILES_MAX: usize = 20;

/// Folders with more source files than [`FOLDER_FILES_MAX`].
pub fn full<'p>(places: impl Iterator<Item = &'p str>) -> Vec<Finding> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for place in places {
        if let Some((folder, _)) = place.rsplit_once('/') {
            *counts.entry(folder).or_default() += 1;
        }
    }
    let full = counts
        .into_iter()
        .filter(|(_, count)| *count > FOLDER_FILES_MAX);
    full.map(|(folder, count)| {
        let what = format!("{count} source files flat in one folder, at most {FOLDER_FILES_MAX}");
        Finding::new(folder, what)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_folder_is_found_and_its_folders_are_not_counted() {
        let mut places: Vec<String> = (0..FOLDER_FILES_MAX).map(|n| format!("a/{n}.rs")).collect();
        places.push("a/b/c.rs".into());
        assert_eq!(full(places.iter().map(String::as_str)), []);
        places.push("a/last.rs".into());
        assert_eq!(full(places.iter().map(String::as_str))[0].place, "a");
    }
}
