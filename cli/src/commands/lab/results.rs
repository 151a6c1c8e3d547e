//! `plumb results`: what was measured, listed, shown, compared, drawn and exported.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use lab::results::{self, Database, Filter, Run};

use super::Store;
use crate::progress::note;

/// List, show, compare, draw and export what was measured
///
/// Every run is kept with its machine, build, model, raw samples and verdict. Nothing is ever changed or deleted.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: What,
    #[command(flatten)]
    store: Store,
}

#[derive(clap::Subcommand)]
enum What {
    /// The runs, one a line
    List {
        #[command(flatten)]
        which: Which,
        /// Print one JSON array, without samples
        #[arg(long)]
        json: bool,
    },
    /// One run with everything that is known of it
    Show {
        /// Its number
        run: i64,
        /// Print one JSON object, raw samples included
        #[arg(long)]
        json: bool,
    },
    /// Two runs side by side, where they may be compared at all
    Compare {
        /// The first run's number
        first: i64,
        /// The second's
        second: i64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Draw a comparison pair by pair, or a figure of several runs
    Plot {
        /// A comparison's number; without one, a figure of several runs
        run: Option<i64>,
        /// The figure, such as generation, prompt or ratio
        #[arg(long, value_name = "NAME", default_value = "generation")]
        figure: String,
        #[command(flatten)]
        which: Which,
        /// The picture, .svg or .png
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Print runs as one JSON array, raw samples included
    Export {
        /// Numbers of runs [default: those that the filters let through]
        runs: Vec<i64>,
        #[command(flatten)]
        which: Which,
        /// Write it to a file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Which runs.
#[derive(clap::Args, Clone)]
struct Which {
    /// Of this command: ab, bench, probe, roofline, fit, quality
    #[arg(long)]
    kind: Option<String>,
    /// Of models whose name contains this
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The latest so many
    #[arg(long, value_name = "N")]
    last: Option<usize>,
}

impl Which {
    fn filter(&self) -> Filter {
        Filter { kind: self.kind.clone(), model: self.model.clone(), limit: self.last }
    }
}

/// Does what was asked.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let database = args.store.open()?;
    let mut out = std::io::stdout().lock();
    match &args.command {
        What::List { which, json } => {
            let runs = database.runs(&which.filter())?;
            if *json {
                return writeln!(out, "{}", serde_json::to_string(&without_samples(&runs))?)
                    .context("standard output");
            }
            for run in &runs {
                writeln!(out, "{}", line(run)).context("standard output")?;
            }
            note(format!("{} runs in {}", runs.len(), database.path().display()));
            Ok(())
        }
        What::Show { run, json } => {
            let run = database.run(*run)?;
            let text = if *json { serde_json::to_string(&run)? } else { described(&run) };
            writeln!(out, "{text}").context("standard output")
        }
        What::Compare { first, second, json } => {
            let comparison = results::compare(&database.run(*first)?, &database.run(*second)?);
            if *json {
                writeln!(out, "{}", serde_json::to_string(&comparison)?).context("standard output")?;
            } else {
                for row in &comparison.rows {
                    let at = row.first.x.map_or_else(String::new, |x| format!(" at {x}"));
                    let detail = if row.first.detail.is_null() {
                        String::new()
                    } else {
                        format!(" {}", row.first.detail)
                    };
                    let ratio = row.ratio.map_or_else(|| "-".into(), |r| format!("{r:.3}×"));
                    writeln!(
                        out,
                        "{:<40} {:>12.4} {:>12.4} {}  {ratio}",
                        format!("{}{at}{detail}", row.first.name),
                        row.first.value,
                        row.second.value,
                        row.first.unit
                    )
                    .context("standard output")?;
                }
            }
            for text in &comparison.notes {
                note(text);
            }
            if !comparison.refusals.is_empty() {
                bail!("these runs may not be compared: {}", comparison.refusals.join("; "));
            }
            if comparison.rows.is_empty() {
                bail!("these runs have no figure in common");
            }
            Ok(())
        }
        What::Plot { run, figure, which, output } => {
            let picture = match run {
                Some(id) => results::pairs(&database.run(*id)?)?,
                None => results::figures(&database.runs(&which.filter())?, figure)?,
            };
            picture.chart.write(output)?;
            for text in &picture.notes {
                note(text);
            }
            writeln!(out, "{}", output.display()).context("standard output")
        }
        What::Export { runs, which, output } => {
            let text = serde_json::to_string_pretty(&chosen(&database, runs, which)?)?;
            match output {
                Some(path) => std::fs::write(path, text + "\n").with_context(|| path.display().to_string()),
                None => writeln!(out, "{text}").context("standard output"),
            }
        }
    }
}

fn chosen(database: &Database, runs: &[i64], which: &Which) -> anyhow::Result<Vec<Run>> {
    if runs.is_empty() {
        return Ok(database.runs(&which.filter())?);
    }
    runs.iter().map(|id| Ok(database.run(*id)?)).collect()
}

fn without_samples(runs: &[Run]) -> Vec<Run> {
    runs.iter().map(|run| Run { samples: Vec::new(), ..run.clone() }).collect()
}

fn verdict(run: &Run) -> String {
    // A comparison's verdict holds more than the word.
    let verdict = &run.verdict["verdict"];
    let word = verdict.as_str().or_else(|| verdict["verdict"].as_str()).unwrap_or("");
    word.replace('_', " ")
}

fn line(run: &Run) -> String {
    let model = run.meta.model.as_ref().map_or("-", |m| m.name.as_str());
    let arms: Vec<String> = run.arms.iter().map(|a| settings(&a.asked)).collect();
    let first = run.figures.iter().find(|f| f.name == "ratio").or_else(|| run.figures.first());
    let figure = first.map_or_else(String::new, |f| format!("{} {:.3} {}", f.name, f.value, f.unit));
    let marked = if run.marks().next().is_some() { " [marked]" } else { "" };
    let state = if run.state == lab::results::State::Complete {
        String::new()
    } else {
        format!(" [{}]", run.state.name())
    };
    format!(
        "{:>5}  {}  {:8} {:20} {:6.6}  {}  {} {}{state}{marked}",
        run.id,
        run.begun_at,
        run.meta.kind,
        model,
        run.meta.machine,
        arms.join(" | "),
        figure,
        verdict(run)
    )
}

fn settings(settings: &lab::results::Settings) -> String {
    settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

fn described(run: &Run) -> String {
    let mut text = format!("run {}: {} ({})\n", run.id, run.meta.kind, run.state.name());
    let mut add = |name: &str, value: String| {
        if !value.is_empty() && value != "null" {
            text.push_str(&format!("{name:<12} {value}\n"));
        }
    };
    add("begun", run.begun_at.clone());
    add("ended", run.ended_at.clone().unwrap_or_default());
    add("command", run.meta.command.clone());
    let machine: Result<lab::machine::Machine, _> =
        serde_json::from_value(run.meta.machine_description.clone());
    let description = machine.map_or_else(|_| run.meta.machine_description.to_string(), |m| m.to_string());
    add("machine", format!("{}: {description}", run.meta.machine));
    let b = &run.meta.build;
    add("build", format!("{} {} {} {}", b.version, b.revision, b.features, b.kernels));
    if let Some(model) = &run.meta.model {
        add("model", format!("{} {} {}", model.name, model.precision, model.hash));
    }
    add("workload", run.meta.workload.to_string());
    add("prediction", run.meta.prediction.to_string());
    for arm in &run.arms {
        add(
            &format!("arm {}", arm.label),
            format!("asked {}; applied {}", settings(&arm.asked), settings(&arm.applied)),
        );
    }
    for f in &run.figures {
        let at = f.x.map_or_else(String::new, |x| format!(" at {x}"));
        let interval = f.low.zip(f.high).map_or_else(String::new, |(l, h)| format!(" ({l:.4} to {h:.4})"));
        let predicted = f.predicted.map_or_else(String::new, |p| format!(", expected {p:.4}"));
        let detail = if f.detail.is_null() { String::new() } else { format!(" {}", f.detail) };
        add("figure", format!("{}{at}: {:.4} {}{interval}{predicted}{detail}", f.name, f.value, f.unit));
    }
    add("verdict", verdict(run));
    for mark in run.marks() {
        add("marked", mark.clone());
    }
    add("samples", format!("{} (--json shows them)", run.samples.len()));
    text.trim_end().to_owned()
}
