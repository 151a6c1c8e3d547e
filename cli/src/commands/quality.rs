//! `plumb quality`: how good a model's answers are, and whether two ways of running it agree.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use engine::tokenizer::Special;
use lab::quality::{self, Arm, Judged, Recall, Scoring};
use lab::results::Figure;
use serde::Serialize;
use serde_json::json;

use super::lab::loading::{self, Source};
use super::record::{Of, Record, figure};
use crate::failure::usage;
use crate::opening;
use crate::progress;

/// Measure perplexity, agreement between two ways of running a model, and recall of needles
///
/// The text is cut into windows; the second half of each is scored. With --against, every position's distribution is compared
/// with that of another arm: divergence in nats and how often the best token is the same.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// A text of one's own [default: those that come with plumb]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Positions of a window
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = super::at_least_one)]
    window: usize,
    /// Another arm to compare with, as settings: kernels=avx2,threads=1 or kv=q4,kv-window=64; may be repeated
    #[arg(long, value_name = "SETTINGS")]
    against: Vec<String>,
    /// Formats of the KV cache to compare with f16, separated by commas: q8,q4,q8/q4. A control is added, whose halves are
    /// stored one unit in the last place off
    #[arg(long, value_name = "F,…", value_delimiter = ',')]
    kv: Vec<String>,
    /// Hide needles in texts of so many tokens, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', num_args = 0..=1, default_missing_value = "1024")]
    needles: Vec<usize>,
    /// Depths of the needles, separated by commas: 0 is the beginning
    #[arg(
        long,
        value_name = "D,…",
        value_delimiter = ',',
        default_value = "0,0.25,0.5,0.75,1",
        requires = "needles"
    )]
    depths: Vec<f64>,
    /// Threads of a step [default: the CPUs that this process may use]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: super::lab::Store,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    texts: &'a [Scored],
    needles: &'a [Recall],
}

#[derive(Serialize)]
struct Scored {
    text: String,
    note: String,
    tokens: usize,
    scoring: Scoring,
    arms: Vec<Judged>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(depth) = args.depths.iter().find(|d| !(0.0..=1.0).contains(*d)) {
        return Err(usage(format!("--depths: expected 0 to 1, found {depth}")));
    }
    let mut source = Source::open(&args.model)?;
    let tokenizer = source.opened.tokenizer()?;
    let context = args.window.max(args.needles.iter().copied().max().unwrap_or(0));
    let record = Record::begin("quality");
    let mut names = vec![("as it runs".to_owned(), String::new())];
    if !args.kv.is_empty() {
        names.push(("control".to_owned(), "kv-nudged=yes".to_owned()));
    }
    names.extend(args.kv.iter().map(|kv| (kv.clone(), format!("kv={kv}"))));
    names.extend(args.against.iter().map(|text| (text.clone(), text.clone())));
    let mut loaded = Vec::new();
    for (name, text) in names {
        let mut settings = loading::settings(&text)?;
        if let Some(n) = args.threads {
            settings.entry("threads".into()).or_insert_with(|| n.to_string());
        }
        loaded.push((name, source.load(&settings, context, 1)?.model));
    }
    let opened = &source.opened;
    let mut arms: Vec<Arm<'_>> =
        loaded.iter_mut().map(|(name, model)| Arm { name: name.clone(), model }).collect();
    let roles = tokenizer.roles();
    let bos = roles.bos.filter(|_| roles.add_bos);

    let mut texts = Vec::new();
    for (name, text_note, text) in texts_of(args)? {
        let tokens = tokenizer.encode(&text, Special::AsText, true)?;
        let scoring = Scoring { window: args.window, bos };
        let bar = progress::steps(name.clone(), 0);
        let judged = quality::judge(&mut arms, &tokens, scoring, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let arms = judged.with_context(|| name.clone())?;
        texts.push(Scored { text: name, note: text_note, tokens: tokens.len(), scoring, arms });
    }
    let mut needles = Vec::new();
    for &context in &args.needles {
        let bar = progress::steps(format!("needles in {context} tokens"), 0);
        let found = quality::recall(&mut arms, &tokenizer, context, &args.depths, bos, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        needles.extend(found?);
    }
    let report = Report { model: &opened.bundle.name, texts: &texts, needles: &needles };
    let of = Of {
        kernels: opening::isa()?.name(),
        model: Some(source.id()),
        workload: json!({
            "window": args.window, "needles": args.needles, "against": args.against, "kv": args.kv,
        }),
        prediction: serde_json::Value::Null,
    };
    record.keep(&args.store, of, figures(&report), Vec::new());
    let text = if args.json { serde_json::to_string(&report)? } else { for_people(&report) };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("standard output")
}

/// What goes into the database.
fn figures(report: &Report<'_>) -> Vec<Figure> {
    let mut all = Vec::new();
    for (scored, judged) in report.texts.iter().flat_map(|t| t.arms.iter().map(move |a| (t, a))) {
        let detail = json!({ "text": scored.text, "arm": judged.arm, "window": scored.scoring.window });
        let mut add = |name: &str, unit: &str, value: f64, noise: Option<f64>| {
            all.push(Figure { detail: detail.clone(), ..figure(name, unit, None, value, noise) });
        };
        let p = judged.perplexity;
        add("perplexity", "ratio", p.value, Some(p.error / p.value));
        if let Some(d) = judged.divergence {
            add("kl_mean", "nats", d.mean, None);
            add("kl_median", "nats", d.median, None);
            add("kl_p95", "nats", d.p95, None);
            add("kl_max", "nats", d.max, None);
            add("top1", "ratio", d.top1, None);
        }
    }
    for r in report.needles {
        let detail = json!({ "arm": r.arm, "context": r.context, "needles": r.needles, "answer_nats": r.answer_log_p });
        let share = r.recalled as f64 / r.needles as f64;
        all.push(Figure { detail, ..figure("needle_recall", "ratio", Some(r.depth), share, None) });
    }
    all
}

/// Name, note and content of each text.
fn texts_of(args: &Args) -> anyhow::Result<Vec<(String, String, String)>> {
    Ok(match &args.text {
        None => quality::TEXTS.iter().map(|t| (t.name.into(), t.note.into(), t.text.into())).collect(),
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            vec![(file.display().to_string(), "a file".into(), text)]
        }
    })
}

fn for_people(report: &Report<'_>) -> String {
    let mut out = format!("{}\n", report.model);
    for scored in report.texts {
        out.push_str(&format!(
            "\n{} ({}): {} tokens in windows of {}, the second halves scored\n",
            scored.text, scored.note, scored.tokens, scored.scoring.window
        ));
        for arm in &scored.arms {
            let p = arm.perplexity;
            out.push_str(&format!(
                "  {:<24} perplexity {:9.4} ± {:.4} over {} tokens\n",
                arm.arm, p.value, p.error, p.positions
            ));
            if let Some(d) = arm.divergence {
                out.push_str(&format!(
                    "  {:<24} KL from the first: mean {:.3e}, median {:.3e}, 95% {:.3e}, most {:.3e} nats; same best token {:.2}%\n",
                    "",
                    d.mean,
                    d.median,
                    d.p95,
                    d.max,
                    d.top1 * 100.0
                ));
            }
        }
    }
    if !report.needles.is_empty() {
        out.push_str("\nneedles recalled\n");
        for r in report.needles {
            out.push_str(&format!(
                "  {:>6} tokens, depth {:>4.2}  {}/{}  answer {:.2} nats  {}\n",
                r.context, r.depth, r.recalled, r.needles, r.answer_log_p, r.arm
            ));
        }
    }
    out
}
