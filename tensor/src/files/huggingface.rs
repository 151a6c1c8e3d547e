//! The Hugging Face folder: `config.json`, the tokenizer's and the template's files, and safetensors, sharded or not.
//!
//! It does not know what the configuration means; the JSON files are handed on as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Contents, Description, TensorInfo, Tensors, WeightFile, quoted, safetensors};
use crate::map::{FileMap, open_regular};
use crate::{Error, Result};

/// No published configuration, index or tokenizer is near this.
const MAX_TEXT_BYTES: u64 = 256 << 20;

const INDEX: &str = "model.safetensors.index.json";

/// What a Hugging Face folder says beside the tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HfFolder {
    /// `config.json`: architecture and sizes.
    pub config: Value,
    /// `generation_config.json`: default sampling and the end-of-generation tokens.
    pub generation_config: Option<Value>,
    /// `tokenizer.json`, as text.
    pub tokenizer_json: Option<String>,
    /// `tokenizer_config.json`: special tokens and often the chat template.
    pub tokenizer_config: Option<Value>,
    /// `chat_template.jinja`.
    pub chat_template: Option<String>,
}

/// Opens the folder `path`.
pub(super) fn open(path: &Path) -> Result<WeightFile> {
    let mut paths = Vec::new();
    let config = match optional_text(path, "config.json", &mut paths)? {
        Some(text) => json(&text, &path.join("config.json"))?,
        None => return Err(no_config(path)),
    };
    let mut optional_json = |name: &str| -> Result<Option<Value>> {
        optional_text(path, name, &mut paths)?.map(|text| json(&text, &path.join(name))).transpose()
    };
    let generation_config = optional_json("generation_config.json")?;
    let tokenizer_config = optional_json("tokenizer_config.json")?;
    let tokenizer_json = optional_text(path, "tokenizer.json", &mut paths)?;
    let chat_template = optional_text(path, "chat_template.jinja", &mut paths)?;

    let shards = Shards::find(path)?;
    if shards.weight_map.is_some() {
        paths.push(path.join(INDEX));
    }
    let mut infos = Vec::new();
    let mut contents = Vec::new();
    for name in &shards.files {
        let shard = path.join(name);
        let map = FileMap::open(&shard)?;
        let found = safetensors::parse(map.bytes(), contents.len(), &shard.display().to_string())?;
        infos.extend(shards.select(found, name));
        contents.push(Contents::Mapped(map));
        paths.push(shard);
    }
    let tensors = Tensors::new(infos, &path.display().to_string())?;
    shards.check_complete(&tensors, path)?;
    let folder = HfFolder { config, generation_config, tokenizer_json, tokenizer_config, chat_template };
    Ok(WeightFile { description: Description::HuggingFace(Box::new(folder)), tensors, contents, paths })
}

/// The safetensors files of a folder, and which tensors each should give.
struct Shards {
    files: BTreeSet<String>,
    /// The index: tensor name to file name.
    weight_map: Option<BTreeMap<String, String>>,
}

impl Shards {
    /// An index names the files; without one, `model.safetensors` is the model; without that, all `*.safetensors` are.
    fn find(folder: &Path) -> Result<Shards> {
        if let Some(text) = optional_text(folder, INDEX, &mut Vec::new())? {
            let weight_map = parse_index(&text, &folder.join(INDEX).display().to_string())?;
            return Ok(Shards {
                files: weight_map.values().cloned().collect(),
                weight_map: Some(weight_map),
            });
        }
        let names = file_names(folder)?;
        let files: BTreeSet<String> = if names.contains("model.safetensors") {
            ["model.safetensors".to_owned()].into()
        } else {
            names.iter().filter(|n| n.ends_with(".safetensors")).cloned().collect()
        };
        if files.is_empty() {
            return Err(no_weights(folder, &names));
        }
        for name in &files {
            check_shard_siblings(folder, name, &files)?;
        }
        Ok(Shards { files, weight_map: None })
    }

    /// Of the tensors found in `file`, those that the index places there.
    fn select(&self, found: Vec<TensorInfo>, file: &str) -> Vec<TensorInfo> {
        match &self.weight_map {
            None => found,
            Some(map) => {
                found.into_iter().filter(|t| map.get(&t.name).is_some_and(|place| place == file)).collect()
            }
        }
    }

