//! The database: what is written is read back, nothing is ever changed, and a file that cannot be used is left alone.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::json;

use super::*;
use crate::Error;

fn meta(kind: &str) -> RunMeta {
    RunMeta {
        kind: kind.into(),
        machine: "0123456789abcdef".into(),
        machine_description: json!({ "cpu": "some" }),
        build: Build {
            version: "0.1.0".into(),
            revision: "abc".into(),
            features: String::new(),
            kernels: "avx2".into(),
        },
        model: Some(ModelId { hash: "h".into(), name: "smollm2-135m".into(), precision: "q4/kv-f16".into() }),
        workload: json!({ "depth": 512 }),
        prediction: json!({ "low": 1.0 }),
        preflight: json!(null),
        marks: vec!["load: 3.0".into()],
        command: "plumb ab".into(),
    }
}

fn sample(arm: usize, pair: u32, elapsed_ns: u64) -> SampleRow {
    SampleRow {
        arm: Some(arm),
        phase: "ab".into(),
        pair,
        place: 2 * pair + arm as u32,
        at_ns: 7,
        elapsed_ns,
        tokens: 10,
        bytes: 1000,
        detail: json!({ "role": arm }),
    }
}

fn record(database: &mut Database, kind: &str) -> i64 {
    let mut recorder = Recorder::begin(database, meta(kind));
    for label in ["a", "b"] {
        let asked = Settings::from([("threads".into(), "2".into())]);
        recorder.arm(ArmRow {
            label: label.into(),
            asked: asked.clone(),
            applied: asked,
            ..ArmRow::default()
        });
    }
    recorder.sample(sample(0, 0, 1000));
    recorder.sample(sample(1, 0, 2000));
    recorder.figure(Figure {
        name: "ratio".into(),
        unit: "ratio".into(),
        value: 0.5,
        low: Some(0.4),
        high: Some(0.6),
        ..Figure::default()
    });
    match recorder.end(State::Complete, json!({ "verdict": "slower" }), vec!["late".into()]) {
        Kept::Run(id) => id,
        other => panic!("{other}"),
    }
}

#[test]
fn a_run_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/results.sqlite");
    let id = record(&mut Database::open(&path).unwrap(), "ab");
    let run = Database::open(&path).unwrap().run(id).unwrap();
    assert_eq!(run.meta, meta("ab"));
    assert_eq!(run.samples, [sample(0, 0, 1000), sample(1, 0, 2000)]);
    assert_eq!(run.arms[1].label, "b");
    assert_eq!(run.figures[0].high, Some(0.6));
    assert_eq!((run.state, &run.verdict["verdict"]), (State::Complete, &json!("slower")));
    assert_eq!(run.marks().collect::<Vec<_>>(), ["load: 3.0", "late"]);
    let exported = serde_json::to_string(&run).unwrap();
    assert_eq!(serde_json::from_str::<Run>(&exported).unwrap(), run);
}

#[test]
fn runs_are_found_by_kind_model_and_number() {
    let mut database = Database::in_memory().unwrap();
    let ids: Vec<i64> = ["ab", "bench", "ab"].map(|kind| record(&mut database, kind)).into();
    let found = |filter: Filter| database.runs(&filter).unwrap().iter().map(|r| r.id).collect::<Vec<_>>();
    assert_eq!(found(Filter::default()), ids);
    assert_eq!(found(Filter { kind: Some("ab".into()), ..Filter::default() }), [ids[0], ids[2]]);
    assert_eq!(found(Filter { model: Some("135m".into()), limit: Some(1), ..Filter::default() }), [ids[2]]);
    assert_eq!(found(Filter { model: Some("gemma".into()), ..Filter::default() }), [0i64; 0]);
    assert!(database.run(99).unwrap_err().to_string().contains("99"));
}

#[test]
fn a_run_that_never_ended_is_partial() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    let mut database = Database::open(&path).unwrap();
    let mut recorder = Recorder::begin(&mut database, meta("ab"));
    recorder.arm(ArmRow { label: "a".into(), ..ArmRow::default() });
    recorder.sample(sample(0, 0, 5));
    recorder.flush();
    let id = recorder.run().unwrap();
    drop(recorder);
    let run = Database::open(&path).unwrap().run(id).unwrap();
    assert_eq!((run.state, run.samples.len()), (State::Partial, 1));
}

#[test]
fn no_row_can_be_changed_or_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    record(&mut Database::open(&path).unwrap(), "ab");
    let raw = Connection::open(&path).unwrap();
    for sql in [
        "UPDATE sample SET elapsed_ns = 1",
        "DELETE FROM sample",
        "UPDATE outcome SET state = 'complete'",
        "DELETE FROM run",
    ] {
        let error = raw.execute(sql, []).unwrap_err().to_string();
        assert!(error.contains("only ever added"), "{sql}: {error}");
    }
}

fn is_untouched(path: &Path, before: &[u8]) -> PathBuf {
    let Err(Error::Database { copy, why, .. }) = Database::open(path) else { panic!("it was opened") };
    assert_eq!(std::fs::read(path).unwrap(), before, "{why}");
    assert_eq!(std::fs::read(&copy).unwrap(), before, "{why}");
    copy
}

#[test]
fn a_newer_file_is_left_alone_and_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    record(&mut Database::open(&path).unwrap(), "ab");
    let raw = Connection::open(&path).unwrap();
    raw.pragma_update(None, "user_version", 99).unwrap();
    raw.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let copy = is_untouched(&path, &before);
    assert!(copy.to_string_lossy().ends_with("r.sqlite.newer-99.1"), "{}", copy.display());
    // Asking again makes no second copy.
    assert_eq!(is_untouched(&path, &before), copy);
    let message = Database::open(&path).unwrap_err().to_string();
    assert!(message.contains("newer plumb") && message.contains("newer-99.1"), "{message}");
}

