//! `plumb synth`: a model file of a published or given shape with random weights.

use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tensor::Encoding;

use crate::failure::usage;
use crate::synth::{self, Arch, PUBLISHED, Shape};
use crate::{places, progress};

/// Make a model with random weights at a published shape
///
/// Time and memory depend on a model's shape, not on its values, so speed can be measured without the real weights.
/// The same shape, encoding and seed always give the same file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shape to start from
    #[arg(value_name = "SHAPE", value_parser = clap::builder::PossibleValuesParser::new(PUBLISHED.iter().map(|s| s.name)))]
    shape: String,
    /// How the weights are stored
    #[arg(long, value_name = "E", default_value = "Q4_K", ignore_case = true,
          value_parser = clap::builder::PossibleValuesParser::new(Encoding::ALL.map(Encoding::name)))]
    encoding: String,
    /// The file to write [default: SHAPE-E.gguf here]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Start of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Another family than the shape's
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Another number of layers
    #[arg(long)]
    layers: Option<u32>,
    /// Another width
    #[arg(long)]
    hidden: Option<u32>,
    /// Another inner width of the feed-forward part
    #[arg(long)]
    ffn: Option<u32>,
    /// Another number of query heads
    #[arg(long)]
    heads: Option<u32>,
    /// Another number of key and value heads
    #[arg(long)]
    kv_heads: Option<u32>,
    /// Another width of a head
    #[arg(long)]
    head_dim: Option<u32>,
    /// Another size of the vocabulary
    #[arg(long)]
    vocab: Option<u32>,
}

/// Writes the file under a temporary name and moves it into place, so that a full disk leaves no half model.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let shape = shape(args)?;
    let encoding = Encoding::ALL.into_iter().find(|e| e.name().eq_ignore_ascii_case(&args.encoding));
    let encoding = encoding.context("no such encoding")?;
    let file = args.output.clone().unwrap_or_else(|| format!("{}-{}.gguf", args.shape, encoding).into());
    if file.is_dir() {
        return Err(usage(format!("{}: expected a file to write, found a folder", file.display())));
    }
    let total = synth::tensors(&shape, encoding)?.iter().map(|tensor| tensor.bytes()).sum();

    let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    places::create_folder(folder)?;
    let named = || file.display().to_string();
    // A temporary file is its owner's alone unless told otherwise; a model is as readable as any other file.
    let mut builder = tempfile::Builder::new();
    builder.prefix(".plumb-synth-").permissions(Permissions::from_mode(0o666));
    let mut partial = builder.tempfile_in(folder).with_context(named)?;
    let bar = progress::bytes(file.display().to_string(), total);
    let mut out = BufWriter::with_capacity(1 << 20, partial.as_file_mut());
    synth::write(&mut out, &shape, encoding, args.seed, &bar).with_context(named)?;
    out.flush().with_context(named)?;
    drop(out);
    partial.as_file().sync_all().with_context(named)?;
    partial.persist(&file).map_err(|error| error.error).with_context(named)?;
    bar.finish_and_clear();
    println!("{}", file.display());
    Ok(())
}

/// The published shape with the changes that were asked for.
fn shape(args: &Args) -> anyhow::Result<Shape> {
    let mut shape = PUBLISHED.iter().find(|shape| shape.name == args.shape).context("no such shape")?.clone();
    let changes = [
        (&mut shape.layers, args.layers),
        (&mut shape.hidden, args.hidden),
        (&mut shape.ffn, args.ffn),
        (&mut shape.heads, args.heads),
        (&mut shape.kv_heads, args.kv_heads),
        (&mut shape.head_dim, args.head_dim),
        (&mut shape.vocab, args.vocab),
    ];
    for (size, change) in changes {
        *size = change.unwrap_or(*size);
    }
    if let Some(arch) = args.arch.filter(|&arch| arch != shape.arch) {
        shape.arch = arch;
        // Llama's rotary scaling is its own.
        shape.llama3_factor = shape.llama3_factor.filter(|_| arch == Arch::Llama);
    }
    shape.check()?;
    Ok(shape)
}
