//! The rules, each a row: a name and a function from the tree to findings. A new rule is one row and one test.

use std::collections::BTreeMap;

use anyhow::Context;
use toml::{Table, Value};

use super::lexer::{code_only, lines_with_word};
use super::tree::Tree;

type Findings = anyhow::Result<Vec<String>>;

/// One rule of the house.
pub(crate) struct Rule {
    /// What stands before each finding.
    pub(crate) name: &'static str,
    /// The findings in a tree; an error if the tree cannot be understood at all.
    pub(crate) check: fn(&Tree) -> Findings,
}

/// Every rule.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: "arrows", check: arrows },
    Rule { name: "architecture", check: in_architecture },
    Rule { name: "module note", check: module_notes },
    Rule { name: "length", check: lengths },
    Rule { name: "unsafe", check: unsafe_places },
    Rule { name: "left over", check: left_over },
];

/// Who may depend on whom, by folder, outside dev-dependencies. A crate that is not here is a finding.
const ARROWS: &[(&str, &[&str])] = &[
    ("cli", &["server", "lab", "engine", "cpu", "cuda", "tensor"]),
    ("server", &["engine"]),
    ("lab", &["engine", "tensor"]),
    ("engine", &["tensor"]),
    ("cpu", &["tensor"]),
    ("cuda", &["tensor"]),
    ("tensor", &[]),
    ("conformance", &["tensor"]),
    ("xtask", &[]),
];

/// Where `unsafe` may stand: folders end with a slash.
const UNSAFE_PLACES: &[&str] = &["cpu/", "cuda/", "tensor/src/map.rs"];

/// The longest a file written by hand may be, in lines.
const MAX_LINES: usize = 1000;

/// What people write by hand, by ending.
const HAND_WRITTEN: &[&str] = &[".rs", ".py", ".md", ".sh", ".html", ".css", ".js"];

/// Words that say the work is not done.
const LEFT_OVER: &[&str] = &["todo!(", "unimplemented!(", "dbg!(", "#[ignore]"];

/// Every member of the workspace: folder and manifest.
fn members(tree: &Tree) -> anyhow::Result<Vec<(String, Table)>> {
    let root: Table = tree.file("Cargo.toml").context("no Cargo.toml at the root")?.parse()?;
    let listed = root.get("workspace").and_then(|w| w.get("members")).and_then(Value::as_array);
    let listed = listed.context("Cargo.toml: no workspace.members")?;
    let folders = listed.iter().map(|m| m.as_str().context("Cargo.toml: a member that is not a text"));
    folders
        .map(|folder| {
            let folder = folder?;
            let path = format!("{folder}/Cargo.toml");
            let manifest = tree.file(&path).with_context(|| format!("{path} is missing"))?;
            Ok((folder.to_owned(), manifest.parse().with_context(|| path)?))
        })
        .collect()
}

/// The dependency tables of a manifest that bind what ships: not dev-dependencies.
fn shipped_dependencies(manifest: &Table) -> Vec<&Table> {
    let mut tables = Vec::new();
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(|t| t.values());
    for scope in std::iter::once(manifest).chain(targets.filter_map(Value::as_table)) {
        for kind in ["dependencies", "build-dependencies"] {
            tables.extend(scope.get(kind).and_then(Value::as_table));
        }
    }
    tables
}

/// No crate depends on one that DESIGN's arrows do not lead to.
fn arrows(tree: &Tree) -> Findings {
    let members = members(tree)?;
    let mut folder_of = BTreeMap::new();
    for (folder, manifest) in &members {
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(Value::as_str);
        folder_of
            .insert(name.with_context(|| format!("{folder}/Cargo.toml: no package.name"))?, folder.as_str());
    }
    let root: Table = tree.file("Cargo.toml").unwrap_or_default().parse()?;
    let shared = root.get("workspace").and_then(|w| w.get("dependencies")).and_then(Value::as_table);

    let mut findings = Vec::new();
    for (folder, manifest) in &members {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| name == folder) else {
            findings.push(format!("{folder}: no row in the table of arrows"));
            continue;
        };
        for (key, value) in shipped_dependencies(manifest).into_iter().flatten() {
            let inherits = value.get("workspace").and_then(Value::as_bool) == Some(true);
            let value = if inherits { shared.and_then(|s| s.get(key)).unwrap_or(value) } else { value };
            let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
            if let Some(target) = folder_of.get(package)
                && !allowed.contains(target)
            {
                findings.push(format!("{folder} depends on {target}; allowed: {}", list(allowed)));
            }
        }
    }
    Ok(findings)
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing of ours".to_owned() } else { names.join(", ") }
}

