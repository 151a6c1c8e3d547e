//! The laboratory's commands as a person types them. What they say and keep is tested, never how long anything took.

mod common;

use std::path::Path;
use std::process::Command;

use common::*;
use serde_json::Value;

/// `plumb` with a results database of its own, on whatever machine this is.
fn lab(folder: &Path, words: &[&str]) -> Command {
    let mut command = plumb(folder);
    command.args(words).arg("--db").arg(folder.join("results.sqlite"));
    command
}

fn results(folder: &Path, words: &[&str]) -> Command {
    let mut all = vec!["results"];
    all.extend(words);
    let mut command = plumb(folder);
    command.args(["results", "--db"]).arg(folder.join("results.sqlite")).args(&all[1..]);
    command
}

const COMMANDS: [&str; 9] =
    ["ab", "--a-cmd", "echo 100 t/s", "--b-cmd", "echo 50 t/s", "--rate", r"([\d.]+) t/s", "--budget", "1"];

#[test]
fn two_commands_are_compared_stored_drawn_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let found = json(lab(folder.path(), &COMMANDS).args(["--force", "--expect", "0.5"]));
    let outcome = &found["outcome"];
    assert_eq!(outcome["verdict"]["verdict"], "slower", "{found}");
    assert_eq!(outcome["ab"]["ratio"], 0.5);
    assert_eq!(outcome["expectation"][1], true);

    let listed = json(&mut results(folder.path(), &["list"]));
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["state"]), (1, &Value::from("complete")));
    let shown = json(&mut results(folder.path(), &["show", "1"]));
    assert!(shown["samples"].as_array().unwrap().len() > 20);
    assert_eq!(shown["meta"]["prediction"]["low"], 0.48);
    for name in ["pairs.svg", "pairs.png"] {
        let picture = folder.path().join(name);
        ok(results(folder.path(), &["plot", "1", "--output"]).arg(&picture));
        assert!(std::fs::metadata(&picture).unwrap().len() > 1000, "{name}");
    }
    let exported: Value =
        serde_json::from_slice(&ok(&mut results(folder.path(), &["export"])).stdout).unwrap();
    assert_eq!(exported[0], shown);
    let said = fails(&mut results(folder.path(), &["show", "7"]), 1);
    assert!(said.contains("results list"), "{said}");
}

#[test]
fn a_command_without_a_figure_is_an_error_and_the_run_is_kept_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut words = COMMANDS;
    words[4] = "echo done";
    let said = fails(lab(folder.path(), &words).arg("--force"), 1);
    assert!(said.contains("arm b") && said.contains("no figure") && said.contains("done"), "{said}");
    assert_eq!(json(&mut results(folder.path(), &["list"]))[0]["state"], "failed");
}

#[test]
fn a_command_that_hangs_is_ended_by_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut words = COMMANDS;
    words[2] = "sleep 600";
    let said = fails(lab(folder.path(), &words).args(["--force", "--limit", "0.3"]), 1);
    assert!(said.contains("arm a") && said.contains("still running after 0.3 s"), "{said}");
}

#[test]
fn settings_of_plumb_are_read_back_and_answer_alike() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let mut command = lab(folder.path(), &["ab"]);
    command.arg(&model).args(["--a", "kernels=portable,threads=1", "--b", "threads=2", "--budget", "1"]);
    command.args(["--traffic", "1MB", "--depth", "16", "--force"]);
    let found = json(&mut command);
    let answers = found["outcome"]["answers"].as_str().unwrap();
    assert!(answers.contains("same bits of logits"), "{answers}");
    assert!(!found["claim"]["says"].as_str().unwrap().is_empty(), "{found}");
    let run = json(&mut results(folder.path(), &["show", "1"]));
    assert_eq!(run["arms"][0]["applied"]["kernels"], "portable");
    assert_eq!(run["arms"][1]["applied"]["threads"], "2");
    assert!(!run["meta"]["marks"].is_null());
}

