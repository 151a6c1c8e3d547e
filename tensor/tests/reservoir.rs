//! The `.plumb` file: what was packed is what is opened; what is damaged, cut or of another version is refused.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tensor::reservoir::{Builder, Kind, Part, Reservoir, Source, VERSION};
use tensor::{Encoding, Error, panels};

const HUGE: u64 = 2 << 20;

/// 40 rows of Q8_0 (three panels, the last half empty), and two vectors.
fn tensors() -> Vec<(String, Kind)> {
    vec![
        ("w".into(), Kind::Panels { encoding: Encoding::Q8_0, rows: 40, cols: 64 }),
        ("norm".into(), Kind::Vector { len: 5 }),
        ("bias".into(), Kind::Vector { len: 3 }),
    ]
}

fn builder() -> Builder {
    Builder::new(&json!({"arch": "test"}), Source::default(), tensors()).unwrap()
}

/// Bytes that tell which part they belong to.
fn byte_of(part: Part, seed: u8) -> u8 {
    seed + (part.tensor * 10 + part.panel) as u8
}

fn write(path: &Path, seed: u8) -> Reservoir {
    let mut fill = |part: Part, out: &mut [u8]| {
        out.fill(byte_of(part, seed));
        Ok(())
    };
    builder().write_file(path, &mut fill, &mut |_, _| {}).unwrap()
}

fn packed() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.plumb");
    write(&path, 1);
    (folder, path)
}

fn assert_contents(reservoir: &Reservoir, seed: u8) {
    let panel = panels::panel_bytes(Encoding::Q8_0, 64);
    let w = reservoir.bytes(reservoir.entry("w").unwrap());
    assert_eq!(w.len(), 3 * panel);
    for (i, bytes) in w.chunks(panel).enumerate() {
        assert!(bytes.iter().all(|&b| b == byte_of(Part { tensor: 0, panel: i }, seed)));
    }
    assert_eq!(reservoir.bytes(reservoir.entry("norm").unwrap()), [seed + 10; 20]);
    assert_eq!(reservoir.bytes(reservoir.entry("bias").unwrap()), [seed + 20; 12]);
    for entry in reservoir.entries() {
        assert!(reservoir.bytes(entry).as_ptr().addr().is_multiple_of(64), "{}", entry.name);
    }
    assert_eq!(reservoir.bytes(&reservoir.entries()[0]).as_ptr().addr() as u64 % HUGE, 0, "the region");
    assert_eq!(reservoir.model::<Value>().unwrap(), json!({"arch": "test"}));
    reservoir.verify(&mut |_, _| {}).unwrap();
}

#[test]
fn what_was_packed_is_what_is_opened() {
    let (_folder, path) = packed();
    let opened = Reservoir::open(&path).unwrap();
    assert_contents(&opened, 1);
    assert!(!opened.is_private());
    assert_eq!(opened.len_bytes(), std::fs::metadata(&path).unwrap().len());
    assert!(opened.entry("absent").is_none());
    let private = opened.to_private().unwrap();
    assert!(private.is_private());
    drop(opened);
    assert_contents(&private, 1);
    let refaulted = Reservoir::open(&path).unwrap().refault().unwrap();
    assert_contents(&refaulted, 1);
    if cfg!(target_os = "linux") {
        assert!(refaulted.resident_bytes() > 0);
    }
}

#[test]
fn in_memory_is_the_same_reservoir() {
    let mut fill = |part: Part, out: &mut [u8]| {
        out.fill(byte_of(part, 3));
        Ok(())
    };
    let reservoir = builder().in_memory(&mut fill, &mut |_, _| {}).unwrap();
    assert!(reservoir.is_private());
    assert_contents(&reservoir, 3);
}

/// Real rows through `pack_panel`, read back by the panels' own decode, equal the block decode of the source.
#[test]
fn packed_rows_decode_as_their_source() {
    let (rows, cols, encoding) = (21, 256, Encoding::Q4_K);
    let row_bytes = encoding.row_bytes(cols).unwrap();
    let source: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 31 % 251) as u8 & 0x3f).collect();
    let tensors = vec![("w".to_owned(), Kind::Panels { encoding, rows, cols })];
    let mut fill = |part: Part, out: &mut [u8]| {
        let all: Vec<&[u8]> = source.chunks(row_bytes).collect();
        let first = part.panel * panels::PANEL_ROWS;
        panels::pack_panel(encoding, cols, &all[first..rows.min(first + panels::PANEL_ROWS)], out);
        Ok(())
    };
    let reservoir =
        Builder::new(&(), Source::default(), tensors).unwrap().in_memory(&mut fill, &mut |_, _| {}).unwrap();
    let matrix = reservoir.bytes(reservoir.entry("w").unwrap());
    let panel_bytes = panels::panel_bytes(encoding, cols);
    for row in 0..rows {
        let (mut expected, mut found) = (vec![0.0; cols], vec![0.0; cols]);
        tensor::blocks::decode_row(encoding, &source[row * row_bytes..][..row_bytes], &mut expected);
        let panel = &matrix[row / 16 * panel_bytes..][..panel_bytes];
        panels::decode_row(encoding, panel, row % 16, &mut found);
        assert!(expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()), "row {row}");
    }
}