/// Every crate is described in ARCHITECTURE.md.
fn in_architecture(tree: &Tree) -> Findings {
    let Some(text) = tree.file("ARCHITECTURE.md") else {
        return Ok(vec!["ARCHITECTURE.md is missing".to_owned()]);
    };
    let absent = members(tree)?.into_iter().filter(|(folder, _)| lines_with_word(text, folder).is_empty());
    Ok(absent.map(|(folder, _)| format!("{folder} is not in ARCHITECTURE.md")).collect())
}

/// Every Rust file says at its top what it is for.
fn module_notes(tree: &Tree) -> Findings {
    let silent = tree.rust().filter(|(_, text)| {
        // A shebang-like inner attribute such as `#![no_main]` may stand first.
        let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
        !first.is_some_and(|line| line.starts_with("//!") && line.len() > "//! ".len())
    });
    Ok(silent.map(|(path, _)| format!("{path}: does not start with `//!`")).collect())
}

/// No hand-written file is longer than a reader's patience.
fn lengths(tree: &Tree) -> Findings {
    let hand_written = tree.files().filter(|(path, _)| HAND_WRITTEN.iter().any(|end| path.ends_with(end)));
    let counted = hand_written.map(|(path, text)| (path, text.lines().count()));
    let long = counted.filter(|&(_, lines)| lines > MAX_LINES);
    Ok(long.map(|(path, lines)| format!("{path}: {lines} lines, at most {MAX_LINES}")).collect())
}

/// `unsafe` stands only where ARCHITECTURE.md allows it.
fn unsafe_places(tree: &Tree) -> Findings {
    let elsewhere = tree.rust().filter(|(path, _)| {
        !UNSAFE_PLACES
            .iter()
            .any(|place| if place.ends_with('/') { path.starts_with(place) } else { path == place })
    });
    let found = elsewhere.flat_map(|(path, text)| {
        let lines = lines_with_word(&code_only(text), "unsafe");
        lines.into_iter().map(move |line| format!("{path}:{line}: only in {}", UNSAFE_PLACES.join(", ")))
    });
    Ok(found.collect())
}

