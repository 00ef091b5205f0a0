//! Who may depend on whom: `[workspace.metadata.edges]` and `[workspace.metadata.floors]` against `cargo metadata`.
//!
//! A crate's floor is the folder that it stands in (`crates/FLOOR/CRATE`).
//! Normal and build dependencies count; a test may use what it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use serde_json::Value;

use super::finding::Finding;
use crate::error::Error;

/// Crates that may contain `unsafe`, where the manifest says nothing.
const UNSAFE_ALLOWED: [&str; 8] = [
    "sys",
    "nvm",
    "block",
    "fuse",
    "interpose",
    "fd",
    "preload",
    "capi",
];

/// The workspace as the rules see it. Names are without the `shale-` prefix.
#[derive(Debug, Default)]
pub struct Graph {
    /// Allowed: crate → what it may depend on.
    pub allowed: BTreeMap<String, BTreeSet<String>>,
    /// Found: crate → workspace crates it depends on.
    pub found: BTreeMap<String, BTreeSet<String>>,
    /// Crates that may contain `unsafe`.
    pub unsafe_allowed: BTreeSet<String>,
    /// Floor → floors that its crates may depend on, beside their own. Empty: floors are not judged.
    pub floors: BTreeMap<String, BTreeSet<String>>,
    /// Crate → the folder that its folder stands in.
    pub floor_of: BTreeMap<String, String>,
    roots: Vec<CrateRoot>,
}

/// The file a crate's attributes are written in.
#[derive(Clone, Debug)]
pub struct CrateRoot {
    /// Name of its crate.
    pub crate_name: String,
    /// The file.
    pub path: PathBuf,
}

impl Graph {
    /// Asks cargo about the workspace at `root`.
    pub fn load(root: &Path) -> Result<Self, Error> {
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .no_deps()
            .exec()
            .map_err(|error| Error::Metadata(error.to_string()))?;
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let settings = &metadata.workspace_metadata;
        let edges = settings
            .get("edges")
            .and_then(Value::as_object)
            .ok_or_else(|| {
                Error::Metadata("the root manifest has no [workspace.metadata.edges]".into())
            })?;
        let mut graph = Self {
            unsafe_allowed: match settings.get("unsafe-allowed") {
                Some(listed) => strings(listed),
                None => UNSAFE_ALLOWED.map(String::from).into(),
            },
            ..Self::default()
        };
        for (name, targets) in edges {
            graph.allowed.insert(name.clone(), strings(targets));
        }
        let floors = settings.get("floors").and_then(Value::as_object);
        for (floor, below) in floors.into_iter().flatten() {
            graph.floors.insert(floor.clone(), strings(below));
        }
        for package in metadata.workspace_packages() {
            let name = short(package.name.as_str());
            let folder = package.manifest_path.parent();
            if let Some(floor) = folder.and_then(|folder| folder.parent()?.file_name()) {
                graph.floor_of.insert(name.clone(), floor.to_owned());
            }
            let inside = package.dependencies.iter().filter(|dependency| {
                dependency.path.is_some()
                    && matches!(
                        dependency.kind,
                        DependencyKind::Normal | DependencyKind::Build
                    )
            });
            graph.found.insert(
                name.clone(),
                inside.map(|dependency| short(&dependency.name)).collect(),
            );
            let products = package
                .targets
                .iter()
                .filter(|target| !target.is_test() && !target.is_custom_build());
            graph.roots.extend(products.map(|target| CrateRoot {
                crate_name: name.clone(),
                path: target.src_path.clone().into(),
            }));
        }
        Ok(graph)
    }

    /// Every crate of the workspace.
    pub fn crate_names(&self) -> Vec<String> {
        self.found.keys().cloned().collect()
    }

    /// Root files of libraries, programs, examples and benchmarks.
    pub fn crate_roots(&self) -> &[CrateRoot] {
        &self.roots
    }
}

fn short(package: &str) -> String {
    package.strip_prefix("shale-").unwrap_or(package).to_owned()
}

fn strings(value: &Value) -> BTreeSet<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(String::from).collect()
}

/// Edges and crates that are not in the list, and list entries for no crate.
pub fn check(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, targets) in &graph.found {
        let Some(allowed) = graph.allowed.get(name) else {
            findings.push(Finding::new(
                "Cargo.toml",
                format!("crate {name} is not in [workspace.metadata.edges]"),
            ));
            continue;
        };
        for target in targets.difference(allowed) {
            findings.push(Finding::new(
                manifest(graph, name),
                format!("edge {name} -> {target} is not in [workspace.metadata.edges]"),
            ));
        }
    }
    findings.extend(upwards(graph));
    for name in graph
        .allowed
        .keys()
        .filter(|name| !graph.found.contains_key(*name))
    {
        findings.push(Finding::new(
            "Cargo.toml",
            format!("[workspace.metadata.edges] lists {name}, and there is no such crate"),
        ));
    }
    findings
}