#[test]
fn a_flipped_bit_is_found_and_its_tensor_named() {
    let (_folder, path) = packed();
    let opened = Reservoir::open(&path).unwrap();
    let data_start = opened.len_bytes() - HUGE; // the region takes one huge page here
    let norm = opened.entry("norm").unwrap().clone();
    drop(opened);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(data_start + norm.offset + 7) as usize] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Reservoir::open(&path).unwrap().verify(&mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert!(error.to_string().contains("tensor norm"), "{error}");
}

#[test]
fn a_damaged_head_is_refused_at_once() {
    let (_folder, path) = packed();
    let whole = std::fs::read(&path).unwrap();
    for at in [20, 30, 50, 64, 200] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        assert!(Reservoir::from_bytes("damaged", &bytes).is_err(), "byte {at}");
    }
}

#[test]
fn a_truncated_or_longer_file_is_refused() {
    let (_folder, path) = packed();
    let whole = std::fs::read(&path).unwrap();
    for len in [0, 1, 8, 40, 63, 64, 100, HUGE as usize, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Reservoir::open(&path).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{len}: {error}");
    }
    std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    let message = Reservoir::open(&path).unwrap_err().to_string();
    assert!(message.contains("1 bytes too many"), "{message}");
}

/// So that a cached pack of another version can be made anew instead of being reported as damage.
#[test]
fn another_version_is_its_own_error() {
    let (_folder, path) = packed();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] += 1;
    match Reservoir::from_bytes("newer", &bytes) {
        Err(Error::PackVersion { expected, found, .. }) => {
            assert_eq!((expected, found), (VERSION, VERSION + 1))
        }
        other => panic!("expected PackVersion, found {other:?}"),
    }
}

#[test]
fn two_processes_may_pack_the_same_model_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.plumb");
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                assert_contents(&write(&path, 5), 5);
            });
        }
    });
    assert_contents(&Reservoir::open(&path).unwrap(), 5);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

/// A reader keeps the pack that it opened when another takes its place.
#[test]
fn replacing_a_pack_does_not_disturb_its_readers() {
    let (_folder, path) = packed();
    let old = Reservoir::open(&path).unwrap();
    write(&path, 9);
    assert_contents(&old, 1);
    assert_contents(&Reservoir::open(&path).unwrap(), 9);
}

