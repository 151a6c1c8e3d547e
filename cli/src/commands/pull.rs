//! `plumb pull`: models onto this machine.

use crate::failure::usage;
use crate::models::{self, catalogue};
use crate::places::Places;

/// Fetch models and print where they lie
///
/// Known models go to the models folder ($PLUMB_MODELS, else `models` in plumb's cache) and are checked against their
/// hash; a repository of the Hugging Face hub goes to the hub's own cache. An interrupted fetch goes on where it
/// stopped.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Known models, or repositories of the hub as OWNER/REPO or OWNER/REPO/FILE
    #[arg(value_name = "NAME|REPO")]
    names: Vec<String>,
    /// Every known model
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Show the known models and where they would lie
    #[arg(long, conflicts_with_all = ["names", "all"])]
    list: bool,
}

/// Fetches each; the first failure ends it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    if args.list {
        for known in catalogue::KNOWN {
            let file = models::file_of(known, &places);
            let state = if file.exists() { "here" } else { "not here" };
            println!("{:20} {:>5} MB  {:8}  {}", known.name, known.bytes / 1_000_000, state, known.about);
        }
        return Ok(());
    }
    if args.names.is_empty() && !args.all {
        return Err(usage(format!(
            "which model? known: {}; or OWNER/REPO, --all, --list",
            catalogue::names()
        )));
    }
    let all = catalogue::KNOWN.iter().filter(|_| args.all).map(|known| known.name);
    for name in args.names.iter().map(String::as_str).chain(all) {
        println!("{}", models::pull(name, &places)?.display());
    }
    Ok(())
}
