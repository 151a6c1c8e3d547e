//! A GGUF version 3 file, written front to back in bounded memory.
//!
//! It does not know what the metadata and tensors mean. The format: `docs/gguf.md` of the ggml project.

use std::io::Write;

use tensor::Encoding;

/// A metadata value; widths are GGUF's own.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
}

/// Name, shape and encoding of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    /// The tensor's name.
    pub(crate) name: String,
    /// Elements along each dimension, the row's length first, as GGUF has it.
    pub(crate) dims: Vec<u64>,
    /// How the elements are stored.
    pub(crate) encoding: Encoding,
    /// What the values are.
    pub(crate) content: Content,
}

/// What stands in a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Random, at most about `amplitude` in size.
    Random {
        /// The bound.
        amplitude: f32,
    },
    /// These values, in F32.
    Exactly(Vec<f32>),
}

impl TensorInfo {
    /// Bytes of the tensor's data.
    pub(crate) fn bytes(&self) -> u64 {
        let elements: u64 = self.dims.iter().product();
        elements / self.encoding.block_len() as u64 * self.encoding.block_bytes() as u64
    }
}

/// Tensor data starts at multiples of this, GGUF's default.
const ALIGNMENT: u64 = 32;

/// How much tensor data is made at a time; a whole number of blocks of every encoding is cut from it.
const CHUNK: usize = 1 << 20;

/// A file whose header is written and whose tensors are to follow in order.
pub(crate) struct Writer<'a, W> {
    out: &'a mut W,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Writes the header.
    pub(crate) fn begin(
        out: &'a mut W,
        metadata: &[(String, Value)],
        tensors: &[TensorInfo],
    ) -> std::io::Result<Self> {
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        header.extend_from_slice(&3u32.to_le_bytes());
        header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_str(&mut header, key);
            put_value(&mut header, value);
        }
        let mut offset = 0u64;
        for tensor in tensors {
            put_str(&mut header, &tensor.name);
            header.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend_from_slice(&dim.to_le_bytes()));
            header.extend_from_slice(&type_id(tensor.encoding).to_le_bytes());
            header.extend_from_slice(&offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        out.write_all(&header)?;
        Ok(Writer { out })
    }

    /// Writes the next tensor; `fill` makes its data chunk by chunk, each a whole number of blocks.
    pub(crate) fn tensor(
        &mut self,
        tensor: &TensorInfo,
        mut fill: impl FnMut(&mut [u8]),
    ) -> std::io::Result<()> {
        let block = tensor.encoding.block_bytes();
        let mut chunk = vec![0; CHUNK / block * block];
        let mut left = tensor.bytes();
        while left > 0 {
            let now = left.min(chunk.len() as u64) as usize;
            fill(&mut chunk[..now]);
            self.out.write_all(&chunk[..now])?;
            left -= now as u64;
        }
        let padding = tensor.bytes().next_multiple_of(ALIGNMENT) - tensor.bytes();
        self.out.write_all(&[0; ALIGNMENT as usize][..padding as usize])
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let kind = |out: &mut Vec<u8>, id: u32| out.extend_from_slice(&id.to_le_bytes());
    let array = |out: &mut Vec<u8>, id: u32, len: usize| {
        kind(out, 9);
        kind(out, id);
        out.extend_from_slice(&(len as u64).to_le_bytes());
    };
    match value {
        Value::U32(x) => {
            kind(out, 4);
            out.extend_from_slice(&x.to_le_bytes());
        }
        Value::F32(x) => {
            kind(out, 6);
            out.extend_from_slice(&x.to_le_bytes());
        }
        Value::Bool(x) => {
            kind(out, 7);
            out.push(u8::from(*x));
        }
        Value::Str(text) => {
            kind(out, 8);
            put_str(out, text);
        }
        Value::Strs(texts) => {
            array(out, 8, texts.len());
            texts.iter().for_each(|text| put_str(out, text));
        }
        Value::I32s(numbers) => {
            array(out, 5, numbers.len());
            numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
    }
}

/// GGUF's number for an encoding (`ggml_type`).
fn type_id(encoding: Encoding) -> u32 {
    use Encoding::*;
    match encoding {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q5_0 => 6,
        Q5_1 => 7,
        Q8_0 => 8,
        Q2_K => 10,
        Q3_K => 11,
        Q4_K => 12,
        Q5_K => 13,
        Q6_K => 14,
        IQ4_NL => 20,
        IQ4_XS => 23,
        BF16 => 30,
    }
}
