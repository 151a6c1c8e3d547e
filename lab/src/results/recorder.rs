//! One run being written. Raw samples outlive a database that cannot take them.

use std::path::PathBuf;

use serde_json::Value;

use super::rows::{ArmRow, Figure, Run, RunMeta, SampleRow, State};
use super::store::Database;
use crate::Result;

/// Takes a run's rows as they are measured. What the database refuses (a full disk) is kept here and tried again; at the end,
/// what it still refuses goes into a JSON file in the system's temporary folder.
#[derive(Debug)]
pub struct Recorder<'d> {
    database: &'d mut Database,
    meta: RunMeta,
    run: Option<i64>,
    arm_numbers: Vec<i64>,
    arms: Vec<ArmRow>,
    figures: Vec<Figure>,
    figures_written: usize,
    samples: Vec<SampleRow>,
    samples_written: usize,
    /// Why the last attempt failed.
    trouble: Option<String>,
}

/// Where a run ended up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In the database, under this number.
    Run(i64),
    /// In a file, because the database refused it.
    File {
        /// The file.
        path: PathBuf,
        /// The database's reason.
        why: String,
    },
    /// Nowhere.
    Lost {
        /// The reasons of both.
        why: String,
    },
}

impl<'d> Recorder<'d> {
    /// Begins a run.
    pub fn begin(database: &'d mut Database, meta: RunMeta) -> Recorder<'d> {
        let mut recorder = Recorder {
            database,
            meta,
            run: None,
            arm_numbers: Vec::new(),
            arms: Vec::new(),
            figures: Vec::new(),
            figures_written: 0,
            samples: Vec::new(),
            samples_written: 0,
            trouble: None,
        };
        recorder.flush();
        recorder
    }

    /// The run's number, once the database has taken it.
    pub fn run(&self) -> Option<i64> {
        self.run
    }

    /// Adds an arm and gives its index.
    pub fn arm(&mut self, arm: ArmRow) -> usize {
        self.arms.push(arm);
        self.arms.len() - 1
    }

    /// Adds a sample. It is written with the next [`Recorder::flush`].
    pub fn sample(&mut self, sample: SampleRow) {
        self.samples.push(sample);
    }

    /// Every sample so far.
    pub fn samples(&self) -> &[SampleRow] {
        &self.samples
    }

    /// Adds a derived number. It is written with the next [`Recorder::flush`].
    pub fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Writes what is not written yet, outside of anything that is timed. A failure is remembered, not raised: a measurement
    /// goes on though the disk is full.
    pub fn flush(&mut self) {
        self.trouble = self.try_flush().err().map(|e| e.to_string());
    }

    /// Why the database refused the last rows, if it did.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn try_flush(&mut self) -> Result<i64> {
        let run = match self.run {
            Some(run) => run,
            None => {
                let run = self.database.begin(&self.meta)?;
                self.run = Some(run);
                run
            }
        };
        while let Some(arm) = self.arms.get(self.arm_numbers.len()) {
            self.arm_numbers.push(self.database.add_arm(run, arm)?);
        }
        let new = &self.samples[self.samples_written..];
        if !new.is_empty() {
            self.database.add_samples(run, &self.arm_numbers, new)?;
            self.samples_written = self.samples.len();
        }
        while let Some(figure) = self.figures.get(self.figures_written) {
            self.database.add_figure(run, figure)?;
            self.figures_written += 1;
        }
        Ok(run)
    }

    /// Ends the run and says where it is kept.
    pub fn end(mut self, state: State, verdict: Value, marks: Vec<String>) -> Kept {
        let ended = self.try_flush().and_then(|run| {
            self.database.end(run, state, &verdict, &marks)?;
            Ok(run)
        });
        let why = match ended {
            Ok(run) => return Kept::Run(run),
            Err(error) => error.to_string(),
        };
        let run = Run {
            id: self.run.unwrap_or(0),
            begun_at: jiff::Timestamp::now().to_string(),
            meta: self.meta,
            state,
            ended_at: None,
            verdict,
            end_marks: marks,
            arms: self.arms,
            samples: self.samples,
            figures: self.figures,
        };
        let folder = std::env::temp_dir();
        let name =
            format!("plumb-run-{}-{}.json", std::process::id(), jiff::Timestamp::now().as_millisecond());
        let path = folder.join(name);
        let written =
            serde_json::to_vec(&run).map_err(std::io::Error::from).and_then(|t| std::fs::write(&path, t));
        match written {
            Ok(()) => Kept::File { path, why },
            Err(error) => Kept::Lost { why: format!("{why}; {}: {error}", path.display()) },
        }
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kept::Run(id) => write!(f, "run {id}"),
            Kept::File { path, why } => {
                write!(f, "the database refused the run ({why}); it lies in {}", path.display())
            }
            Kept::Lost { why } => write!(f, "the run could not be kept: {why}"),
        }
    }
}