fn manifest(graph: &Graph, name: &str) -> String {
    let floor = graph.floor_of.get(name).map_or("", String::as_str);
    format!("crates/{floor}/{name}/Cargo.toml")
}

/// Edges to a floor that is not below the crate's own, and crates on no floor.
fn upwards(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    if graph.floors.is_empty() {
        return findings;
    }
    for (name, targets) in &graph.found {
        let floor = graph.floor_of.get(name).map_or("", String::as_str);
        let Some(below) = graph.floors.get(floor) else {
            let what = format!("crate {name} stands on no floor of [workspace.metadata.floors]");
            findings.push(Finding::new(manifest(graph, name), what));
            continue;
        };
        for target in targets {
            let of_target = graph.floor_of.get(target).map_or("", String::as_str);
            if of_target != floor && !below.contains(of_target) {
                let what = format!(
                    "edge {name} -> {target} goes from floor {floor} to {of_target}, which is not below it"
                );
                findings.push(Finding::new(manifest(graph, name), what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(allowed: &[(&str, &[&str])], found: &[(&str, &[&str])]) -> Graph {
        let map = |rows: &[(&str, &[&str])]| {
            let row = |(name, targets): &(&str, &[&str])| {
                (
                    name.to_string(),
                    targets.iter().map(|target| target.to_string()).collect(),
                )
            };
            rows.iter().map(row).collect()
        };
        Graph {
            allowed: map(allowed),
            found: map(found),
            ..Graph::default()
        }
    }

    #[test]
    fn allowed_edges_pass_and_need_not_be_used() {
        let graph = graph(&[("a", &["b"]), ("b", &[])], &[("a", &[]), ("b", &[])]);
        assert_eq!(check(&graph), []);
    }

    #[test]
    fn an_unlisted_edge_is_named() {
        let graph = graph(&[("a", &[]), ("b", &[])], &[("a", &["b"]), ("b", &[])]);
        let findings = check(&graph);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("a -> b"), "{findings:?}");
    }

    #[test]
    fn an_unlisted_crate_is_named() {
        let findings = check(&graph(&[], &[("a", &[])]));
        assert!(
            findings[0].what.contains("crate a is not in"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_listed_crate_that_is_gone_is_named() {
        let findings = check(&graph(&[("gone", &[])], &[]));
        assert!(findings[0].what.contains("lists gone"), "{findings:?}");
    }

    #[test]
    fn an_edge_to_a_higher_floor_is_named() {
        let mut graph = graph(
            &[("a", &["b"]), ("b", &["a"])],
            &[("a", &["b"]), ("b", &["a"])],
        );
        let below = |floors: &[&str]| floors.iter().map(|floor| floor.to_string()).collect();
        graph.floors = [("low".into(), below(&[])), ("high".into(), below(&["low"]))].into();
        graph.floor_of = [("a".into(), "low".into()), ("b".into(), "high".into())].into();
        let findings = check(&graph);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].what.contains("a -> b"), "{findings:?}");
        graph.floor_of.insert("b".into(), "low".into());
        assert_eq!(check(&graph), []);
        graph.floor_of.insert("b".into(), "nowhere".into());
        assert!(
            (check(&graph).iter()).any(|finding| finding.what.contains("no floor")),
            "a crate that stands in another folder"
        );
    }

    #[test]
    fn metadata_of_a_workspace_is_read() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"low\", \"high\"]\n\
             [workspace.metadata]\nunsafe-allowed = [\"low\"]\n\
             [workspace.metadata.edges]\nlow = []\nhigh = []\n",
        );
        let package =
            |name: &str| format!("[package]\nname = \"shale-{name}\"\nversion = \"0.0.0\"\n");
        write("low/Cargo.toml", &package("low"));
        write("low/src/lib.rs", "");
        write(
            "high/Cargo.toml",
            &(package("high") + "[dependencies]\nshale-low = { path = \"../low\" }\n"),
        );
        write("high/src/lib.rs", "");
        let graph = Graph::load(place.path()).unwrap();
        assert_eq!(graph.unsafe_allowed, BTreeSet::from(["low".to_string()]));
        assert_eq!(graph.crate_roots().len(), 2);
        let findings = check(&graph);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].what.contains("high -> low"));
    }
}