#[test]
fn a_folder_that_does_not_exist_or_cannot_be_written_is_an_error() {
    let mut fill = |_: Part, _: &mut [u8]| Ok(());
    let error =
        builder().write_file(Path::new("/no/such/folder/m.plumb"), &mut fill, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
    let error = builder().write_file(Path::new("/proc/m.plumb"), &mut fill, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_builder_refuses_what_cannot_be_laid_out() {
    let build = |tensors: Vec<(&str, Kind)>| {
        Builder::new(&(), Source::default(), tensors.into_iter().map(|(n, k)| (n.to_owned(), k)).collect())
    };
    let vector = Kind::Vector { len: 1 };
    assert!(build(vec![("a", vector), ("a", vector)]).unwrap_err().to_string().contains("tensor a"));
    for kind in [
        Kind::Vector { len: usize::MAX },
        Kind::Panels { encoding: Encoding::Q4_K, rows: 1, cols: 255 },
        Kind::Panels { encoding: Encoding::F32, rows: 1, cols: usize::MAX / 4 },
        Kind::Panels { encoding: Encoding::Q8_0, rows: usize::MAX, cols: 32 },
    ] {
        assert!(build(vec![("a", kind)]).is_err(), "{kind:?}");
    }
    let huge = Kind::Vector { len: isize::MAX as usize / 4 };
    assert!(build(vec![("a", huge), ("b", huge), ("c", huge)]).is_err());
    let description = "x".repeat(14 << 20);
    let message = Builder::new(&description, Source::default(), vec![]).unwrap_err().to_string();
    assert!(message.contains("header"), "{message}");
}

/// Head and alignment are at most 16 MiB, whatever is stored.
#[test]
fn the_overhead_is_bounded() {
    let description = "x".repeat(13 << 20);
    let tensors: Vec<(String, Kind)> = (0..1000).map(|i| (i.to_string(), Kind::Vector { len: 17 })).collect();
    let builder = Builder::new(&description, Source::default(), tensors).unwrap();
    assert!(builder.len_bytes() - 68_000 <= 16 << 20);
}

/// Tables that lie, behind a correct checksum.
mod hostile_tables {
    use super::*;

    fn open(tensors: Value) -> tensor::Result<Reservoir> {
        let table = json!({"source": {"files": []}, "tensors": tensors}).to_string();
        let mut bytes = head(&table, HUGE, 2 * HUGE);
        bytes.resize(2 * HUGE as usize, 0);
        Reservoir::from_bytes("hostile.plumb", &bytes)
    }

    /// Written out by hand from the format's description.
    fn head(table: &str, data_offset: u64, file_len: u64) -> Vec<u8> {
        let mut head = b"plumb\r\n\x1a".to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 4]);
        for number in [table.len() as u64, 2, data_offset, file_len] {
            head.extend(number.to_le_bytes());
        }
        let hashed = [&head[..], table.as_bytes(), b"{}"].concat();
        head.extend(xxhash_rust::xxh3::xxh3_128(&hashed).to_be_bytes());
        head.extend(table.as_bytes());
        head.extend(b"{}");
        head
    }

    fn entry(name: &str, kind: Value, offset: u64, bytes: u64) -> Value {
        json!({"name": name, "kind": kind, "offset": offset, "bytes": bytes, "checksum": "0".repeat(32)})
    }

    fn assert_malformed(result: tensor::Result<Reservoir>, part: &str) {
        match result {
            Err(error @ Error::Malformed { .. }) => {
                assert!(error.to_string().contains(part), "{part:?} should be in {error}");
            }
            other => panic!("expected Malformed about {part:?}, found {other:?}"),
        }
    }

    #[test]
    fn the_honest_table_is_read() {
        assert!(open(json!([entry("a", json!({"vector": {"len": 4}}), 64, 16)])).is_ok());
    }

    #[test]
    fn offsets_sizes_and_names() {
        let vector = |name, offset, len: u64| entry(name, json!({"vector": {"len": len}}), offset, 4 * len);
        assert_malformed(open(json!([vector("a", 32, 4)])), "offset of tensor a");
        assert_malformed(open(json!([vector("a", HUGE, 4)])), "offset of tensor a");
        assert_malformed(open(json!([vector("a", u64::MAX - 63, 16)])), "offset of tensor a");
        assert_malformed(open(json!([vector("a", 0, 1 << 30)])), "offset of tensor a");
        assert_malformed(open(json!([vector("a", 0, 1), vector("a", 64, 1)])), "tensor a");
        assert_malformed(open(json!([vector("a", 0, 64), vector("b", 64, 1)])), "tensor b");
        assert_malformed(open(json!([entry("a", json!({"vector": {"len": 4}}), 0, 17)])), "size of tensor a");
        let panels = |rows: u64, cols: u64, bytes| {
            entry("a", json!({"panels": {"encoding": "Q8_0", "rows": rows, "cols": cols}}), 0, bytes)
        };
        assert_malformed(open(json!([panels(1, 31, 34)])), "tensor a");
        assert_malformed(open(json!([panels(u64::MAX, 32, 0)])), "tensor a");
        assert_malformed(open(json!([panels(1, u64::MAX - 31, 0)])), "tensor a");
        assert_malformed(open(json!([panels(1 << 60, 1 << 60, 0)])), "tensor a");
    }

    #[test]
    fn tables_of_another_schema() {
        for table in ["", "[]", "{}", "{\"source\":{\"files\":[]},\"tensors\":[{}]}"] {
            let mut bytes = head(table, HUGE, HUGE);
            bytes.resize(HUGE as usize, 0);
            assert_malformed(Reservoir::from_bytes("hostile.plumb", &bytes), "table");
        }
        let bad_checksum =
            json!([{"name": "a", "kind": {"bytes": {"len": 0}}, "offset": 0, "bytes": 0, "checksum": "+1"}]);
        assert_malformed(open(bad_checksum), "checksum");
    }

    #[test]
    fn regions_outside_the_file_or_off_the_huge_page() {
        for data_offset in [0, 64, HUGE - 1, 4 * HUGE, u64::MAX, u64::MAX - HUGE + 1] {
            let mut bytes = head("{\"source\":{\"files\":[]},\"tensors\":[]}", data_offset, 2 * HUGE);
            bytes.resize(2 * HUGE as usize, 0);
            assert!(Reservoir::from_bytes("hostile.plumb", &bytes).is_err(), "{data_offset}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn mutated_heads_open_or_fail_cleanly(edits in prop::collection::vec((0usize..1024, any::<u8>()), 1..4)) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| std::fs::read(packed().1).unwrap());
        let mut bytes = WHOLE.clone();
        for (at, value) in edits {
            bytes[at] = value;
        }
        if let Ok(reservoir) = Reservoir::from_bytes("mutated", &bytes) {
            let _ = reservoir.verify(&mut |_, _| {});
        }
    }
}
