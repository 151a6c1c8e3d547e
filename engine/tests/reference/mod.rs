//! Metadata of GGUF files for the tokenizer tests, and where the models are.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;

use tensor::files::{Array, Metadata, Value};

/// A development model's file; a missing one is a failure, never a skipped test.
pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PLUMB_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME or PLUMB_MODELS is set");
        PathBuf::from(home).join(".cache/plumb/models")
    });
    let path = folder.join(format!("{name}.gguf"));
    assert!(path.is_file(), "{} is missing: run `cargo xtask models`", path.display());
    path
}

/// A file of the golden folder.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/tokenizer").join(name)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_at(N);
        self.0 = tail;
        head.try_into().unwrap()
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn text(&mut self) -> String {
        let len = self.u64() as usize;
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        String::from_utf8(head.to_vec()).unwrap()
    }
    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::Uint(self.take::<1>()[0].into()),
            1 => Value::Int((self.take::<1>()[0] as i8).into()),
            2 => Value::Uint(u16::from_le_bytes(self.take()).into()),
            3 => Value::Int(i16::from_le_bytes(self.take()).into()),
            4 => Value::Uint(self.u32().into()),
            5 => Value::Int((self.u32() as i32).into()),
            6 => Value::Float(f32::from_bits(self.u32()).into()),
            7 => Value::Bool(self.take::<1>()[0] != 0),
            8 => Value::Str(self.text()),
            9 => {
                let kind = self.u32();
                let values: Vec<Value> = (0..self.u64()).map(|_| self.value(kind)).collect();
                Value::Array(match kind {
                    8 => Array::Str(
                        values
                            .into_iter()
                            .map(|v| if let Value::Str(s) = v { s } else { unreachable!() })
                            .collect(),
                    ),
                    6 | 12 => Array::Float(
                        values
                            .into_iter()
                            .map(|v| if let Value::Float(x) = v { x } else { unreachable!() })
                            .collect(),
                    ),
                    1 | 3 | 5 | 11 => Array::Int(
                        values
                            .into_iter()
                            .map(|v| if let Value::Int(x) = v { x } else { unreachable!() })
                            .collect(),
                    ),
                    _ => Array::Uint(
                        values
                            .into_iter()
                            .map(|v| if let Value::Uint(x) = v { x } else { unreachable!() })
                            .collect(),
                    ),
                })
            }
            10 => Value::Uint(self.u64()),
            11 => Value::Int(self.u64() as i64),
            12 => Value::Float(f64::from_bits(self.u64())),
            _ => panic!("value type {kind}"),
        }
    }
}

/// The metadata of a GGUF file.
pub fn metadata(path: &PathBuf) -> Metadata {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).unwrap().take(64 << 20).read_to_end(&mut bytes).unwrap();
    let mut reader = Reader(&bytes[8..]);
    let (_, count) = (reader.u64(), reader.u64());
    let mut metadata = Metadata::default();
    for _ in 0..count {
        let key = reader.text();
        let kind = reader.u32();
        let value = reader.value(kind);
        metadata.0.insert(key, value);
    }
    metadata
}
