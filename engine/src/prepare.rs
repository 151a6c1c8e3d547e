//! From a weight file to the list of tensors that a prepared file holds: canonical names, where each comes from, and
//! what is done to it on the way.
//!
//! It does not lay out panels nor files (`tensor`), nor decide where a prepared file is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tensor::files::{Description, HfFolder, Metadata, TensorInfo, WeightFile};
use tensor::op::Kind;
use tensor::panels::{PANEL_ROWS, pack_panel};
use tensor::reservoir::{self, Builder, Reservoir, Source};
use tensor::{Encoding, blocks};

use crate::arch::{self, TensorShape, Tensors, hugging_face_name};
use crate::spec::{ModelSpec, Needed, NeededShape};
use crate::tokenizer::TokenizerSource;
use crate::{Error, Result};

/// The tensor that holds the tokenizer's source, as JSON: apart from the header, so that it can be read while the
/// weights are loaded, and may be as large as it is.
const TOKENIZER: &str = "tokenizer";

/// A model as a prepared file's header carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelBundle {
    /// What it is called, for people.
    pub name: String,
    /// What distinguishes it.
    pub spec: ModelSpec,
    /// Its chat template (Jinja), where the file has one.
    pub chat_template: Option<String>,
    /// Its generation settings, as the file has them: Hugging Face's generation_config.json, or GGUF's
    /// `general.sampling.*` under the same names.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub generation: serde_json::Map<String, serde_json::Value>,
    /// Bytes of matrices by encoding, largest first.
    pub encodings: Vec<(Encoding, u64)>,
}

/// One tensor of a prepared file and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedTensor {
    /// Its canonical name.
    pub name: String,
    /// Its form.
    pub kind: Kind,
    /// The weight file's name of the tensor it comes from.
    pub source: String,
    /// The first of the source's rows that it takes (a part of a fused matrix begins further down).
    pub first_row: usize,
    /// Added to every element of a vector.
    pub offset: f32,
}

/// Everything that packing a weight file needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// The header's model.
    pub bundle: ModelBundle,
    /// The tokenizer, where the file has one.
    pub tokenizer: Option<TokenizerSource>,
    /// The tensors, in the order a step meets them.
    pub tensors: Vec<PreparedTensor>,
    /// The tokenizer as it is stored.
    tokenizer_json: Vec<u8>,
}

impl Preparation {
    /// The layout of the prepared file; [`Preparation::fill`] gives its parts.
    ///
    /// # Errors
    /// The header would be too large.
    pub fn builder(&self, source: Source) -> Result<Builder> {
        let mut tensors: Vec<_> = self.tensors.iter().map(|t| (t.name.clone(), t.kind)).collect();
        if self.tokenizer.is_some() {
            tensors.push((TOKENIZER.to_owned(), Kind::Bytes { len: self.tokenizer_json.len() }));
        }
        Ok(Builder::new(&self.bundle, source, tensors)?)
    }

