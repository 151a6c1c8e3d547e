//! Opening a model with a bar while its weights are prepared, and the device it runs on.
//!
//! It does not know what the model is opened for.

use std::path::Path;

use anyhow::Context;
use cpu::{CpuDevice, Isa};
use engine::open::{Event, Opened};
use engine::prepare::{self, ModelBundle, Preparation};
use engine::tokenizer::TokenizerSource;
use indicatif::ProgressBar;
use tensor::files::WeightFile;
use tensor::op::Kind;
use tensor::reservoir::Reservoir;

use crate::failure::usage;
use crate::places::Places;
use crate::progress;

/// Opens the model at `path`; a pack is kept in the cache.
pub(crate) fn open(path: &Path, places: &Places) -> anyhow::Result<Opened> {
    let mut watch = Watch::new(path);
    Ok(engine::open::open(path, Some(&places.packs), &mut |event| watch.on(event))?)
}

/// What a model's file says, without its weights.
pub(crate) struct Description {
    pub(crate) bundle: ModelBundle,
    pub(crate) tokenizer: Option<TokenizerSource>,
    /// Name and form of each tensor as prepared, in the order a step meets them.
    pub(crate) tensors: Vec<(String, Kind)>,
}

/// Reads a model's description. Nothing is prepared or kept.
pub(crate) fn describe(path: &Path) -> anyhow::Result<Description> {
    if engine::open::is_pack(path)? {
        let weights = Reservoir::open(path)?;
        let tensors = weights.entries().iter().map(|entry| (entry.name.clone(), entry.kind)).collect();
        return Ok(Description {
            bundle: weights.model()?,
            tokenizer: prepare::tokenizer(&weights)?,
            tensors,
        });
    }
    let Preparation { bundle, tokenizer, tensors, .. } = prepare::prepare(&WeightFile::open(path)?)?;
    let tensors = tensors.into_iter().map(|tensor| (tensor.name, tensor.kind)).collect();
    Ok(Description { bundle, tokenizer, tensors })
}

/// Shows what happens while weights are prepared.
pub(crate) struct Watch {
    name: String,
    bar: Option<ProgressBar>,
}

impl Watch {
    /// For the model at `path`.
    pub(crate) fn new(path: &Path) -> Self {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Watch { name, bar: None }
    }

    /// Shows an event.
    pub(crate) fn on(&mut self, event: Event<'_>) {
        let (done, total) = match event {
            Event::Note(text) => return progress::note(text),
            Event::Packing { done, total } => (done, total),
            _ => return,
        };
        let bar = self.bar.get_or_insert_with(|| progress::bytes(format!("preparing {}", self.name), total));
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// The kernel table that `PLUMB_ISA` names, else the best one.
pub(crate) fn isa() -> anyhow::Result<Isa> {
    Ok(match std::env::var("PLUMB_ISA") {
        Ok(name) if !name.is_empty() => Isa::from_name(&name).context("PLUMB_ISA")?,
        _ => {
            let best = Isa::best();
            if best == Isa::Portable {
                progress::note(
                    "this CPU has no AVX2: the portable kernels run, which are several times slower",
                );
            }
            best
        }
    })
}

/// The CPU with the kernel table that `PLUMB_ISA` names, else the best one.
pub(crate) fn device(threads: Option<usize>) -> anyhow::Result<CpuDevice> {
    let isa = isa()?;
    let threads = threads.unwrap_or_else(cpu::default_threads);
    CpuDevice::new(isa, threads).map_err(|e| usage(e.to_string()))
}
