//! Pictures of stored runs. Runs of different machines, models or precision classes never share a line, and a picture has one
//! unit.

use std::collections::BTreeMap;

use super::rows::Run;
use crate::plot::{Axis, Chart, Rule, Series};
use crate::{Error, Result};

/// What a line stands for: machine, model, precision class, and what else distinguishes its figures.
type Key = (String, String, String, String);

/// A chart with notes on what was left out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The chart.
    pub chart: Chart,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// The figures called `name` of several runs against their x; where runs have none, against the runs' numbers.
///
/// # Errors
/// No run has such a figure; the figures have different units.
pub fn figures(runs: &[Run], name: &str) -> Result<Picture> {
    let mut units: Vec<&str> = Vec::new();
    let mut lines: BTreeMap<Key, Series> = BTreeMap::new();
    let mut machines = BTreeMap::new();
    let mut used = Vec::new();
    let mut marked = 0;
    let is_by_run = !runs.iter().flat_map(|r| &r.figures).any(|f| f.name == name && f.x.is_some());
    for run in runs {
        let (machine, model, precision) = run.series();
        for figure in run.figures.iter().filter(|f| f.name == name) {
            if !units.contains(&figure.unit.as_str()) {
                units.push(&figure.unit);
            }
            let detail = if figure.detail.is_null() { String::new() } else { figure.detail.to_string() };
            let kernels = run.meta.build.kernels.clone();
            let x = if is_by_run { run.id as f64 } else { figure.x.unwrap_or(0.0) };
            let label = line_label(&machine, &model, &precision, &kernels, &detail);
            let line = lines
                .entry((machine.clone(), model.clone(), precision.clone(), format!("{kernels}{detail}")))
                .or_insert_with(|| Series { label, ..Series::default() });
            line.points.push((x, figure.value));
            if let (Some(low), Some(high)) = (figure.low, figure.high) {
                line.bars.push((x, low, high));
            }
            if used.last() != Some(&run.id) {
                used.push(run.id);
                marked += usize::from(run.marks().next().is_some());
            }
            machines.insert(machine.clone(), machine_text(run));
        }
    }
    let [unit] = units.as_slice() else {
        let found = if units.is_empty() { "none".to_owned() } else { units.join(", ") };
        return Err(Error::invalid(format!("figures {name:?}"), "figures of one unit", found));
    };
    for line in lines.values_mut() {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let is_ratio = *unit == "ratio";
    let rules = if is_ratio { vec![Rule { y: 1.0, label: "1.00×".into() }] } else { Vec::new() };
    let mut footer: Vec<String> =
        machines.into_iter().map(|(f, text)| format!("machine {f}: {text}")).collect();
    footer.push(provenance(runs, &used));
    let mut notes = Vec::new();
    if marked > 0 {
        let note = format!("{marked} of {} runs are marked: see `plumb results show`", used.len());
        footer.push(note.clone());
        notes.push(note);
    }
    let x = match name {
        _ if is_by_run => "run",
        _ if name.starts_with("prompt") || name == "first_token" => "length of the prompt (tokens)",
        _ => "depth (tokens)",
    };
    let chart = Chart {
        title: name.replace('_', " "),
        x: Axis { label: x.into(), ..Axis::default() },
        y: Axis {
            label: unit.to_string(),
            includes: if is_ratio { Vec::new() } else { vec![0.0] },
            ..Axis::default()
        },
        series: lines.into_values().collect(),
        rules,
        footer,
    };
    Ok(Picture { chart, notes })
}

/// One comparison's paired ratios, its interval and the 1.00× line.
///
/// # Errors
/// The run is no comparison, or has no pairs.
pub fn pairs(run: &Run) -> Result<Picture> {
    let ratios = |phase: &str| crate::ab::ratios(&run.samples, phase);
    let (aa, ab) = (ratios("aa"), ratios("ab"));
    if ab.is_empty() {
        return Err(Error::invalid(
            format!("run {}", run.id),
            "a comparison with pairs",
            format!("{} without", run.meta.kind),
        ));
    }
    let points = |values: &[f64], from: usize| {
        values.iter().enumerate().map(|(i, &r)| ((from + i + 1) as f64, r)).collect::<Vec<_>>()
    };
    let scatter = |label: String, points| Series { label, points, bars: Vec::new(), is_scatter: true };
    let mut series = Vec::new();
    if !aa.is_empty() {
        series.push(scatter("A against A".into(), points(&aa, 0)));
    }
    let labels: Vec<&str> = run.arms.iter().map(|a| a.label.as_str()).collect();
    series.push(scatter(labels.join(" against "), points(&ab, aa.len())));
    let first = (aa.len() + 1) as f64;
    let last = (aa.len() + ab.len()) as f64;
    for figure in run.figures.iter().filter(|f| f.name == "ratio") {
        let line = |value: f64, label: String| Series {
            label,
            points: vec![(first, value), (last, value)],
            ..Series::default()
        };
        series.push(line(figure.value, format!("median {:.3}", figure.value)));
        if let (Some(low), Some(high)) = (figure.low, figure.high) {
            series.push(line(low, format!("99% from {low:.3}")));
            series.push(line(high, format!("to {high:.3}")));
        }
    }
    let (machine, model, precision) = run.series();
    let mut footer = vec![
        format!("{model} {precision} machine {machine}: {}", machine_text(run)).trim().to_owned(),
        provenance(std::slice::from_ref(run), &[run.id]),
    ];
    let marks: Vec<String> = run.marks().cloned().collect();
    if !marks.is_empty() {
        footer.push(format!("MARKED: {}", marks.join("; ")));
    }
    let chart = Chart {
        title: format!("run {}: B's speed over A's, pair by pair", run.id),
        x: Axis { label: "pair, in the order of measurement".into(), ..Axis::default() },
        y: Axis { label: "ratio".into(), includes: vec![1.0], ..Axis::default() },
        series,
        rules: vec![Rule { y: 1.0, label: "1.00×".into() }],
        footer,
    };
    Ok(Picture { chart, notes: marks })
}

fn line_label(machine: &str, model: &str, precision: &str, kernels: &str, detail: &str) -> String {
    let short = &machine[..machine.len().min(6)];
    let parts = [model, precision, kernels, detail, short];
    parts.iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join(" · ")
}

fn machine_text(run: &Run) -> String {
    let d = &run.meta.machine_description;
    match serde_json::from_value::<crate::machine::Machine>(d.clone()) {
        Ok(machine) => machine.to_string(),
        Err(_) => d.to_string(),
    }
}

fn provenance(runs: &[Run], used: &[i64]) -> String {
    let of = |id: &i64| runs.iter().find(|r| r.id == *id);
    let mut builds: Vec<String> = used
        .iter()
        .filter_map(of)
        .map(|r| format!("{} {}", r.meta.build.version, r.meta.build.revision).trim().to_owned())
        .collect();
    builds.sort();
    builds.dedup();
    let days: Vec<&str> =
        used.iter().filter_map(of).map(|r| r.begun_at.split('T').next().unwrap_or("")).collect();
    let days = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first == last => (*first).to_owned(),
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => String::new(),
    };
    let numbers: Vec<String> = used.iter().map(ToString::to_string).collect();
    format!("plumb {}; runs {}; {days}", builds.join(", "), numbers.join(", "))
}
