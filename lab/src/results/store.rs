//! Opening the file, adding to it, and reading runs back.
//!
//! A file that this program cannot use (newer, damaged, someone else's) is never written to: a copy is made beside it, and
//! the error says where.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use serde_json::Value;

use super::rows::{ArmRow, Build, Figure, ModelId, Run, RunMeta, SampleRow, State};
use super::schema;
use crate::{Error, Result};

/// An open results database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
}

/// Which runs are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this command only.
    pub kind: Option<String>,
    /// Of a model whose name contains this.
    pub model: Option<String>,
    /// The latest so many.
    pub limit: Option<usize>,
}

/// What stands in the way of using a file.
enum Unfit {
    Newer(i64),
    Foreign,
    Damaged(String),
}

impl Database {
    /// Opens the file, making it and its folder where they are not there, and brings an older one up to date.
    ///
    /// # Errors
    /// [`Error::Database`] for a file that is newer, damaged or not ours; a folder that cannot be made; SQLite's own.
    pub fn open(path: &Path) -> Result<Database> {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        }
        let is_there = std::fs::metadata(path).is_ok_and(|m| m.len() > 0);
        if is_there && let Some(unfit) = inspect(path)? {
            return Err(refuse(path, &unfit));
        }
        let connection = Connection::open(path).map_err(Error::sqlite(path.display().to_string()))?;
        let mut database = Database { connection, path: path.to_path_buf() };
        database.migrate()?;
        Ok(database)
    }

    /// One that lives in memory and is gone afterwards.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn in_memory() -> Result<Database> {
        let connection = Connection::open_in_memory().map_err(Error::sqlite("memory"))?;
        let mut database = Database { connection, path: PathBuf::from(":memory:") };
        database.migrate()?;
        Ok(database)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file as good as full.
    #[cfg(test)]
    pub(super) fn limit_pages_for_tests(&mut self) {
        self.connection.pragma_update_and_check(None, "max_page_count", 40, |_| Ok(())).expect("a limit");
    }

    fn failed(&self, what: &str) -> impl FnOnce(rusqlite::Error) -> Error + use<> {
        Error::sqlite(format!("{}: {what}", self.path.display()))
    }

    fn migrate(&mut self) -> Result<()> {
        let failed = self.failed("bringing it up to date");
        migrate(&mut self.connection).map_err(failed)
    }

    /// Begins a run and gives its number.
    ///
    /// # Errors
    /// SQLite's own, such as a full disk.
    pub fn begin(&mut self, meta: &RunMeta) -> Result<i64> {
        let failed = self.failed("beginning a run");
        insert_run(&mut self.connection, meta).map_err(failed)
    }

    /// Adds an arm and gives its number.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn add_arm(&mut self, run: i64, arm: &ArmRow) -> Result<i64> {
        let failed = self.failed("adding an arm");
        let sql =
            "INSERT INTO arm (run, label, asked, applied, precision, fingerprint) VALUES (?, ?, ?, ?, ?, ?)";
        let row =
            params![run, arm.label, text(&arm.asked), text(&arm.applied), arm.precision, arm.fingerprint];
        self.connection.execute(sql, row).map_err(failed)?;
        Ok(self.connection.last_insert_rowid())
    }

    /// Adds samples, all or none. `arms` are the numbers that [`Database::add_arm`] gave, in the order of the arms.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn add_samples(&mut self, run: i64, arms: &[i64], samples: &[SampleRow]) -> Result<()> {
        let failed = self.failed("adding samples");
        let mut add = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction()?;
            {
                let mut insert = transaction.prepare(
                    "INSERT INTO sample (run, arm, phase, pair, place, at_ns, elapsed_ns, tokens, bytes, detail) \
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                )?;
                for s in samples {
                    let arm = s.arm.and_then(|i| arms.get(i));
                    let counts = [s.at_ns, s.elapsed_ns, s.tokens, s.bytes]
                        .map(|n| i64::try_from(n).unwrap_or(i64::MAX));
                    let [at, elapsed, tokens, bytes] = counts;
                    let detail = s.detail.to_string();
                    insert.execute(params![
                        run, arm, s.phase, s.pair, s.place, at, elapsed, tokens, bytes, detail
                    ])?;
                }
            }
            transaction.commit()
        };
        add().map_err(failed)
    }

    /// Adds a derived number.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn add_figure(&mut self, run: i64, f: &Figure) -> Result<()> {
        let failed = self.failed("adding a figure");
        let sql = "INSERT INTO figure (run, name, unit, x, value, low, high, predicted, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let row =
            params![run, f.name, f.unit, f.x, f.value, f.low, f.high, f.predicted, f.detail.to_string()];
        self.connection.execute(sql, row).map_err(failed)?;
        Ok(())
    }

    /// Ends a run.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn end(&mut self, run: i64, state: State, verdict: &Value, marks: &[String]) -> Result<()> {
        let failed = self.failed("ending a run");
        let sql = "INSERT INTO outcome (run, ended_at, state, verdict, marks) VALUES (?, ?, ?, ?, ?)";
        let row = params![run, now(), state.name(), verdict.to_string(), text(marks)];
        self.connection.execute(sql, row).map_err(failed)?;
        Ok(())
    }

    /// Every run that the filter lets through, the oldest first, each with its samples.
    ///
    /// # Errors
    /// SQLite's own.
    pub fn runs(&self, filter: &Filter) -> Result<Vec<Run>> {
        let read = || -> rusqlite::Result<Vec<i64>> {
            let sql = "SELECT run.id FROM run LEFT JOIN model ON model.id = run.model \
                       WHERE (?1 IS NULL OR run.kind = ?1) AND (?2 IS NULL OR instr(model.name, ?2) > 0) \
                       ORDER BY run.id DESC LIMIT ?3";
            let limit = filter.limit.map_or(-1, |n| i64::try_from(n).unwrap_or(-1));
            let mut statement = self.connection.prepare(sql)?;
            let rows = statement.query_map(params![filter.kind, filter.model, limit], |row| row.get(0))?;
            rows.collect()
        };
        let mut ids = read().map_err(self.failed("reading runs"))?;
        ids.reverse();
        ids.into_iter().map(|id| self.run(id)).collect()
    }

    /// One run.
    ///
    /// # Errors
    /// There is none of that number; SQLite's own.
    pub fn run(&self, id: i64) -> Result<Run> {
        let found = read_run(&self.connection, id).map_err(self.failed("reading a run"))?;
        found.ok_or_else(|| {
            Error::invalid(
                "run",
                format!("a number that `plumb results list` shows in {}", self.path.display()),
                id,
            )
        })
    }
}

