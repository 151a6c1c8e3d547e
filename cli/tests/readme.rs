//! The README's figures are those of the committed measurements: every row is computed again from their raw samples.

use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn results(name: &str) -> Vec<Value> {
    let path = root().join("benches/results").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let doc: Value = serde_json::from_str(&text).unwrap();
    doc["results"].as_array().unwrap().clone()
}

/// The median of a model's raw samples.
fn median(result: &Value, name: &str) -> f64 {
    let mut samples: Vec<f64> =
        result["samples"][name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert!(samples.len() >= 5, "{name}: {} samples", samples.len());
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 { samples[middle] } else { (samples[middle - 1] + samples[middle]) / 2.0 }
}

#[test]
fn speeds_are_the_measured_ones() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (generation, prompts) = (results("peer.json"), results("prompts.json"));
    assert_eq!(generation.len(), 4);
    for (g, p) in generation.iter().zip(&prompts) {
        assert_eq!(g["model"], p["model"]);
        let (peer, ours) = (median(g, "peer_generation"), median(g, "plumb_generation"));
        let page = g["page"].as_str().unwrap();
        let floor = median(g, &format!("bandwidth_{page}")) * 1e9 / g["stream_bytes"].as_f64().unwrap();
        let (peer_prompt, our_prompt) = (median(p, "peer_prompt"), median(p, "plumb_prompt"));
        let row = format!(
            "| {} | {peer:.1} | {ours:.1} | {:.2}× | {:.0}% | {peer_prompt:.1} | {our_prompt:.1} | {:.2}× |",
            g["model"].as_str().unwrap(),
            ours / peer,
            100.0 * ours / floor,
            our_prompt / peer_prompt
        );
        assert!(readme.contains(&row), "README.md lacks the row\n{row}");
    }
}

/// Each format's mean divergence over the control's, on the text where that is most: per model of the committed reports.
#[test]
fn the_costs_of_formats_are_the_measured_ones() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let reports = results("kv-quality.json");
    assert!(!reports.is_empty());
    let names: Vec<&str> = reports.iter().map(|r| r["asked"].as_str().unwrap()).collect();
    let header = format!("| cache | {} |", names.join(" | "));
    assert!(readme.contains(&header), "README.md lacks the row\n{header}");
    for (arm, shown) in [
        ("q8", "`q8`"),
        ("q6", "`q6`"),
        ("q5", "`q5`"),
        ("q4", "`q4`"),
        ("q3", "`q3`"),
        ("q2", "`q2`"),
        ("kv=q2,kv-rotate=none", "`q2`, not rotated"),
    ] {
        let cells: Vec<String> = reports
            .iter()
            .map(|report| {
                let of_text = |text: &Value| {
                    let mean = |name: &str| {
                        let arms = text["arms"].as_array().unwrap();
                        let found = arms.iter().find(|a| a["arm"] == name).unwrap();
                        found["divergence"]["mean"].as_f64().unwrap()
                    };
                    (mean(arm), mean(arm) / mean("control"))
                };
                let texts = report["texts"].as_array().unwrap().iter().map(of_text);
                let (mean, over) = texts.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
                format!("{mean:.4} ({over:.1}×)")
            })
            .collect();
        let row = format!("| {shown} | {} |", cells.join(" | "));
        assert!(readme.contains(&row), "README.md lacks the row\n{row}");
    }
}