    /// Fills one part of the prepared file from the weight file.
    ///
    /// # Errors
    /// The weight file is not the one this was made from.
    pub fn fill(&self, file: &WeightFile, part: reservoir::Part, out: &mut [u8]) -> tensor::Result<()> {
        let Some(t) = self.tensors.get(part.tensor) else {
            out.copy_from_slice(&self.tokenizer_json);
            return Ok(());
        };
        let missing = || tensor::Error::Missing { what: format!("rows of tensor {}", t.source) };
        let info = file.tensor(&t.source).ok_or_else(missing)?;
        match t.kind {
            Kind::Panels { encoding, rows, cols } => {
                let row = info.row_bytes();
                let first = part.panel * PANEL_ROWS;
                let end = (first + PANEL_ROWS).min(rows);
                let bytes = file.bytes(info).get((t.first_row + first) * row..(t.first_row + end) * row);
                let rows: Vec<&[u8]> = bytes.ok_or_else(missing)?.chunks_exact(row).collect();
                pack_panel(encoding, cols, &rows, out);
            }
            Kind::Bytes { .. } => out.copy_from_slice(&self.tokenizer_json),
            Kind::Vector { len } => {
                let mut values = vec![0.0; len];
                blocks::decode_row(info.encoding, file.bytes(info), &mut values);
                for (to, x) in out.chunks_exact_mut(4).zip(values) {
                    to.copy_from_slice(&(x + t.offset).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    /// Prepares the weights in private memory.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn in_memory(&self, file: &WeightFile) -> Result<Reservoir> {
        let builder = self.builder(Source::default())?;
        Ok(builder.in_memory(&mut |part, out| self.fill(file, part, out), &mut |_, _| {})?)
    }
}

/// The tokenizer that a prepared file carries.
///
/// # Errors
/// It is not one that this version of plumb wrote.
pub fn tokenizer(weights: &Reservoir) -> Result<Option<TokenizerSource>> {
    let Some(entry) = weights.entry(TOKENIZER) else { return Ok(None) };
    let source = serde_json::from_slice(weights.bytes(entry));
    Ok(Some(source.map_err(|e| {
        let what = format!("{}: the tokenizer", weights.path().display());
        tensor::Error::malformed(what, "what this version of plumb writes", e.to_string())
    })?))
}

/// Reads what a weight file says of its model and checks every tensor against it.
///
/// # Errors
/// An unknown architecture; metadata or tensors that are missing, malformed or contradictory, named.
pub fn prepare(file: &WeightFile) -> Result<Preparation> {
    let shapes = FileTensors(file);
    let (spec, source_of, norm_offset) = match file.description() {
        Description::Gguf(metadata) => (arch::from_gguf(metadata, &shapes)?, Names::Gguf, 0.0),
        Description::HuggingFace(folder) => {
            let found = arch::from_hf(&folder.config, &shapes)?;
            let names = Names::HuggingFace { prefix: found.prefix, post_norms: found.spec.post_norms };
            (found.spec, names, found.family.hf_norm_offset)
        }
    };
    let tensors = spec
        .needed()
        .into_iter()
        .map(|needed| source_of.prepared(needed, &spec, file, norm_offset))
        .collect::<Result<Vec<_>>>()?;
    let mut by_encoding: BTreeMap<Encoding, u64> = BTreeMap::new();
    for tensor in &tensors {
        if let Kind::Panels { encoding, .. } = tensor.kind {
            *by_encoding.entry(encoding).or_default() += tensor.kind.bytes();
        }
    }
    let mut encodings: Vec<_> = by_encoding.into_iter().collect();
    encodings.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let about = About::of(file)?;
    let bundle = ModelBundle {
        name: about.name,
        spec,
        chat_template: about.chat_template,
        generation: about.generation,
        encodings,
    };
    let tokenizer_json = serde_json::to_vec(&about.tokenizer)
        .map_err(|e| tensor::Error::malformed("the tokenizer", "data that JSON can hold", e.to_string()))?;
    Ok(Preparation { bundle, tokenizer: about.tokenizer, tensors, tokenizer_json })
}

/// How canonical names become the file's.
enum Names {
    Gguf,
    HuggingFace { prefix: &'static str, post_norms: bool },
}

impl Names {
    fn of(&self, canonical: &str) -> Option<String> {
        match self {
            Names::Gguf => Some(canonical.to_owned()),
            Names::HuggingFace { prefix, post_norms } => hugging_face_name(canonical, prefix, *post_norms),
        }
    }

    /// Finds the source of a needed tensor and checks its shape.
    fn prepared(
        &self,
        needed: Needed,
        spec: &ModelSpec,
        file: &WeightFile,
        norm_offset: f32,
    ) -> Result<PreparedTensor> {
        let Needed { name, shape } = needed;
        let missing =
            |source: &str| Error::from(tensor::Error::Missing { what: format!("tensor {source} {shape}") });
        let source = self.of(&name).ok_or_else(|| missing(&name))?;
        if let Some((fused, first_row)) = self.fused_gate_up(&name, spec, file)? {
            let info = file.tensor(&fused).ok_or_else(|| missing(&fused))?;
            let want = NeededShape::Matrix { rows: 2 * spec.ffn, cols: spec.hidden };
            let kind = kind_of(info, &want);
            let kind = kind.ok_or_else(|| tensor::Error::malformed(&fused, want.to_string(), shown(info)))?;
            let Kind::Panels { encoding, cols, .. } = kind else { return Err(missing(&fused)) };
            let kind = Kind::Panels { encoding, rows: spec.ffn, cols };
            return Ok(PreparedTensor { name, kind, source: fused, first_row, offset: 0.0 });
        }
        let info = file.tensor(&source).ok_or_else(|| missing(&source))?;
        let kind = kind_of(info, &shape);
        let kind = kind.ok_or_else(|| tensor::Error::malformed(&source, shape.to_string(), shown(info)))?;
        let is_norm = name.ends_with("norm.weight");
        Ok(PreparedTensor {
            name,
            kind,
            source,
            first_row: 0,
            offset: if is_norm { norm_offset } else { 0.0 },
        })
    }

    /// Where gate and up are one matrix, the name of it and the part's first row: the gate lies first.
    fn fused_gate_up(
        &self,
        name: &str,
        spec: &ModelSpec,
        file: &WeightFile,
    ) -> Result<Option<(String, usize)>> {
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
        let (layer, first_row) = match (stem.strip_suffix(".ffn_gate"), stem.strip_suffix(".ffn_up")) {
            (Some(layer), _) => (layer, 0),
            (_, Some(layer)) => (layer, spec.ffn),
            _ => return Ok(None),
        };
        let part = if matches!(self, Names::Gguf) { "ffn_up" } else { "ffn_gate_up" };
        let gate = self.of(&format!("{layer}.ffn_gate.weight"));
        let has_gate = gate.is_some_and(|g| file.tensor(&g).is_some());
        let fused = self.of(&format!("{layer}.{part}.weight"));
        Ok(fused.filter(|f| !has_gate && file.tensor(f).is_some()).map(|f| (f, first_row)))
    }
}

/// The prepared kind of a file's tensor, if it has the shape.
fn kind_of(info: &TensorInfo, shape: &NeededShape) -> Option<Kind> {
    let kind = match shape {
        NeededShape::Matrix { .. } => {
            Kind::Panels { encoding: info.encoding, rows: info.rows, cols: info.cols }
        }
        NeededShape::Vector { .. } if info.rows == 1 && info.encoding.is_float() => {
            Kind::Vector { len: info.cols }
        }
        NeededShape::Vector { .. } => return None,
    };
    shape.fits(&kind).then_some(kind)
}

/// A tensor's shape for messages; of a vector's encoding only if it is not a float one.
fn shown(info: &TensorInfo) -> String {
    if info.rows == 1 && !info.encoding.is_float() {
        format!("[{}] in {}", info.cols, info.encoding)
    } else if info.shape.len() == 1 {
        format!("[{}]", info.cols)
    } else {
        format!("[{}, {}]", info.rows, info.cols)
    }
}

/// A weight file as the architectures look at it.
struct FileTensors<'a>(&'a WeightFile);

impl Tensors for FileTensors<'_> {
    fn shape(&self, name: &str) -> Option<TensorShape> {
        let info = self.0.tensor(name)?;
        Some(TensorShape { encoding: info.encoding, rows: info.rows, cols: info.cols })
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let missing = || Error::from(tensor::Error::Missing { what: format!("tensor {name}") });
        let info = self.0.tensor(name).ok_or_else(missing)?;
        if info.rows != 1 || !info.encoding.is_float() {
            return Err(tensor::Error::malformed(name, "a vector of floats", shown(info)).into());
        }
        let mut values = vec![0.0; info.cols];
        blocks::decode_row(info.encoding, self.0.bytes(info), &mut values);
        Ok(values)
    }
}

/// What a file says beside spec and tensors.
struct About {
    name: String,
    tokenizer: Option<TokenizerSource>,
    chat_template: Option<String>,
    generation: serde_json::Map<String, serde_json::Value>,
}

impl About {
    fn of(file: &WeightFile) -> Result<About> {
        let stem = file.paths().first().and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned());
        match file.description() {
            Description::Gguf(m) => Ok(About {
                name: m.str("general.name")?.map(str::to_owned).or(stem).unwrap_or_default(),
                tokenizer: match m.get("tokenizer.ggml.model") {
                    Some(_) => Some(TokenizerSource::from_gguf(m)?),
                    None => None,
                },
                chat_template: m.str("tokenizer.chat_template")?.map(str::to_owned),
                generation: gguf_sampling(m),
            }),
            Description::HuggingFace(folder) => {
                let parent = file.paths().first().and_then(|p| p.parent()).and_then(|p| p.file_name());
                let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
                let in_config = folder.tokenizer_config.as_ref().and_then(|c| c.get("chat_template"));
                let generation = folder.generation_config.as_ref().and_then(serde_json::Value::as_object);
                Ok(About {
                    name: parent.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default(),
                    tokenizer: hugging_face_tokenizer(folder)?,
                    chat_template: folder.chat_template.clone().or_else(|| in_config.and_then(text)),
                    generation: generation.cloned().unwrap_or_default(),
                })
            }
        }
    }
}

/// GGUF's recommended sampling settings, as they stand there.
fn gguf_sampling(metadata: &Metadata) -> serde_json::Map<String, serde_json::Value> {
    use tensor::files::Value;
    let value = |v: &Value| match v {
        Value::Uint(n) => Some((*n).into()),
        Value::Int(n) => Some((*n).into()),
        Value::Bool(b) => Some((*b).into()),
        Value::Str(s) => Some(s.as_str().into()),
        // Written as f32: the shortest decimal that means it, not the widened one.
        Value::Float(x) => serde_json::from_str(&format!("{:?}", *x as f32)).ok(),
        Value::Array(_) => None,
    };
    let sampling = metadata.0.iter().filter(|(key, _)| key.starts_with("general.sampling."));
    sampling.filter_map(|(key, v)| Some((key.clone(), value(v)?))).collect()
}

/// A folder's tokenizer, with the ids that its configurations give roles.
fn hugging_face_tokenizer(folder: &HfFolder) -> Result<Option<TokenizerSource>> {
    let Some(json) = &folder.tokenizer_json else { return Ok(None) };
    let configs: Vec<_> = folder.generation_config.iter().chain([&folder.config]).collect();
    Ok(Some(TokenizerSource::from_json(json.as_str(), folder.tokenizer_config.as_ref(), &configs)?))
}