/// The time, RFC 3339 in UTC, to the second.
fn now() -> String {
    jiff::Timestamp::now().round(jiff::Unit::Second).map_or_else(|_| String::new(), |t| t.to_string())
}

fn text<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".into())
}

/// Looks at a file without any right to change it.
fn inspect(path: &Path) -> Result<Option<Unfit>> {
    let look = || -> rusqlite::Result<Option<Unfit>> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let application: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if application != schema::APPLICATION_ID {
            return Ok((tables > 0 || application != 0).then_some(Unfit::Foreign));
        }
        if version > schema::MIGRATIONS.len() as i64 {
            return Ok(Some(Unfit::Newer(version)));
        }
        let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok((check != "ok").then_some(Unfit::Damaged(check)))
    };
    match look() {
        Ok(found) => Ok(found),
        Err(error) => match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
                Ok(Some(Unfit::Damaged(error.to_string())))
            }
            _ => Err(Error::sqlite(path.display().to_string())(error)),
        },
    }
}

/// Keeps a copy of a file that cannot be used, and says so. A copy of the same length that is there already will do.
fn refuse(path: &Path, unfit: &Unfit) -> Error {
    let (why, label) = match unfit {
        Unfit::Newer(version) => (
            format!(
                "made by a newer plumb (version {version} of its tables; this one knows {})",
                schema::MIGRATIONS.len()
            ),
            format!("newer-{version}"),
        ),
        Unfit::Foreign => ("a database, but not plumb's results".to_owned(), "foreign".to_owned()),
        Unfit::Damaged(what) => (format!("damaged ({what})"), "damaged".to_owned()),
    };
    let length = std::fs::metadata(path).map_or(0, |m| m.len());
    for number in 1..1000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{label}.{number}"));
        let copy = PathBuf::from(name);
        match std::fs::metadata(&copy) {
            Ok(there) if there.len() == length => return Error::Database { path: path.into(), why, copy },
            Ok(_) => {}
            Err(_) => {
                return match std::fs::copy(path, &copy) {
                    Ok(_) => Error::Database { path: path.into(), why, copy },
                    Err(source) => Error::Io { path: copy, source },
                };
            }
        }
    }
    Error::invalid(
        path.display().to_string(),
        "room for a copy",
        format!("999 copies of a file that is {why}"),
    )
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    // Another process may be adding its own run.
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    // Samples are added between measurements: a commit must not wait for the disk. A crash of the machine may cost the last
    // ones, never the file.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = schema::MIGRATIONS.len() as i64;
    if version < known {
        for addition in &schema::MIGRATIONS[version.max(0) as usize..] {
            transaction.execute_batch(addition)?;
        }
        transaction.execute_batch(&schema::append_only())?;
        transaction.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", known)?;
    }
    transaction.commit()
}