/// Nothing unfinished or switched off lands.
fn left_over(tree: &Tree) -> Findings {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        for (index, line) in code_only(text).lines().enumerate() {
            if let Some(word) = LEFT_OVER.iter().find(|word| line.contains(*word)) {
                findings.push(format!("{path}:{}: {word}", index + 1));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = r#"
        [workspace]
        members = ["tensor", "engine", "cpu"]
        [workspace.dependencies]
        tensor = { package = "plumb-tensor", path = "tensor" }
        engine = { package = "plumb-engine", path = "engine" }
    "#;
    const TENSOR: &str = "[package]\nname = \"plumb-tensor\"\n[dependencies]\nhalf = \"2\"";
    const CPU: &str = "[package]\nname = \"plumb-cpu\"\n[dependencies]\ntensor.workspace = true";

    fn workspace(engine: &str) -> Tree {
        let engine = format!("[package]\nname = \"plumb-engine\"\n{engine}");
        Tree::of(&[
            ("Cargo.toml", ROOT),
            ("tensor/Cargo.toml", TENSOR),
            ("cpu/Cargo.toml", CPU),
            ("engine/Cargo.toml", &engine),
        ])
    }

    #[test]
    fn forward_arrows_and_dev_dependencies_are_allowed() {
        let engine =
            "[dependencies]\ntensor.workspace = true\n[dev-dependencies]\nplumb-cpu = { path = \"../cpu\" }";
        assert_eq!(arrows(&workspace(engine)).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_backward_arrow_is_found_however_it_is_written() {
        let want = ["engine depends on cpu; allowed: tensor"];
        for engine in [
            "[dependencies]\nplumb-cpu = { path = \"../cpu\" }",
            "[dependencies]\nfast = { package = \"plumb-cpu\", path = \"../cpu\" }",
            "[dependencies.plumb-cpu]\npath = \"../cpu\"",
            "[build-dependencies]\nplumb-cpu = \"0.1\"",
            "[target.'cfg(unix)'.dependencies]\nplumb-cpu = { path = \"../cpu\" }",
        ] {
            assert_eq!(arrows(&workspace(engine)).unwrap(), want, "{engine}");
        }
    }

    #[test]
    fn an_inherited_backward_arrow_is_found() {
        let tree = Tree::of(&[
            ("Cargo.toml", ROOT),
            (
                "tensor/Cargo.toml",
                "[package]\nname = \"plumb-tensor\"\n[dependencies]\nengine.workspace = true",
            ),
            ("cpu/Cargo.toml", CPU),
            ("engine/Cargo.toml", "[package]\nname = \"plumb-engine\""),
        ]);
        assert_eq!(arrows(&tree).unwrap(), ["tensor depends on engine; allowed: nothing of ours"]);
    }

    #[test]
    fn a_crate_without_arrows_is_found() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"extra\"]"),
            ("extra/Cargo.toml", "[package]\nname = \"extra\""),
        ]);
        assert_eq!(arrows(&tree).unwrap(), ["extra: no row in the table of arrows"]);
    }

    #[test]
    fn a_workspace_without_members_is_an_error() {
        assert!(arrows(&Tree::of(&[("Cargo.toml", "[package]\nname = \"x\"")])).is_err());
        assert!(arrows(&Tree::of(&[("Cargo.toml", "[workspace]\nmembers = [\"gone\"]")])).is_err());
    }

    #[test]
    fn a_crate_missing_from_architecture_is_found() {
        let files = |text| {
            Tree::of(&[
                ("Cargo.toml", "[workspace]\nmembers = [\"cpu\"]"),
                ("cpu/Cargo.toml", "[package]\nname = \"plumb-cpu\""),
                ("ARCHITECTURE.md", text),
            ])
        };
        assert_eq!(in_architecture(&files("about cpus")).unwrap(), ["cpu is not in ARCHITECTURE.md"]);
        assert_eq!(in_architecture(&files("`cpu` holds kernels")).unwrap(), Vec::<String>::new());
        assert_eq!(in_architecture(&Tree::of(&[])).unwrap(), ["ARCHITECTURE.md is missing"]);
    }

    #[test]
    fn a_module_without_a_note_is_found() {
        let tree = Tree::of(&[
            ("a/src/good.rs", "//! What it is for.\nfn f() {}"),
            ("a/src/attribute.rs", "#![no_main]\n//! What it is for."),
            ("a/src/none.rs", "fn f() {}\n//! late"),
            ("a/src/blank.rs", "//!\nfn f() {}"),
            ("a/src/empty.rs", ""),
            ("a/notes.md", "no rust"),
        ]);
        let want = ["a/src/blank.rs", "a/src/empty.rs", "a/src/none.rs"];
        assert_eq!(
            module_notes(&tree).unwrap(),
            want.map(|path| format!("{path}: does not start with `//!`"))
        );
    }

    #[test]
    fn a_long_file_is_found_and_data_is_not_counted() {
        let (limit, over) = ("x\n".repeat(1000), "x\n".repeat(1001));
        let tree = Tree::of(&[("a.rs", &limit), ("b.rs", &over), ("golden/c.json", &over), ("d.py", &over)]);
        assert_eq!(
            lengths(&tree).unwrap(),
            ["b.rs: 1001 lines, at most 1000", "d.py: 1001 lines, at most 1000"]
        );
    }

    #[test]
    fn unsafe_outside_its_places_is_found() {
        let code = "//! A note on unsafe.\n#![forbid(unsafe_code)]\nfn f() { unsafe { g(\"unsafe\") } }";
        let tree = Tree::of(&[
            ("cpu/src/lib.rs", code),
            ("tensor/src/map.rs", code),
            ("tensor/src/lib.rs", code),
            ("cpusimilar/src/lib.rs", "fn f() {} // unsafe"),
        ]);
        assert_eq!(
            unsafe_places(&tree).unwrap(),
            ["tensor/src/lib.rs:3: only in cpu/, cuda/, tensor/src/map.rs"]
        );
    }

    #[test]
    fn left_over_work_is_found_in_code_only() {
        let tree = Tree::of(&[
            ("a.rs", "fn f() {\n    todo!()\n}\n// todo!()"),
            ("b.rs", "#[ignore]\nfn g() { h(\"unimplemented!()\") }"),
        ]);
        assert_eq!(left_over(&tree).unwrap(), ["a.rs:2: todo!(", "b.rs:1: #[ignore]"]);
    }
}
