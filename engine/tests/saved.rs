//! A sequence's cache in a file: what follows it has the bits it would have had, and no other file is taken for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cpu::CpuDevice;
use engine::prepare::prepare;
use engine::{Feed, LoadOptions, LogitRows, Model, Sequence};
use tensor::files::WeightFile;
use tensor::kv::KvSettings;

fn load(kv: &str, context: usize) -> Model {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models/gemma3-256.gguf");
    let file = WeightFile::open(path).unwrap();
    let preparation = prepare(&file).unwrap();
    let weights = Arc::new(preparation.in_memory(&file).unwrap());
    let kv = KvSettings { window: 9, sinks: 4, ..kv.parse().unwrap() };
    let options = LoadOptions { context: Some(context), kv, ..LoadOptions::default() };
    Model::load(&CpuDevice::best().unwrap(), preparation.bundle.spec, weights, &options).unwrap()
}

fn grow(model: &mut Model, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    let mut row = vec![0.0; model.plan().vocab];
    model.step(&mut [Feed { sequence, tokens, logits: LogitRows::Last }], &mut row).unwrap();
    row.into_iter().map(f32::to_bits).collect()
}

fn text(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 3 + 7 * i + 1) % 50).collect()
}

fn refused(model: &mut Model, path: &Path, name: &str) -> String {
    let before = model.cache_use();
    let e = model.load_sequence(path, name).unwrap_err().to_string();
    assert_eq!(model.cache_use(), before, "a refused file leaves the cache alone");
    assert!(e.contains(&path.display().to_string()), "{e}");
    e
}

#[test]
fn a_loaded_sequence_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    for kv in ["f16", "q8", "q4", "q2/q6", "f16/q3"] {
        let mut model = load(kv, 200);
        let mut sequence = model.sequence(&[]);
        grow(&mut model, &mut sequence, &text(117));
        let bytes = model.save(&sequence, &path, "this one", "beside it").unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        assert!(bytes > model.plan().kv.bytes_held(117) && bytes < model.plan().kv.bytes_held(117) + 4096);
        let expected: Vec<_> = (0..40).map(|t| grow(&mut model, &mut sequence, &[t])).collect();

        let mut other = load(kv, 200);
        let (mut loaded, note) = other.load_sequence(&path, "this one").unwrap();
        assert_eq!((loaded.tokens(), note.as_str()), (&text(117)[..], "beside it"));
        let found: Vec<_> = (0..40).map(|t| grow(&mut other, &mut loaded, &[t])).collect();
        assert!(found == expected, "{kv}");
        // Dropped, it is a prefix like any other.
        let longer = loaded.tokens().to_vec();
        drop(loaded);
        assert_eq!(other.sequence(&longer).len(), longer.len() - 1, "{kv}");
    }
}

#[test]
fn a_foreign_or_damaged_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let mut model = load("q4", 200);
    let mut sequence = model.sequence(&[]);
    grow(&mut model, &mut sequence, &text(100));
    model.save(&sequence, &path, "this one", "").unwrap();
    drop(sequence);
    assert!(refused(&mut model, &path, "another").contains("model"));
    assert!(refused(&mut load("q5", 200), &path, "this one").contains("q5"));
    let e = load("q4", 99).load_sequence(&path, "this one").unwrap_err().to_string();
    assert!(e.contains("100") && e.contains("99"), "{e}");

    let whole = std::fs::read(&path).unwrap();
    let other = folder.path().join("damaged");
    for cut in [0, 1, 15, 16, 31, 200, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&other, &whole[..cut]).unwrap();
        refused(&mut model, &other, "this one");
    }
    for at in (0..whole.len()).step_by(whole.len() / 97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&other, &bytes).unwrap();
        refused(&mut model, &other, "this one");
    }
    assert!(refused(&mut model, folder.path().join("absent").as_path(), "this one").contains("absent"));
    // The whole file still is what it was.
    model.load_sequence(&path, "this one").unwrap();
}

#[test]
fn two_savers_of_one_name_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    std::thread::scope(|scope| {
        for n in [20, 90] {
            let path = &path;
            scope.spawn(move || {
                let mut model = load("q4", 200);
                let mut sequence = model.sequence(&[]);
                grow(&mut model, &mut sequence, &text(n));
                for _ in 0..20 {
                    model.save(&sequence, path, "this one", "").unwrap();
                }
            });
        }
    });
    let mut model = load("q4", 200);
    let (sequence, _) = model.load_sequence(&path, "this one").unwrap();
    assert!([20, 90].contains(&sequence.len()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else stays behind");
}
