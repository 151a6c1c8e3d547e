//! A command as an arm: it runs to its end within a limit, and tokens and seconds are read from what it prints.
//!
//! It does not know whose command it is; llama-bench's report is one of the readings.

use std::io::Read;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};

use super::{Answer, Arm, Ready, Taken};
use crate::clock::Clock;
use crate::results::Settings;
use crate::{Error, Result};

/// What ends a run early.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The longest that it may take.
    pub longest: Duration,
    /// Becomes true when the person wants no more.
    pub interrupt: Arc<AtomicBool>,
}

impl Limit {
    /// A limit of time alone.
    pub fn of(longest: Duration) -> Limit {
        Limit { longest, interrupt: Arc::default() }
    }
}

/// Why a run gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unrun {
    /// The person ended it.
    Interrupted,
    /// In words.
    Failed(String),
}

/// Where a figure stands in the output.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// The last match of its first group.
    Regex(Regex),
    /// A JSON pointer (RFC 6901) into the last JSON value of the output.
    Pointer(String),
}

impl Pattern {
    /// A text that begins with `/` is a pointer, any other a regular expression with one group.
    ///
    /// # Errors
    /// A regular expression that cannot be parsed or has no group.
    pub fn parse(text: &str) -> Result<Pattern> {
        if text.starts_with('/') {
            return Ok(Pattern::Pointer(text.to_owned()));
        }
        let regex = Regex::new(text).map_err(|e| Error::invalid("pattern", "a regular expression", e))?;
        if regex.captures_len() < 2 {
            return Err(Error::invalid(
                "pattern",
                "a group in brackets around the number",
                format!("{text:?}"),
            ));
        }
        Ok(Pattern::Regex(regex))
    }

    fn text(&self, output: &str) -> Option<String> {
        match self {
            Pattern::Regex(regex) => Some(regex.captures_iter(output).last()?.get(1)?.as_str().to_owned()),
            Pattern::Pointer(pointer) => match last_json(output)?.pointer(pointer)? {
                Value::String(text) => Some(text.clone()),
                value => Some(value.to_string()),
            },
        }
    }

    fn number(&self, output: &str) -> Option<f64> {
        self.text(output)?.trim().replace(['_', ','], "").parse::<f64>().ok().filter(|n| n.is_finite())
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pattern::Regex(regex) => write!(f, "the regular expression {regex}"),
            Pattern::Pointer(pointer) => write!(f, "the JSON pointer {pointer}"),
        }
    }
}

/// The whole output as JSON, or its last line that is.
pub(crate) fn last_json(output: &str) -> Option<Value> {
    let whole = output.trim();
    serde_json::from_str(whole).ok().or_else(|| {
        let from = whole.find("\n[").or_else(|| whole.find("\n{"));
        let tail = from.and_then(|at| serde_json::from_str(whole[at..].trim()).ok());
        tail.or_else(|| whole.lines().rev().find_map(|line| serde_json::from_str(line).ok()))
    })
}

/// How figures are read.
#[derive(Clone, Debug)]
pub enum Reading {
    /// Nothing is read: one repetition in the time that the whole run took.
    WholeRun,
    /// Tokens and seconds, each by its pattern.
    TokensAndSeconds {
        /// A count.
        tokens: Pattern,
        /// A duration in seconds.
        seconds: Pattern,
    },
    /// A rate in tokens per second.
    Rate(Pattern),
    /// llama-bench's `-o json`; the test whose `n_prompt` and `n_gen` are these, or the only one.
    LlamaBench {
        /// Prompt and generated tokens of the wanted test.
        test: Option<(u64, u64)>,
    },
}

