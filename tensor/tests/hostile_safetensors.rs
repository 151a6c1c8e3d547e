//! Safetensors files that lie give a typed error that names the tensor; never a panic or a read outside the file.

use proptest::prelude::*;
use serde_json::json;
use tensor::Error;
use tensor::files::WeightFile;

fn file(header: &str, data_len: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; data_len]].concat()
}

fn open(header: serde_json::Value, data_len: usize) -> tensor::Result<WeightFile> {
    WeightFile::from_safetensors_bytes("hostile.safetensors", file(&header.to_string(), data_len))
}

fn one(dtype: &str, shape: serde_json::Value, offsets: [u64; 2]) -> serde_json::Value {
    json!({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})
}

fn assert_malformed(result: tensor::Result<WeightFile>, parts: &[&str]) {
    match result {
        Err(error @ Error::Malformed { .. }) => {
            let message = error.to_string();
            for part in parts.iter().chain(&["hostile.safetensors"]) {
                assert!(message.contains(part), "{part:?} should be in {message:?}");
            }
        }
        other => panic!("expected Malformed about {parts:?}, found {other:?}"),
    }
}

#[test]
fn the_honest_file_is_read() {
    let opened = open(one("F16", json!([2, 3]), [0, 12]), 12).unwrap();
    let w = opened.tensor("w").unwrap();
    assert_eq!((w.rows, w.cols), (2, 3));
    assert_eq!(opened.bytes(w), [7; 12]);
}

#[test]
fn a_scalar_is_one_row_of_one() {
    let opened = open(one("F32", json!([]), [0, 4]), 4).unwrap();
    let w = opened.tensor("w").unwrap();
    assert_eq!((w.rows, w.cols, w.shape.len()), (1, 1, 0));
}

#[test]
fn headers_that_lie_about_their_length() {
    for bytes in
        [&b""[..], b"1234567", &u64::MAX.to_le_bytes(), &100u64.to_le_bytes(), &100_000_001u64.to_le_bytes()]
    {
        let result = WeightFile::from_safetensors_bytes("hostile.safetensors", bytes.to_vec());
        assert_malformed(result, &[]);
    }
}

#[test]
fn headers_that_are_no_json_or_another_schema() {
    for header in ["", "{", "[]", "null", "{\"w\":1}", "{\"w\":{}}", "\u{0}"] {
        let result = WeightFile::from_safetensors_bytes("hostile.safetensors", file(header, 4));
        assert_malformed(result, &["header"]);
    }
    let deep = "[".repeat(100_000);
    let result = WeightFile::from_safetensors_bytes("hostile.safetensors", file(&deep, 4));
    assert_malformed(result, &["header"]);
}

#[test]
fn other_dtypes_are_named() {
    for dtype in ["F8_E4M3", "I64", "U8", "F64"] {
        let error = open(one(dtype, json!([8]), [0, 64]), 64).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("tensor w") && message.contains(dtype) && message.contains("BF16"),
            "{message}"
        );
    }
    assert_malformed(open(one("F7", json!([8]), [0, 64]), 64), &["tensor w", "F7"]);
}

#[test]
fn shapes_that_overflow_or_are_empty() {
    for shape in [
        json!([0]),
        json!([1u64 << 32, 1u64 << 32]),
        json!([u64::MAX]),
        json!([u64::MAX, 0]),
        json!([1u64 << 62]),
    ] {
        assert_malformed(open(one("F32", shape, [0, 0]), 0), &["shape of tensor w"]);
    }
}

#[test]
fn offsets_that_disagree_with_the_shape_or_the_file() {
    for offsets in [[0, 23], [0, 25], [24, 0], [u64::MAX - 24, u64::MAX], [u64::MAX, 23]] {
        assert_malformed(open(one("F32", json!([2, 3]), offsets), 24), &["tensor w"]);
    }
    assert_malformed(open(one("F32", json!([2, 3]), [0, 24]), 20), &["tensor w", "4 are missing"]);
    assert_malformed(open(one("F32", json!([2, 3]), [0, 24]), 25), &["1 bytes more"]);
    assert_malformed(open(one("F32", json!([2, 3]), [1, 25]), 25), &["tensor w"]);
}

#[test]
fn overlapping_tensors() {
    let header = json!({
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
    });
    assert_malformed(open(header, 24), &["tensor b"]);
}

/// Sizes near 2^61 each, whose sum wraps: the safetensors crate's own check of the file's end adds without care there.
#[test]
fn many_huge_tensors() {
    let step = 1u64 << 61;
    let header: serde_json::Map<String, serde_json::Value> = (0..7)
        .map(|i| {
            let entry =
                json!({"dtype": "F32", "shape": [step / 4], "data_offsets": [i * step, (i + 1) * step]});
            (format!("t{i}"), entry)
        })
        .collect();
    assert_malformed(open(header.into(), 16), &["tensor t"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_open_or_fail_cleanly(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let header = json!({
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "b": {"dtype": "BF16", "shape": [5], "data_offsets": [16, 26]},
        });
        let mut bytes = file(&header.to_string(), 26);
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(opened) = WeightFile::from_safetensors_bytes("mutated", bytes) {
            let _sum: u64 = opened.tensors().iter().flat_map(|t| opened.bytes(t)).map(|&b| u64::from(b)).sum();
        }
    }
}
