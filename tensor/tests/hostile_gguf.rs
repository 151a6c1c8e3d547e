//! GGUF files that lie: each published case, and every field in turn, gives a typed error; never a panic, a huge
//! allocation or a read outside the file.

use proptest::prelude::*;
use tensor::Error;
use tensor::files::{Description, WeightFile};

/// A GGUF file put together field by field; any field may lie.
struct Gguf {
    version: u32,
    /// `None`: the true number.
    tensor_count: Option<u64>,
    key_count: Option<u64>,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    alignment: usize,
    data: Vec<u8>,
}

const U8: u32 = 0;
const U32: u32 = 4;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(name.as_bytes())[..], &kind.to_le_bytes(), value].concat()
}

fn array(name: &str, kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    key(name, ARRAY, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat())
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dim_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let count = (dims.len() as u32).to_le_bytes();
    [&string(name.as_bytes())[..], &count, &dim_bytes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Gguf {
    /// One F32 matrix of 2 rows of 4 and no keys.
    fn small() -> Gguf {
        Gguf {
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![],
            tensors: vec![tensor("w", &[4, 2], 0, 0)],
            alignment: 32,
            data: (0..32).collect(),
        }
    }

    fn keys(keys: &[Vec<u8>]) -> Gguf {
        Gguf { keys: keys.to_vec(), ..Gguf::small() }
    }

    fn tensors(tensors: &[Vec<u8>], data_len: usize) -> Gguf {
        Gguf { tensors: tensors.to_vec(), data: vec![0; data_len], ..Gguf::small() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|part| out.extend(part));
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    fn open(&self) -> tensor::Result<WeightFile> {
        WeightFile::from_gguf_bytes("hostile.gguf", self.bytes())
    }

    /// The message of a `Malformed` error with all of `parts` in it.
    fn assert_malformed(&self, parts: &[&str]) {
        match self.open() {
            Err(error @ Error::Malformed { .. }) => {
                let message = error.to_string();
                for part in parts.iter().chain(&["hostile.gguf"]) {
                    assert!(message.contains(part), "{part:?} should be in {message:?}");
                }
            }
            other => panic!("expected Malformed about {parts:?}, found {other:?}"),
        }
    }

    fn assert_unsupported(&self, parts: &[&str]) {
        match self.open() {
            Err(error @ Error::Unsupported { .. }) => {
                let message = error.to_string();
                for part in parts.iter().chain(&["hostile.gguf"]) {
                    assert!(message.contains(part), "{part:?} should be in {message:?}");
                }
            }
            other => panic!("expected Unsupported about {parts:?}, found {other:?}"),
        }
    }
}

#[test]
fn the_honest_file_is_read() {
    let file = Gguf::small().open().unwrap();
    let w = file.tensor("w").unwrap();
    assert_eq!((w.rows, w.cols, w.row_bytes()), (2, 4, 16));
    assert_eq!(file.bytes(w), (0..32).collect::<Vec<u8>>());
}

mod published {
    use super::*;

    /// llama.cpp #26978: a dimension so large that padding it wraps to zero.
    #[test]
    fn a_dimension_whose_padding_wraps_to_zero() {
        for dim in [u64::MAX, u64::MAX - 30, i64::MAX as u64, 1 << 63] {
            for kind in [0, 8, 12] {
                Gguf::tensors(&[tensor("w", &[dim], kind, 0)], 64).assert_malformed(&["tensor w"]);
                Gguf::tensors(&[tensor("w", &[32, dim], kind, 0)], 64).assert_malformed(&["tensor w"]);
            }
        }
    }

    /// llama.cpp #18674: 2^42 + 1 as a dimension, and products of dimensions that wrap.
    #[test]
    fn dimensions_whose_product_wraps() {
        Gguf::tensors(&[tensor("w", &[(1 << 42) + 1], 0, 0)], 64).assert_malformed(&["tensor w"]);
        Gguf::tensors(&[tensor("w", &[(1 << 42) + 1, 1 << 22], 0, 0)], 64).assert_malformed(&["tensor w"]);
        // 2^64 elements, which wrap to none.
        Gguf::tensors(&[tensor("w", &[1 << 32, 1 << 32], 0, 0)], 64)
            .assert_malformed(&["dimensions", "tensor w"]);
        Gguf::tensors(&[tensor("w", &[1 << 16; 4], 0, 0)], 64).assert_malformed(&["dimensions", "tensor w"]);
        // 2^62 + 1 elements of four bytes, which wrap to four.
        Gguf::tensors(&[tensor("w", &[(1 << 62) + 1], 0, 0)], 64)
            .assert_malformed(&["dimensions", "tensor w"]);
    }

    /// llama.cpp #6774: a truncated file, mapped, ended the process when the missing part was touched.
    #[test]
    fn a_file_truncated_anywhere() {
        let mut gguf = Gguf::keys(&[
            key("a", U32, &7u32.to_le_bytes()),
            array("tokens", STRING, 2, &[string(b"x"), string(b"yz")].concat()),
        ]);
        gguf.tensors.push(tensor("v", &[3], 0, 32));
        gguf.data = vec![1; 44];
        let whole = gguf.bytes();
        WeightFile::from_gguf_bytes("whole", whole.clone()).unwrap();
        for len in 0..whole.len() {
            let error = WeightFile::from_gguf_bytes("cut", whole[..len].to_vec()).unwrap_err();
            assert!(matches!(error, Error::Malformed { .. }), "{len}: {error}");
        }
    }

    /// llama.cpp #26690: token scores stored as bytes were read as floats, beyond the array's end.
    #[test]
    fn scores_typed_as_bytes() {
        let file = Gguf::keys(&[array("tokenizer.ggml.scores", U8, 4, &[1; 4])]).open().unwrap();
        let Description::Gguf(metadata) = file.description() else { panic!("metadata") };
        let message = metadata.floats("tokenizer.ggml.scores").unwrap_err().to_string();
        assert!(message.contains("tokenizer.ggml.scores: expected an array of floats"), "{message}");
    }

    /// Ollama #8456: tensors that do not lie on the alignment are valid and must load.
    #[test]
    fn tensors_off_the_alignment_load() {
        let gguf = Gguf {
            data: (0..60).collect(),
            ..Gguf::tensors(&[tensor("a", &[3], 0, 1), tensor("b", &[32], 8, 13 + 5)], 0)
        };
        let file = gguf.open().unwrap();
        assert_eq!(file.bytes(file.tensor("a").unwrap()), (1..13).collect::<Vec<u8>>());
        assert_eq!(file.bytes(file.tensor("b").unwrap()), (18..52).collect::<Vec<u8>>());
    }

    #[test]
    fn an_absurd_vocabulary_is_refused_before_memory_is_asked_for() {
        for count in [u64::MAX, 1 << 61, 1 << 40, 1 << 24, 1000] {
            for kind in [U8, U32, F32, BOOL, STRING, 10, 12] {
                Gguf::keys(&[array("tokenizer.ggml.tokens", kind, count, &[0; 40])])
                    .assert_malformed(&["tokenizer.ggml.tokens"]);
            }
        }
    }
}

#[test]
fn unknown_versions_and_magics() {
    Gguf { version: 1, ..Gguf::small() }.assert_unsupported(&["version 1"]);
    Gguf { version: 3u32.swap_bytes(), ..Gguf::small() }.assert_unsupported(&["big-endian"]);
    for version in [0, 4, u32::MAX] {
        Gguf { version, ..Gguf::small() }.assert_malformed(&["version", &version.to_string()]);
    }
    assert!(WeightFile::from_gguf_bytes("x", b"GGML\x03\0\0\0".to_vec()).is_err());
}

#[test]
fn counts_beyond_the_file() {
    for count in [2, 1 << 20, 1 << 40, u64::MAX] {
        Gguf { tensor_count: Some(count), ..Gguf::small() }.assert_malformed(&["tensor"]);
        Gguf { key_count: Some(count), ..Gguf::small() }.assert_malformed(&[]);
    }
}

#[test]
fn texts_longer_than_the_file_or_not_utf8() {
    let mut long = key("k", STRING, &string(b"value"));
    let at = long.len() - 5 - 8;
    long[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    Gguf::keys(&[long]).assert_malformed(&["the value of key k", &u64::MAX.to_string()]);
    Gguf::keys(&[key("k", STRING, &string(b"\xff"))]).assert_malformed(&["the value of key k", "UTF-8"]);
    Gguf::keys(&[u64::MAX.to_le_bytes().to_vec()]).assert_malformed(&["key 0"]);
}

#[test]
fn duplicate_keys_and_tensors() {
    let twice = key("general.name", BOOL, &[1]);
    Gguf::keys(&[twice.clone(), twice]).assert_malformed(&["general.name", "a second one"]);
    Gguf::tensors(&[tensor("w", &[4], 0, 0), tensor("w", &[4], 0, 32)], 64).assert_malformed(&["tensor w"]);
}

#[test]
fn overlapping_tensors() {
    let pair = |offset| Gguf::tensors(&[tensor("a", &[4, 2], 0, 0), tensor("b", &[4], 0, offset)], 64);
    for offset in [0, 4, 16, 31] {
        pair(offset).assert_malformed(&["tensor", "ends at byte"]);
    }
    assert!(pair(32).open().is_ok());
}

#[test]
fn offsets_beyond_the_file() {
    for offset in [1, 1 << 40, u64::MAX, u64::MAX - 31] {
        Gguf::tensors(&[tensor("w", &[4, 2], 0, offset)], 32).assert_malformed(&["tensor w"]);
    }
}

#[test]
fn dimensions_and_blocks() {
    Gguf::tensors(&[tensor("w", &[], 0, 0)], 64).assert_malformed(&["number of dimensions", "tensor w"]);
    Gguf::tensors(&[tensor("w", &[1; 5], 0, 0)], 64).assert_malformed(&["number of dimensions", "tensor w"]);
    Gguf::tensors(&[tensor("w", &[0, 4], 0, 0)], 64).assert_malformed(&["dimensions", "tensor w"]);
    Gguf::tensors(&[tensor("w", &[48], 8, 0)], 64).assert_malformed(&[
        "tensor w",
        "Q8_0's block of 32",
        "48",
    ]);
}

#[test]
fn unknown_encodings_are_named() {
    for (kind, name) in [(16, "IQ2_XXS"), (39, "MXFP4"), (34, "TQ1_0"), (9999, "9999")] {
        Gguf::tensors(&[tensor("blk.0.w", &[256], kind, 0)], 512)
            .assert_unsupported(&["blk.0.w", name, "Q4_K"]);
    }
}

#[test]
fn value_types_that_are_wrong() {
    Gguf::keys(&[key("k", 13, &[0; 8])]).assert_malformed(&["type of key k", "13"]);
    Gguf::keys(&[array("k", 13, 1, &[0; 8])]).assert_malformed(&["type of key k", "13"]);
    Gguf::keys(&[array("k", ARRAY, 1, &[0; 12])]).assert_unsupported(&["key k", "array of arrays"]);
    Gguf::keys(&[key("k", BOOL, &[2])]).assert_malformed(&["boolean of key k", "2"]);
    Gguf::keys(&[array("k", BOOL, 2, &[1, 255])]).assert_malformed(&["boolean of key k", "255"]);
}

#[test]
fn alignments() {
    let aligned = |alignment: u32| Gguf {
        alignment: (alignment as usize).clamp(1, 1 << 12),
        ..Gguf::keys(&[key("general.alignment", U32, &alignment.to_le_bytes())])
    };
    for alignment in [1, 2, 8, 24, 64, 4096] {
        let file = aligned(alignment).open().unwrap();
        assert_eq!(file.bytes(file.tensor("w").unwrap()), (0..32).collect::<Vec<u8>>(), "{alignment}");
    }
    aligned(0).assert_malformed(&["general.alignment"]);
    aligned(u32::MAX).assert_malformed(&["tensor w"]);
    let text = Gguf::keys(&[key("general.alignment", STRING, &string(b"32"))]).open().unwrap_err();
    assert!(text.to_string().contains("general.alignment"), "{text}");
}

#[test]
fn a_split_model_is_named_as_such() {
    Gguf::keys(&[key("split.count", 2, &3u16.to_le_bytes())]).assert_unsupported(&["3 GGUF files", "merge"]);
}

#[test]
fn control_characters_of_a_name_do_not_reach_the_terminal() {
    let error = Gguf::tensors(&[tensor("\u{1b}[2J", &[0], 0, 0)], 64).open().unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

/// A file with everything in it, for mutation.
fn rich() -> Vec<u8> {
    let keys = [
        key("general.architecture", STRING, &string(b"llama")),
        key("general.alignment", U32, &64u32.to_le_bytes()),
        array("tokenizer.ggml.tokens", STRING, 3, &[string(b"a"), string(b""), string(b"bc")].concat()),
        array("tokenizer.ggml.scores", F32, 3, &[0; 12]),
        array("flags", BOOL, 2, &[0, 1]),
    ];
    let tensors = [tensor("a", &[32, 2], 8, 0), tensor("b", &[5, 2, 2], 1, 68), tensor("c", &[256], 12, 108)];
    Gguf { keys: keys.to_vec(), alignment: 64, ..Gguf::tensors(&tensors, 252) }.bytes()
}

/// Touches everything that an opened file offers.
fn read_all(file: &WeightFile) -> u64 {
    file.tensors().iter().flat_map(|t| file.bytes(t)).map(|&b| u64::from(b)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_open_or_fail_cleanly(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = rich();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(file) = WeightFile::from_gguf_bytes("mutated", bytes) {
            read_all(&file);
        }
    }

    #[test]
    fn numbers_replaced_by_extremes_open_or_fail_cleanly(
        at in any::<prop::sample::Index>(),
        value in prop_oneof![
            Just(u64::MAX), Just(1 << 63), Just(i64::MAX as u64), Just(1 << 32), Just(u64::MAX - 31), Just(0), any::<u64>()
        ],
    ) {
        let mut bytes = rich();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        if let Ok(file) = WeightFile::from_gguf_bytes("mutated", bytes) {
            read_all(&file);
        }
    }
}