#[test]
fn a_machine_that_is_not_fit_is_refused_with_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(lab(folder.path(), &COMMANDS).arg("--max-load=-1"), 1);
    assert!(said.contains("not fit") && said.contains("--force") && said.contains("per CPU"), "{said}");
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let model = model.to_str().unwrap();
    for (words, says) in [
        (vec!["ab"], "what is to be compared"),
        (vec!["ab", model, "--force", "--a", "thread=2"], "no such setting"),
        (vec!["ab", model, "--expect", "soon"], "--expect"),
        (vec!["ab", model, "--margin", "300%"], "share"),
        (vec!["bench", model, "--prompt", "0", "--generate", "0"], "nothing to measure"),
    ] {
        let said = fails(&mut lab(folder.path(), &words), 2);
        assert!(said.contains(says), "{words:?}: {said}");
    }
    let said = fails(plumb(folder.path()).args(["traps", "units"]), 2);
    assert!(said.contains("mixed-units"), "{said}");
}

#[test]
fn a_bench_has_a_row_for_each_depth_and_batch() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lab(folder.path(), &["bench"]);
    command.arg(golden("llama-64.gguf"));
    command.args([
        "--prompt",
        "64",
        "--depth",
        "0,32",
        "--batch",
        "1,2",
        "--generate",
        "16",
        "--samples",
        "2",
    ]);
    let found = json(command.args(["--bandwidth", "10GB", "--force"]));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5, "{found}");
    assert!(rows.iter().all(|row| row["rate"].as_f64().unwrap() > 0.0));
    assert!(found["peak_bytes"].as_u64().unwrap() > 0);
    let picture = folder.path().join("depths.svg");
    ok(results(folder.path(), &["plot", "--kind", "bench", "--output"]).arg(&picture));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("llama-64") && svg.contains("tokens/s"));
}

#[test]
fn another_engines_tests_are_run_here_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let report = r#"[{"n_prompt":32,"n_gen":0,"n_depth":0,"avg_ns":5000000},{"n_prompt":0,"n_gen":8,"n_depth":16,"avg_ns":9000000}]"#;
    let file = folder.path().join("report.json");
    std::fs::write(&file, report).unwrap();
    let mut command = lab(folder.path(), &["bench"]);
    command.arg(golden("llama-64.gguf")).arg("--against").arg(format!("cat {}", file.display()));
    let found = json(command.args(["--samples", "3", "--force"]));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{found}");
    assert_eq!((&rows[0]["test"]["tokens"], &rows[1]["test"]["depth"]), (&Value::from(32), &Value::from(16)));
    assert!(rows.iter().all(|row| row["against"]["pairs"] == 3), "{found}");
    assert!((rows[0]["against_rate"].as_f64().unwrap() - 6400.0).abs() < 1e-6);
}

#[test]
fn a_newer_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    ok(&mut results(folder.path(), &["list"]));
    let file = folder.path().join("results.sqlite");
    let mut bytes = std::fs::read(&file).unwrap();
    // The user version stands at byte 60 of a SQLite file, big-endian.
    bytes[60..64].copy_from_slice(&77u32.to_be_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let said = fails(&mut results(folder.path(), &["list"]), 1);
    assert!(said.contains("newer plumb") && said.contains("results.sqlite.newer-77.1"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    assert_eq!(std::fs::read(folder.path().join("results.sqlite.newer-77.1")).unwrap(), bytes);
}

#[test]
fn traps_are_listed_and_a_sprung_one_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let listed = stdout(&ok(plumb(folder.path()).args(["traps", "--list"])));
    assert!(listed.contains("little-work") && listed.contains("byte ledger"), "{listed}");
    let sprung = json(plumb(folder.path()).args(["traps", "mixed-units", "own-golden"]));
    assert_eq!(sprung[0]["shown"], "peak 0.0");
    assert!(sprung[1]["caught"].as_str().unwrap().contains("agrees with itself"));
}