impl Reading {
    /// Tokens and nanoseconds of an output, `wall_ns` being the whole run's.
    ///
    /// # Errors
    /// The figure is not there, in words that say what was looked for.
    pub fn read(&self, output: &str, wall_ns: u64) -> std::result::Result<(u64, u64, Value), String> {
        let shown = || {
            let tail: String =
                output.trim().chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
            if tail.is_empty() {
                "it printed nothing".to_owned()
            } else {
                format!("its output ends with {tail:?}")
            }
        };
        let number = |what: &str, pattern: &Pattern| match pattern.number(output) {
            Some(n) if n > 0.0 => Ok(n),
            Some(n) => Err(format!("{what} is {n}, expected more than 0")),
            None => Err(format!("no figure: {what} by {pattern} is not in what it printed; {}", shown())),
        };
        match self {
            Reading::WholeRun => Ok((1, wall_ns, Value::Null)),
            Reading::TokensAndSeconds { tokens, seconds } => {
                let (tokens, seconds) = (number("tokens", tokens)?, number("seconds", seconds)?);
                Ok((tokens.round() as u64, (seconds * 1e9) as u64, json!({ "wall_ns": wall_ns })))
            }
            Reading::Rate(pattern) => {
                // Kept as a count over a second, at a resolution that loses nothing.
                let rate = number("tokens per second", pattern)?;
                Ok((1_000_000, (1e15 / rate) as u64, json!({ "wall_ns": wall_ns, "rate": rate })))
            }
            Reading::LlamaBench { test } => {
                let value =
                    last_json(output).ok_or_else(|| format!("no JSON (`-o json` is needed); {}", shown()))?;
                let rows = value.as_array().ok_or("its JSON is no list of tests")?;
                let count = |row: &Value, key: &str| row.get(key).and_then(Value::as_u64).unwrap_or(0);
                let is_wanted = |row: &&Value| {
                    test.is_none_or(|(p, n)| count(row, "n_prompt") == p && count(row, "n_gen") == n)
                };
                let found: Vec<&Value> = rows.iter().filter(is_wanted).collect();
                let [row] = found.as_slice() else {
                    return Err(format!(
                        "expected one test{}, found {} of {}",
                        named(*test),
                        found.len(),
                        rows.len()
                    ));
                };
                let tokens = count(row, "n_prompt") + count(row, "n_gen");
                let ns = count(row, "avg_ns");
                if tokens == 0 || ns == 0 {
                    return Err("its test has no n_prompt or n_gen, or no avg_ns".into());
                }
                let kept = [
                    "build_commit",
                    "n_threads",
                    "n_depth",
                    "flash_attn",
                    "type_k",
                    "type_v",
                    "samples_ns",
                    "backends",
                ];
                let detail = kept.iter().filter_map(|k| Some(((*k).to_owned(), row.get(k)?.clone())));
                Ok((tokens, ns, Value::Object(detail.collect())))
            }
        }
    }
}

fn named(test: Option<(u64, u64)>) -> String {
    test.map_or_else(String::new, |(p, n)| format!(" of {p} prompt and {n} generated tokens"))
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it took.
    pub wall_ns: u64,
}

/// Runs a command line by the shell. A run that passes the limit is ended with everything that it started.
///
/// # Errors
/// It cannot be started, fails, passes the limit, or is interrupted.
pub fn run_command(command: &str, limit: &Limit, clock: &dyn Clock) -> std::result::Result<Output, Unrun> {
    use std::os::unix::process::CommandExt;
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let start = clock.now_ns();
    let mut child = shell.spawn().map_err(|e| Unrun::Failed(format!("cannot be started: {e}")))?;
    let (send, ended) = mpsc::channel();
    let mut stderr = child.stderr.take();
    let errors = std::thread::spawn(move || read_all(stderr.as_mut()));
    let mut stdout = child.stdout.take();
    // Whoever waits may be gone when a run that was ended closes its output.
    std::thread::spawn(move || send.send(read_all(stdout.as_mut())));
    let stdout = loop {
        // Waking for the interrupt does not delay the end, which the channel delivers at once.
        match ended.recv_timeout(Duration::from_millis(50)) {
            Ok(text) => break Ok(text),
            Err(_) if limit.interrupt.load(Ordering::Relaxed) => break Err(Unrun::Interrupted),
            Err(_) if clock.now_ns() - start < limit.longest.as_nanos() as u64 => {}
            Err(_) => {
                let seconds = limit.longest.as_secs_f64();
                break Err(Unrun::Failed(format!(
                    "still running after {seconds:.1} s (the limit); it was ended"
                )));
            }
        }
    };
    let wall_ns = clock.now_ns() - start;
    let stdout = match stdout {
        Ok(text) => text,
        Err(unrun) => {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                // It may have ended by itself just now.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = child.wait();
            return Err(unrun);
        }
    };
    let status = child.wait().map_err(|e| Unrun::Failed(format!("cannot be waited for: {e}")))?;
    let stderr = errors.join().unwrap_or_default();
    if !status.success() {
        let tail: Vec<&str> = stderr.trim().lines().rev().take(3).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(Unrun::Failed(format!("failed ({status}): {}", tail.join(" / "))));
    }
    Ok(Output { stdout, stderr, wall_ns })
}

