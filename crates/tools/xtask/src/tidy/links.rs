//! Links of the documents: every relative one must lead to a file.

use std::path::Path;

use super::files;
use super::finding::Finding;

/// Links of the Markdown file at `path` that lead nowhere. A link that starts
/// with `/` is taken from `root`.
pub fn check(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let base = path.parent().unwrap_or(root);
    let place = files::relative(root, path);
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for link in links(line) {
            let Some(file) = file_of(&link) else { continue };
            let target = match file.strip_prefix('/') {
                Some(absolute) => root.join(absolute),
                None => base.join(&file),
            };
            if !target.exists() {
                findings.push(Finding::new(
                    format!("{place}:{}", number + 1),
                    format!("the link to {link} leads nowhere"),
                ));
            }
        }
    }
    findings
}

/// Targets of `[text](target)` and of `[name]: target`, outside `code`.
fn links(line: &str) -> Vec<String> {
    // Every second piece between backticks is code.
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
    let mut found = Vec::new();
    for (offset, _) in prose.match_indices("](") {
        let rest = &prose[offset + 2..];
        if let Some(end) = rest.find(')') {
            found.push(rest[..end].to_owned());
        }
    }
    if let Some((name, target)) = prose.split_once("]: ")
        && name.starts_with('[')
        && !name.contains("](")
    {
        found.push(target.to_owned());
    }
    let first_word = |link: &String| {
        link.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    found.iter().map(first_word).collect()
}

/// The file a link names, or nothing where it leads into this page or the web.
fn file_of(link: &str) -> Option<String> {
    let link = link.trim_matches(['<', '>']);
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let file = link.split('#').next().unwrap_or_default();
    (!file.is_empty()).then(|| file.replace("%20", " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found_and_others_are_not() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("docs")).unwrap();
        std::fs::write(place.path().join("README.md"), "").unwrap();
        let page = place.path().join("docs/page.md");
        let text = "[up](../README.md#top) [web](https://example.org/x.md) [here](#part)\n\
                    [gone](gone.md \"title\") and [root](/README.md)\n\
                    `[code](no.md)`\n```\n[fenced](no.md)\n```\n[ref]: also-gone.md\n";
        let findings = check(place.path(), &page, text);
        let places: Vec<_> = findings
            .iter()
            .map(|finding| finding.place.as_str())
            .collect();
        assert_eq!(places, ["docs/page.md:2", "docs/page.md:7"], "{findings:?}");
        assert!(findings[0].what.contains("gone.md"));
    }
}
