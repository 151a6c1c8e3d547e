//! From a weight file to the list of tensors that a prepared file holds: canonical names, where each comes from, and
//! what is done to it on the way.
//!
//! It does not pack panels nor write files (`tensor`), and does not know what the tensors are for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tensor::files::{Description, TensorInfo, WeightFile};
use tensor::op::Kind;
use tensor::{Encoding, blocks};

use crate::arch::{self, TensorShape, Tensors, hugging_face_name};
use crate::spec::{ModelSpec, Needed, NeededShape};
use crate::tokenizer::TokenizerSource;
use crate::{Error, Result};

/// A model as a prepared file's header carries it: everything but the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelBundle {
    /// What it is called, for people.
    pub name: String,
    /// What distinguishes it.
    pub spec: ModelSpec,
    /// Its tokenizer, where the file has one.
    pub tokenizer: Option<TokenizerSource>,
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
    /// The tensors, in the order a step meets them.
    pub tensors: Vec<PreparedTensor>,
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
            let (spec, family, prefix) = arch::from_hf(&folder.config, &shapes)?;
            let names = Names::HuggingFace { prefix, post_norms: spec.post_norms };
            (spec, names, family.hf_norm_offset)
        }
        _ => return Err(tensor::Error::unsupported("this container", "its metadata have no mapping").into()),
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
        tokenizer: about.tokenizer,
        chat_template: about.chat_template,
        generation: about.generation,
        encodings,
    };
    Ok(Preparation { bundle, tensors })
}

/// The values of a prepared vector, as f32.
///
/// # Errors
/// The source is not in the file, or is too short.
pub fn vector(file: &WeightFile, tensor: &PreparedTensor) -> Result<Vec<f32>> {
    let mut values = FileTensors(file).vector(&tensor.source)?;
    if tensor.offset != 0.0 {
        values.iter_mut().for_each(|x| *x += tensor.offset);
    }
    Ok(values)
}

/// The bytes of a prepared matrix's rows in its source, row by row.
///
/// # Errors
/// The source is not in the file, or has fewer rows.
pub fn matrix_bytes<'a>(file: &'a WeightFile, tensor: &PreparedTensor) -> Result<&'a [u8]> {
    let missing = || Error::from(tensor::Error::Missing { what: format!("rows of tensor {}", tensor.source) });
    let info = file.tensor(&tensor.source).ok_or_else(missing)?;
    let Kind::Panels { rows, .. } = tensor.kind else { return Err(missing()) };
    let row = info.row_bytes();
    let range = tensor.first_row * row..(tensor.first_row + rows) * row;
    file.bytes(info).get(range).ok_or_else(missing)
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
    fn prepared(&self, needed: Needed, spec: &ModelSpec, file: &WeightFile, norm_offset: f32) -> Result<PreparedTensor> {
        let Needed { name, shape } = needed;
        let missing = |source: &str| Error::from(tensor::Error::Missing { what: format!("tensor {source} {shape}") });
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
        Ok(PreparedTensor { name, kind, source, first_row: 0, offset: if is_norm { norm_offset } else { 0.0 } })
    }

    /// Where gate and up are one matrix, the name of it and the part's first row: the gate lies first.
    fn fused_gate_up(&self, name: &str, spec: &ModelSpec, file: &WeightFile) -> Result<Option<(String, usize)>> {
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
        NeededShape::Matrix { .. } => Kind::Panels { encoding: info.encoding, rows: info.rows, cols: info.cols },
        NeededShape::Vector { .. } if info.rows == 1 && info.encoding.is_float() => Kind::Vector { len: info.cols },
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
            _ => Ok(About { name: String::new(), tokenizer: None, chat_template: None, generation: Default::default() }),
        }
    }
}

/// GGUF's recommended sampling settings under Hugging Face's names.
fn gguf_sampling(metadata: &tensor::files::Metadata) -> serde_json::Map<String, serde_json::Value> {
    use tensor::files::Value;
    let names = [
        ("temp", "temperature"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("penalty_repeat", "repetition_penalty"),
    ];
    let value = |v: &Value| match v {
        Value::Uint(n) => Some((*n).into()),
        Value::Int(n) => Some((*n).into()),
        // Written as f32: the shortest decimal that means it, not the widened one.
        Value::Float(x) => serde_json::from_str(&format!("{:?}", *x as f32)).ok(),
        _ => None,
    };
    let found = names.iter().filter_map(|(gguf, hf)| {
        let v = value(metadata.get(&format!("general.sampling.{gguf}"))?)?;
        Some(((*hf).to_owned(), v))
    });
    found.collect()
}
