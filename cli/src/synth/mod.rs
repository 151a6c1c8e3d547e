//! Models of any shape with random weights: what time and memory a model takes depends on its shape, not on its values.
//!
//! `shape` says what tensors there are, `fill` makes their bytes, `vocabulary` a tokenizer, `gguf` writes the file. It does
//! not know how a model is run.

mod fill;
mod gguf;
mod shape;
mod vocabulary;

use std::io::Write;

use indicatif::ProgressBar;
use tensor::Encoding;

pub(crate) use shape::{Arch, PUBLISHED, Shape};

/// The tensors of a model of this shape, weights in `encoding`, everything else in F32.
pub(crate) fn tensors(shape: &Shape, encoding: Encoding) -> anyhow::Result<Vec<gguf::TensorInfo>> {
    shape.tensors(encoding)
}

/// Writes the whole model to `out`. The same shape, encoding and seed give the same bytes.
pub(crate) fn write(
    out: &mut impl Write,
    shape: &Shape,
    encoding: Encoding,
    seed: u64,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let tensors = tensors(shape, encoding)?;
    let mut metadata = shape.metadata(encoding);
    metadata.extend(vocabulary::metadata(shape.vocab, shape.arch));
    let mut writer = gguf::Writer::begin(out, &metadata, &tensors)?;
    for (index, tensor) in tensors.iter().enumerate() {
        let mut source = fill::Source::new(seed, index as u64, tensor);
        writer.tensor(tensor, |chunk| {
            source.next(chunk);
            bar.inc(chunk.len() as u64);
        })?;
    }
    Ok(())
}
