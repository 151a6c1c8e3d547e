//! The safetensors reader: the header of one file, checked against the file's length.
//!
//! The header's schema is the `safetensors` crate's; the checks are made here so that each names its tensor. It does not
//! know about folders, shards or configurations. Format: <https://github.com/huggingface/safetensors#format>.

use std::collections::BTreeMap;

use ::safetensors::tensor::{Dtype, TensorInfo as Header};
use serde::Deserialize;
use serde_json::Value;

use super::{TensorInfo, quoted, supported_encodings};
use crate::{Encoding, Error, Result};

/// The format's own limit on the header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the header of a whole safetensors file, which will be the `file_index`th of its model; `file` names it in errors.
/// Tensors come in order of their data.
pub(super) fn parse(bytes: &[u8], file_index: usize, file: &str) -> Result<Vec<TensorInfo>> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Error::malformed(file, "a safetensors file", format!("{} bytes", bytes.len())));
    };
    let header_len = u64::from_le_bytes(*len);
    if header_len > MAX_HEADER_BYTES {
        let what = format!("{file}: safetensors header length");
        return Err(Error::malformed(what, format!("at most {MAX_HEADER_BYTES}"), header_len.to_string()));
    }
    let Some((json, data)) = rest.split_at_checked(header_len as usize) else {
        return Err(Error::malformed(
            format!("{file}: header"),
            format!("{header_len} bytes"),
            format!("{} before the end of the file (is it truncated?)", rest.len()),
        ));
    };
    let mut entries: BTreeMap<String, Value> = serde_json::from_slice(json)
        .map_err(|e| Error::malformed(format!("{file}: header"), "a JSON object", e.to_string()))?;
    entries.remove("__metadata__");

    let data_start = bytes.len() - data.len();
    let mut infos = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let header = Header::deserialize(entry).map_err(|e| {
            let what = format!("{file}: header of tensor {}", quoted(&name));
            Error::malformed(what, "dtype, shape and data_offsets", e.to_string())
        })?;
        infos.push(locate(name, header, data_start, data.len(), file_index, file)?);
    }
    infos.sort_by_key(|t| t.offset);
    check_coverage(&infos, data_start, bytes.len(), file)?;
    Ok(infos)
}

fn locate(
    name: String,
    header: Header,
    data_start: usize,
    data_len: usize,
    file_index: usize,
    file: &str,
) -> Result<TensorInfo> {
    let what = |part: &str| format!("{file}: {part}tensor {}", quoted(&name));
    let encoding = match header.dtype {
        Dtype::F32 => Encoding::F32,
        Dtype::F16 => Encoding::F16,
        Dtype::BF16 => Encoding::BF16,
        other => {
            let why =
                supported_encodings(&[Encoding::F32, Encoding::F16, Encoding::BF16]) + " from safetensors";
            return Err(Error::unsupported(what("") + &format!(": dtype {other:?}"), why));
        }
    };
    let shape = header.shape;
    let (&cols, outer) = shape.split_last().unwrap_or((&1, &[]));
    let rows = outer.iter().try_fold(1usize, |product, &d| product.checked_mul(d));
    let len = rows.and_then(|rows| rows.checked_mul(cols)?.checked_mul(encoding.block_bytes()));
    let (Some(rows), Some(len @ 1..)) = (rows, len) else {
        let expected = "positive numbers whose product can be addressed";
        return Err(Error::malformed(what("shape of "), expected, format!("{shape:?}")));
    };
    let (start, end) = header.data_offsets;
    if end.checked_sub(start) != Some(len) {
        let found = format!("bytes {start} to {end}");
        return Err(Error::malformed(what(""), format!("{len} bytes of data for {shape:?}"), found));
    }
    if end > data_len {
        return Err(Error::malformed(
            what(""),
            format!("data up to byte {}", data_start as u128 + end as u128),
            format!(
                "a file of {} bytes: {} are missing (is it truncated?)",
                data_start + data_len,
                end - data_len
            ),
        ));
    }
    Ok(TensorInfo { name, encoding, rows, cols, shape, file: file_index, offset: data_start + start, len })
}

/// The format has the tensors cover all bytes after the header, each once.
fn check_coverage(infos: &[TensorInfo], data_start: usize, file_len: usize, file: &str) -> Result<()> {
    let mut end = data_start;
    for info in infos {
        if info.offset != end {
            let what = format!("{file}: tensor {}", quoted(&info.name));
            let expected = format!("data from byte {end}, where the tensor before ends");
            return Err(Error::malformed(what, expected, format!("data from byte {}", info.offset)));
        }
        end += info.len;
    }
    if end != file_len {
        let found = format!("{} bytes more", file_len - end);
        return Err(Error::malformed(file, format!("the end of the file at byte {end}"), found));
    }
    Ok(())
}
