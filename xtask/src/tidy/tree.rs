//! The work tree as the rules see it: paths and texts. Tests make one up; `Tree::read` takes the real one from git.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// Every text file that git tracks or would track, by its path from the root.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the work tree at `root`: tracked files and new ones that git does not ignore. Binary files are left out.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Tree> {
        let listing = crate::command::output(
            Command::new("git")
                .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
                .current_dir(root),
        )?;
        let mut tree = Tree::default();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            if !full.is_file() {
                continue; // deleted in the work tree, or a link to a folder
            }
            let bytes = std::fs::read(&full).with_context(|| full.display().to_string())?;
            if let Ok(text) = String::from_utf8(bytes) {
                tree.files.insert(path.to_owned(), text);
            }
        }
        Ok(tree)
    }

    /// A made-up tree.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }

    /// Path and text of every file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Path and text of every Rust source file.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The text of one file.
    pub(crate) fn file(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}