    /// Every tensor of the index was found.
    fn check_complete(&self, tensors: &Tensors, folder: &Path) -> Result<()> {
        for (name, file) in self.weight_map.iter().flatten() {
            if tensors.get(name).is_none() {
                return Err(Error::malformed(
                    format!("{}: tensor {}", folder.join(file).display(), quoted(name)),
                    format!("the tensor that {INDEX} places there"),
                    "none of that name",
                ));
            }
        }
        Ok(())
    }
}

/// A file named `…-00002-of-00003.safetensors` needs its siblings.
fn check_shard_siblings(folder: &Path, name: &str, files: &BTreeSet<String>) -> Result<()> {
    let parts = name.strip_suffix(".safetensors").and_then(|stem| stem.rsplit_once("-of-"));
    let Some((head, total)) = parts else { return Ok(()) };
    let Some((prefix, number)) = head.rsplit_once('-') else { return Ok(()) };
    if number.parse::<u32>().is_err() || number.len() != total.len() {
        return Ok(());
    }
    let Ok(count) = total.parse::<u32>() else { return Ok(()) };
    let width = total.len();
    for n in 1..=count {
        let sibling = format!("{prefix}-{n:0width$}-of-{total}.safetensors");
        if !files.contains(&sibling) {
            return Err(Error::Missing { what: folder.join(sibling).display().to_string() });
        }
    }
    Ok(())
}

/// Reads a safetensors index: tensor name to file name. File names that lead out of the folder are refused.
fn parse_index(text: &str, file: &str) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_str(text)
        .map_err(|e| Error::malformed(file, "an object with a weight_map of texts", e.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(Error::malformed(format!("{file}: weight_map"), "at least one tensor", "none"));
    }
    for (tensor, name) in &index.weight_map {
        let plain = name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']);
        if !plain {
            let what = format!("{file}: file of tensor {}", quoted(tensor));
            return Err(Error::malformed(
                what,
                "the name of a .safetensors file in the same folder",
                quoted(name),
            ));
        }
    }
    Ok(index.weight_map)
}

/// The text of `folder/name`, or `None` if there is no such file; a found file is noted in `paths`.
fn optional_text(folder: &Path, name: &str, paths: &mut Vec<PathBuf>) -> Result<Option<String>> {
    let path = folder.join(name);
    // A dangling link is a file that should be there: opening it tells.
    if path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let mut text = String::new();
    let file = open_regular(&path)?;
    file.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text).map_err(|e| Error::io(&path, e))?;
    if text.len() as u64 > MAX_TEXT_BYTES {
        let expected = format!("at most {MAX_TEXT_BYTES} bytes");
        return Err(Error::malformed(path.display().to_string(), expected, "more"));
    }
    paths.push(path);
    Ok(Some(text))
}

fn json(text: &str, path: &Path) -> Result<Value> {
    let value: Value = serde_json::from_str(text)
        .map_err(|e| Error::malformed(path.display().to_string(), "JSON", e.to_string()))?;
    if !value.is_object() {
        return Err(Error::malformed(path.display().to_string(), "a JSON object", "another JSON value"));
    }
    Ok(value)
}

fn file_names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))?;
    entries
        .map(|entry| Ok(entry.map_err(|e| Error::io(folder, e))?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// A folder without `config.json`: says what to do if it holds a model of another kind.
fn no_config(folder: &Path) -> Error {
    let names = file_names(folder).unwrap_or_default();
    let found = match names.iter().find(|n| n.ends_with(".gguf")) {
        Some(gguf) => format!("none, but {gguf}: name that file instead"),
        None if names.is_empty() => "an empty folder".to_owned(),
        None => "none".to_owned(),
    };
    Error::malformed(folder.display().to_string(), "a Hugging Face folder with config.json", found)
}

fn no_weights(folder: &Path, names: &BTreeSet<String>) -> Error {
    match names.iter().find(|n| n.ends_with(".bin") || n.ends_with(".pth") || n.ends_with(".pt")) {
        Some(pickle) => Error::unsupported(
            folder.join(pickle).display().to_string(),
            "plumb reads safetensors; pickled checkpoints can run code when read, convert them first",
        ),
        None => Error::malformed(folder.display().to_string(), "*.safetensors files", "none"),
    }
}

/// Reads each of the folder's text formats from memory: the fuzzer's way in.
#[doc(hidden)]
pub fn fuzz_texts(text: &str) {
    let _ = parse_index(text, "index");
    let _ = json(text, Path::new("config.json"));
}