fn read_all(stream: Option<&mut impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What came before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command line, run once per sample.
pub struct CommandArm {
    label: String,
    command: String,
    reading: Reading,
    answer: Option<Pattern>,
    limit: Limit,
    clock: Rc<dyn Clock>,
}

impl CommandArm {
    /// An arm of a command line for the shell. `answer` says where what it answered stands, to be compared with the other arm's.
    pub fn new(
        label: impl Into<String>,
        command: impl Into<String>,
        reading: Reading,
        answer: Option<Pattern>,
        limit: Limit,
        clock: Rc<dyn Clock>,
    ) -> CommandArm {
        CommandArm { label: label.into(), command: command.into(), reading, answer, limit, clock }
    }

    fn run(&self) -> Result<Output> {
        run_command(&self.command, &self.limit, self.clock.as_ref()).map_err(|unrun| match unrun {
            Unrun::Interrupted => Error::Interrupted,
            Unrun::Failed(why) => Error::arm(&self.label, format!("`{}` {why}", self.command)),
        })
    }

    fn read(&self, output: &Output) -> Result<Taken> {
        let read = self.reading.read(&output.stdout, output.wall_ns);
        let (tokens, elapsed_ns, detail) =
            read.map_err(|why| Error::arm(&self.label, format!("`{}`: {why}", self.command)))?;
        Ok(Taken { elapsed_ns, tokens, detail, ..Taken::default() })
    }
}

impl Arm for CommandArm {
    fn label(&self) -> &str {
        &self.label
    }

    fn asked(&self) -> Settings {
        Settings::from([("command".to_owned(), self.command.clone())])
    }

    fn prepare(&mut self) -> Result<Ready> {
        let output = self.run()?;
        self.read(&output)?;
        let text = match &self.answer {
            None => None,
            Some(pattern) => Some(pattern.text(&output.stdout).ok_or_else(|| {
                Error::arm(
                    &self.label,
                    format!("`{}`: no answer by {pattern} in what it printed", self.command),
                )
            })?),
        };
        let notes = if matches!(self.reading, Reading::WholeRun) {
            vec!["a whole run is timed, its start included".into()]
        } else {
            Vec::new()
        };
        Ok(Ready {
            applied: self.asked(),
            answer: Answer { text, ..Answer::default() },
            notes,
            ..Ready::default()
        })
    }

    fn take(&mut self, _inner: u64, _turn: u64) -> Result<Taken> {
        let output = self.run()?;
        self.read(&output)
    }

    fn bytes_per_repetition(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::System;

    fn arm(command: &str, reading: Reading) -> CommandArm {
        CommandArm::new(
            "a",
            command,
            reading,
            None,
            Limit::of(Duration::from_secs(20)),
            Rc::new(System::default()),
        )
    }

    fn rate(text: &str) -> Reading {
        Reading::Rate(Pattern::parse(text).unwrap())
    }

    #[test]
    fn a_figure_is_read_by_a_regular_expression() {
        let reading = Reading::TokensAndSeconds {
            tokens: Pattern::parse(r"tokens: ([\d,]+)").unwrap(),
            seconds: Pattern::parse(r"in ([\d.]+) s").unwrap(),
        };
        let taken = arm("echo 'tokens: 7'; echo 'tokens: 1,024 in 0.5 s'", reading).take(1, 0).unwrap();
        assert_eq!((taken.tokens, taken.elapsed_ns), (1024, 500_000_000));
    }

    #[test]
    fn a_figure_is_read_by_a_json_pointer() {
        let command = r#"echo loading; echo '{"speed": {"tokens_per_s": 12.5}}'"#;
        let taken = arm(command, rate("/speed/tokens_per_s")).take(1, 0).unwrap();
        assert!((taken.tokens as f64 * 1e9 / taken.elapsed_ns as f64 - 12.5).abs() < 1e-6);
    }

    #[test]
    fn a_command_that_prints_no_figure_says_what_was_looked_for() {
        let error =
            arm("echo 'all went well'", rate(r"([\d.]+) tokens/s")).take(1, 0).unwrap_err().to_string();
        assert!(
            error.contains("no figure") && error.contains("tokens/s") && error.contains("all went well"),
            "{error}"
        );
        let error = arm("true", rate("/x")).take(1, 0).unwrap_err().to_string();
        assert!(error.contains("printed nothing"), "{error}");
        let error = arm("echo 0 t", rate("(.*) t")).take(1, 0).unwrap_err().to_string();
        assert!(error.contains("more than 0"), "{error}");
    }

    #[test]
    fn a_command_that_fails_shows_its_last_words() {
        let error =
            arm("echo 'no such model' >&2; exit 3", Reading::WholeRun).prepare().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such model"), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let mut arm = arm("sleep 600 & sleep 600", Reading::WholeRun);
        arm.limit = Limit::of(Duration::from_millis(120));
        let error = arm.prepare().unwrap_err().to_string();
        assert!(error.contains("still running"), "{error}");
    }

    #[test]
    fn an_interrupted_command_is_ended_at_once() {
        let arm = arm("sleep 600", Reading::WholeRun);
        arm.limit.interrupt.store(true, Ordering::Relaxed);
        let mut arm = arm;
        assert!(matches!(arm.prepare(), Err(Error::Interrupted)));
    }

    #[test]
    fn llama_benchs_report_is_read_test_by_test() {
        let output = r#"[{"build_commit":"abc","n_prompt":512,"n_gen":0,"avg_ns":1000000000},
            {"n_prompt":0,"n_gen":128,"avg_ns":2000000000,"n_threads":2}]"#;
        let of = |test| Reading::LlamaBench { test }.read(output, 5);
        assert_eq!(of(Some((512, 0))).unwrap().0, 512);
        let (tokens, ns, detail) = of(Some((0, 128))).unwrap();
        assert_eq!((tokens, ns, &detail["n_threads"]), (128, 2_000_000_000, &json!(2)));
        assert!(of(None).unwrap_err().contains("found 2 of 2"));
        assert!(of(Some((1, 1))).unwrap_err().contains("found 0"));
        assert!(Reading::LlamaBench { test: None }.read("no json", 5).unwrap_err().contains("-o json"));
    }

    #[test]
    fn patterns_without_a_group_are_refused() {
        assert!(Pattern::parse("tokens").unwrap_err().to_string().contains("group"));
        assert!(Pattern::parse("(").is_err());
    }

    #[test]
    fn what_a_command_answers_can_be_compared() {
        let mut arm = arm("echo 'answer: Paris'; echo '5 tokens/s'", rate(r"(\d+) tokens/s"));
        arm.answer = Some(Pattern::parse("answer: (.*)").unwrap());
        assert_eq!(arm.prepare().unwrap().answer.text.as_deref(), Some("Paris"));
        arm.answer = Some(Pattern::parse("reply: (.*)").unwrap());
        assert!(arm.prepare().unwrap_err().to_string().contains("no answer"));
    }
}
