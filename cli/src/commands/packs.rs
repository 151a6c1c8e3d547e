//! `plumb pack`, `verify`, `ls`, `rm`: prepared weights, in the cache and elsewhere.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use engine::open::{self, pack_name};
use serde::Serialize;
use tensor::reservoir::{Reservoir, Source};

use crate::failure::usage;
use crate::opening::Watch;
use crate::places::{Places, create_folder};
use crate::{models, progress};

/// Prepare a model's weights
///
/// `plumb run` does so by itself on first use. The file that this writes is a model of its own: it can be named in place of
/// the one it was made from, moved, and shared by any number of processes.
#[derive(clap::Args)]
pub(crate) struct PackArgs {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// The file to write [default: the cache]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the pack and prints where it lies.
pub(crate) fn pack(args: &PackArgs) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    let path = models::resolve(&args.model, &places)?;
    let target = match &args.output {
        Some(file) if file.is_dir() => {
            return Err(usage(format!("{}: expected a file to write, found a folder", file.display())));
        }
        Some(file) => file.clone(),
        None => {
            create_folder(&places.packs)?;
            places.packs.join(format!("{}.plumb", pack_name(&path)))
        }
    };
    let mut watch = Watch::new(&path);
    open::write(&path, &target, &mut |event| watch.on(event))?;
    writeln!(std::io::stdout(), "{}", target.display()).context("standard output")
}

/// Read prepared weights and their source in full and compare them with their checksums
#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// A .plumb file, or a model whose pack lies in the cache [default: every pack of the cache]
    model: Option<String>,
}

/// Verifies each; all are looked at before a failure ends it.
pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    let packs = match &args.model {
        Some(name) => vec![pack_of(name, &places)?],
        None => in_cache(&places)?,
    };
    let mut failed = 0;
    for pack in &packs {
        match verify_one(pack) {
            Ok(()) => writeln!(std::io::stdout(), "{}: sound", pack.display()).context("standard output")?,
            Err(error) => {
                failed += 1;
                progress::note(format!("{error:#}"));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} packs failed", packs.len());
    }
    Ok(())
}

fn verify_one(pack: &Path) -> anyhow::Result<()> {
    let weights = Reservoir::open(pack)?;
    let bar = progress::bytes(format!("verifying {}", pack.display()), weights.len_bytes());
    weights.verify(&mut |done, _| bar.set_position(done))?;
    let source = weights.source();
    if source.files.iter().all(|file| Path::new(&file.path).exists()) {
        bar.set_length(source.len_bytes());
        source.verify(&mut |done, _| bar.set_position(done))?;
    } else {
        progress::note(format!(
            "{}: its source is no longer where it was, so only the pack was read",
            pack.display()
        ));
    }
    bar.finish_and_clear();
    Ok(())
}

/// List the prepared weights in the cache
#[derive(clap::Args)]
pub(crate) struct LsArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// One pack of the cache.
#[derive(Serialize)]
struct Row {
    name: String,
    bytes: u64,
    /// `current`, `stale` (its source has changed), `orphaned` (its source is gone), or why it cannot be used.
    state: String,
    source: String,
}

/// Prints a line for each.
pub(crate) fn ls(args: &LsArgs) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    let rows: Vec<Row> = in_cache(&places)?.iter().map(|pack| row(pack)).collect();
    let mut out = std::io::stdout().lock();
    if args.json {
        return writeln!(out, "{}", serde_json::to_string(&rows)?).context("standard output");
    }
    for row in &rows {
        writeln!(out, "{:>8.1} MB  {:8}  {}  {}", row.bytes as f64 / 1e6, row.state, row.name, row.source)
            .context("standard output")?;
    }
    let total: u64 = rows.iter().map(|row| row.bytes).sum();
    progress::note(format!(
        "{} packs, {:.1} MB, in {}",
        rows.len(),
        total as f64 / 1e6,
        places.packs.display()
    ));
    Ok(())
}

fn row(pack: &Path) -> Row {
    let name = pack.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = std::fs::metadata(pack).map_or(0, |m| m.len());
    let weights = match Reservoir::open(pack) {
        Ok(weights) => weights,
        Err(error) => return Row { name, bytes, state: error.to_string(), source: String::new() },
    };
    let files: Vec<PathBuf> = weights.source().files.iter().map(|file| file.path.clone().into()).collect();
    let state = match Source::of(&files) {
        Ok(now) if now.is_same(weights.source()) => "current",
        Ok(_) => "stale",
        Err(_) => "orphaned",
    };
    let source = files.first().map(|file| file.display().to_string()).unwrap_or_default();
    Row { name, bytes, state: state.into(), source }
}

/// Delete prepared weights from the cache; models stay
#[derive(clap::Args)]
pub(crate) struct RmArgs {
    /// Packs by the name that `plumb ls` shows, or models
    #[arg(value_name = "NAME|MODEL")]
    names: Vec<String>,
    /// Every pack
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

/// Deletes each and prints it. Processes that have one mapped keep it until they end.
pub(crate) fn rm(args: &RmArgs) -> anyhow::Result<()> {
    if args.names.is_empty() && !args.all {
        return Err(usage("which packs? `plumb ls` lists them; --all means every one"));
    }
    let places = Places::from_env()?;
    let packs = if args.all {
        in_cache(&places)?
    } else {
        args.names.iter().map(|name| pack_of(name, &places)).collect::<anyhow::Result<_>>()?
    };
    for pack in packs {
        if pack.parent() != Some(&places.packs) {
            return Err(usage(format!("{}: not in the cache; plumb deletes only there", pack.display())));
        }
        std::fs::remove_file(&pack).with_context(|| pack.display().to_string())?;
        let stem = pack.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // What lies beside it may not be there.
        for end in ["lock", "pages"] {
            let _ = std::fs::remove_file(places.packs.join(format!(".{stem}.{end}")));
        }
        writeln!(std::io::stdout(), "{}", pack.display()).context("standard output")?;
    }
    Ok(())
}

/// Every pack of the cache, by name.
fn in_cache(places: &Places) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(&places.packs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| places.packs.display().to_string()),
    };
    let mut packs: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "plumb"))
        .filter(|path| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.'))
        .collect();
    packs.sort();
    Ok(packs)
}

/// The pack that `name` means: a `.plumb` file, a pack's name in the cache, or the pack of a model.
fn pack_of(name: &str, places: &Places) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() && open::is_pack(path)? {
        return Ok(path.to_path_buf());
    }
    let named = places.packs.join(format!("{}.plumb", name.trim_end_matches(".plumb")));
    if path.components().count() == 1 && named.exists() {
        return Ok(named);
    }
    let model = models::find(name, places).unwrap_or_else(|| path.to_path_buf());
    let pack = places.packs.join(format!("{}.plumb", pack_name(&model)));
    if pack.exists() {
        return Ok(pack);
    }
    // A model that is gone may have left its pack.
    let of_stem = |pack: &PathBuf| {
        let source =
            Reservoir::open(pack).ok().and_then(|w| w.source().files.first().map(|f| f.path.clone()));
        source.is_some_and(|source| Path::new(&source).file_stem().is_some_and(|stem| stem == name))
    };
    let left: Vec<PathBuf> = in_cache(places)?.into_iter().filter(of_stem).collect();
    match <[PathBuf; 1]>::try_from(left) {
        Ok([pack]) => Ok(pack),
        Err(_) => bail!("{name}: no pack of that name or model in {}", places.packs.display()),
    }
}