#[test]
fn a_damaged_file_is_left_alone_and_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    for (number, bytes) in
        [b"no database at all, but long enough to be looked at".to_vec(), damaged()].into_iter().enumerate()
    {
        std::fs::write(&path, &bytes).unwrap();
        let copy = is_untouched(&path, &bytes);
        assert!(copy.to_string_lossy().contains("damaged"), "{number}: {}", copy.display());
    }
}

/// A real database with a page overwritten.
fn damaged() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sqlite");
    let mut database = Database::open(&path).unwrap();
    for _ in 0..50 {
        record(&mut database, "ab");
    }
    drop(database);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 8192 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    bytes
}

#[test]
fn someone_elses_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1);").unwrap();
    raw.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(is_untouched(&path, &before).to_string_lossy().contains("foreign"));
}

#[test]
fn an_empty_file_becomes_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    std::fs::write(&path, b"").unwrap();
    record(&mut Database::open(&path).unwrap(), "ab");
}

#[test]
fn raw_samples_outlive_a_database_that_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sqlite");
    let mut database = Database::open(&path).unwrap();
    // SQLite's own limit on the file's size fails as a full disk does.
    database.limit_pages_for_tests();
    let mut recorder = Recorder::begin(&mut database, meta("ab"));
    recorder.arm(ArmRow { label: "a".into(), ..ArmRow::default() });
    for pair in 0..20_000 {
        recorder.sample(sample(0, pair, 5));
    }
    recorder.flush();
    assert!(recorder.trouble().unwrap().contains("full"), "{:?}", recorder.trouble());
    let Kept::File { path: kept, why } = recorder.end(State::Complete, json!(null), Vec::new()) else {
        panic!("the database took them")
    };
    assert!(why.contains("full"), "{why}");
    let run: Run = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    std::fs::remove_file(&kept).unwrap();
    assert_eq!(run.samples.len(), 20_000);
}

fn run_of(machine: &str, precision: &str, id: i64, value: f64) -> Run {
    let mut meta = meta("bench");
    meta.machine = machine.into();
    meta.model.as_mut().unwrap().precision = precision.into();
    meta.marks.clear();
    let figure = |depth: f64| Figure {
        name: "generation".into(),
        unit: "tokens/s".into(),
        x: Some(depth),
        value: value - depth / 100.0,
        ..Figure::default()
    };
    Run {
        id,
        begun_at: "2024-05-01T10:00:00Z".into(),
        meta,
        state: State::Complete,
        ended_at: None,
        verdict: json!(null),
        end_marks: Vec::new(),
        arms: Vec::new(),
        samples: Vec::new(),
        figures: vec![figure(0.0), figure(512.0)],
    }
}

#[test]
fn machines_and_precision_classes_never_share_a_line() {
    let runs = [
        run_of("aaaaaaaaaaaaaaaa", "q4", 1, 100.0),
        run_of("aaaaaaaaaaaaaaaa", "q4", 2, 101.0),
        run_of("aaaaaaaaaaaaaaaa", "q8", 3, 60.0),
        run_of("bbbbbbbbbbbbbbbb", "q4", 4, 30.0),
    ];
    let chart = figures(&runs, "generation").unwrap().chart;
    let lengths: Vec<usize> = chart.series.iter().map(|s| s.points.len()).collect();
    assert_eq!(lengths, [4, 2, 2]);
    let footer = chart.footer.join("\n");
    for part in ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "runs 1, 2, 3, 4", "2024-05-01"] {
        assert!(footer.contains(part), "{footer}");
    }
    chart.svg().unwrap();
}

#[test]
fn a_picture_has_one_unit_and_ratios_have_their_line() {
    let mut runs = [run_of("aaaaaaaaaaaaaaaa", "q4", 1, 100.0), run_of("aaaaaaaaaaaaaaaa", "q4", 2, 100.0)];
    runs[1].figures[0].unit = "ms".into();
    assert!(figures(&runs, "generation").unwrap_err().to_string().contains("one unit"));
    assert!(figures(&runs, "nothing").unwrap_err().to_string().contains("none"));
    for run in &mut runs {
        run.figures.iter_mut().for_each(|f| f.unit = "ratio".into());
    }
    assert_eq!(figures(&runs, "generation").unwrap().chart.rules[0].label, "1.00×");
}

#[test]
fn a_comparison_is_drawn_pair_by_pair() {
    let mut run = run_of("aaaaaaaaaaaaaaaa", "q4", 1, 1.0);
    assert!(pairs(&run).is_err());
    run.samples =
        (0..6).flat_map(|pair| [sample(0, pair, 1000), sample(1, pair, 900 + u64::from(pair))]).collect();
    let chart = pairs(&run).unwrap().chart;
    assert_eq!(chart.series[0].points.len(), 6);
    assert_eq!(chart.rules[0].y, 1.0);
}

#[test]
fn runs_that_differ_in_kind_are_not_compared() {
    let first = run_of("aaaaaaaaaaaaaaaa", "q4", 1, 100.0);
    let good = compare(&first, &run_of("aaaaaaaaaaaaaaaa", "q4", 2, 50.0));
    assert_eq!((good.rows.len(), good.rows[0].ratio), (2, Some(0.5)));
    assert!(good.notes[0].contains("plumb ab"));
    for other in [run_of("bbbbbbbbbbbbbbbb", "q4", 2, 50.0), run_of("aaaaaaaaaaaaaaaa", "q8", 2, 50.0)] {
        let refused = compare(&first, &other);
        assert!(refused.rows.is_empty() && refused.refusals.len() == 1, "{:?}", refused.refusals);
    }
}
