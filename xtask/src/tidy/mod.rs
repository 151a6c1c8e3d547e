//! `cargo xtask tidy`: the rules of ARCHITECTURE.md and STYLE.md that a program can check.
//!
//! Reads the tree once (`tree`), then asks every row of `rules::RULES` for findings.

mod lexer;
mod rules;
mod tree;

use anyhow::bail;

/// Checks the work tree; prints each finding and fails if there is one.
pub(crate) fn run() -> anyhow::Result<()> {
    let tree = tree::Tree::read(&crate::command::root())?;
    let mut count = 0;
    for rule in rules::RULES {
        for finding in (rule.check)(&tree)? {
            eprintln!("{}: {finding}", rule.name);
            count += 1;
        }
    }
    if count > 0 {
        bail!("tidy: {count} finding(s)");
    }
    println!("tidy: {} rules, {} files, nothing found", rules::RULES.len(), tree.files().count());
    Ok(())
}