fn insert_run(connection: &mut Connection, meta: &RunMeta) -> rusqlite::Result<i64> {
    let transaction = connection.transaction()?;
    let machine: i64 = {
        let known = "SELECT id FROM machine WHERE fingerprint = ?";
        let found = transaction.query_row(known, [&meta.machine], |row| row.get(0)).optional()?;
        match found {
            Some(id) => id,
            None => {
                let sql = "INSERT INTO machine (fingerprint, description) VALUES (?, ?)";
                transaction.execute(sql, params![meta.machine, meta.machine_description.to_string()])?;
                transaction.last_insert_rowid()
            }
        }
    };
    let b = &meta.build;
    let build = [&b.version, &b.revision, &b.features, &b.kernels];
    transaction.execute(
        "INSERT OR IGNORE INTO build (version, revision, features, kernels) VALUES (?, ?, ?, ?)",
        build,
    )?;
    let sql = "SELECT id FROM build WHERE version = ? AND revision = ? AND features = ? AND kernels = ?";
    let build: i64 = transaction.query_row(sql, build, |row| row.get(0))?;
    let model: Option<i64> = match &meta.model {
        None => None,
        Some(m) => {
            let model = [&m.hash, &m.name, &m.precision];
            let sql = "INSERT OR IGNORE INTO model (hash, name, precision) VALUES (?, ?, ?)";
            transaction.execute(sql, model)?;
            let sql = "SELECT id FROM model WHERE hash = ? AND name = ? AND precision = ?";
            Some(transaction.query_row(sql, model, |row| row.get(0))?)
        }
    };
    transaction.execute(
        "INSERT INTO run (kind, begun_at, machine, build, model, workload, prediction, preflight, marks, command) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            meta.kind,
            now(),
            machine,
            build,
            model,
            meta.workload.to_string(),
            meta.prediction.to_string(),
            meta.preflight.to_string(),
            text(&meta.marks),
            meta.command
        ],
    )?;
    let run = transaction.last_insert_rowid();
    transaction.commit()?;
    Ok(run)
}

/// JSON of a column; what cannot be parsed is given as a text, so that a later program's rows can still be read.
fn json(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

fn list(text: String) -> Vec<String> {
    serde_json::from_str(&text).unwrap_or_else(|_| vec![text])
}

fn read_run(connection: &Connection, id: i64) -> rusqlite::Result<Option<Run>> {
    let sql = "SELECT run.kind, run.begun_at, machine.fingerprint, machine.description, build.version, build.revision, \
               build.features, build.kernels, model.hash, model.name, model.precision, run.workload, run.prediction, \
               run.preflight, run.marks, run.command FROM run JOIN machine ON machine.id = run.machine \
               JOIN build ON build.id = run.build LEFT JOIN model ON model.id = run.model WHERE run.id = ?";
    let head = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(String, RunMeta)> {
        let hash: Option<String> = row.get(8)?;
        let model = match hash {
            Some(hash) => Some(ModelId { hash, name: row.get(9)?, precision: row.get(10)? }),
            None => None,
        };
        let build = Build {
            version: row.get(4)?,
            revision: row.get(5)?,
            features: row.get(6)?,
            kernels: row.get(7)?,
        };
        let meta = RunMeta {
            kind: row.get(0)?,
            machine: row.get(2)?,
            machine_description: json(row.get(3)?),
            build,
            model,
            workload: json(row.get(11)?),
            prediction: json(row.get(12)?),
            preflight: json(row.get(13)?),
            marks: list(row.get(14)?),
            command: row.get(15)?,
        };
        Ok((row.get(1)?, meta))
    };
    let Some((begun_at, meta)) = connection.query_row(sql, [id], head).optional()? else { return Ok(None) };

    let mut numbers: Vec<i64> = Vec::new();
    let mut arms = Vec::new();
    let mut statement = connection.prepare(
        "SELECT id, label, asked, applied, precision, fingerprint FROM arm WHERE run = ? ORDER BY id",
    )?;
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        numbers.push(row.get(0)?);
        let settings = |column| -> rusqlite::Result<_> {
            Ok(serde_json::from_str(&row.get::<_, String>(column)?).unwrap_or_default())
        };
        arms.push(ArmRow {
            label: row.get(1)?,
            asked: settings(2)?,
            applied: settings(3)?,
            precision: row.get(4)?,
            fingerprint: row.get(5)?,
        });
    }

    let mut statement = connection.prepare(
        "SELECT arm, phase, pair, place, at_ns, elapsed_ns, tokens, bytes, detail FROM sample WHERE run = ? ORDER BY id",
    )?;
    let sample = |row: &rusqlite::Row<'_>| {
        let arm: Option<i64> = row.get(0)?;
        let count = |column| -> rusqlite::Result<u64> { Ok(row.get::<_, i64>(column)?.max(0) as u64) };
        Ok(SampleRow {
            arm: arm.and_then(|number| numbers.iter().position(|&n| n == number)),
            phase: row.get(1)?,
            pair: row.get(2)?,
            place: row.get(3)?,
            at_ns: count(4)?,
            elapsed_ns: count(5)?,
            tokens: count(6)?,
            bytes: count(7)?,
            detail: json(row.get(8)?),
        })
    };
    let samples = statement.query_map([id], sample)?.collect::<rusqlite::Result<_>>()?;

    let mut statement = connection.prepare(
        "SELECT name, unit, x, value, low, high, predicted, detail FROM figure WHERE run = ? ORDER BY id",
    )?;
    let figure = |row: &rusqlite::Row<'_>| {
        Ok(Figure {
            name: row.get(0)?,
            unit: row.get(1)?,
            x: row.get(2)?,
            value: row.get(3)?,
            low: row.get(4)?,
            high: row.get(5)?,
            predicted: row.get(6)?,
            detail: json(row.get(7)?),
        })
    };
    let figures = statement.query_map([id], figure)?.collect::<rusqlite::Result<_>>()?;

    let sql = "SELECT ended_at, state, verdict, marks FROM outcome WHERE run = ? ORDER BY id DESC LIMIT 1";
    let outcome = |row: &rusqlite::Row<'_>| {
        let state: String = row.get(1)?;
        Ok((row.get(0)?, State::of(&state), json(row.get(2)?), list(row.get(3)?)))
    };
    let outcome: Option<(String, State, Value, Vec<String>)> =
        connection.query_row(sql, [id], outcome).optional()?;
    let (ended_at, state, verdict, end_marks) = match outcome {
        Some((at, state, verdict, marks)) => (Some(at), state, verdict, marks),
        None => (None, State::Partial, Value::Null, Vec::new()),
    };
    Ok(Some(Run { id, begun_at, meta, state, ended_at, verdict, end_marks, arms, samples, figures }))
}
