//! The database's tables, as a list of additions. A version of the file is the number of additions it has had; what
//! stands in this list is never edited, only followed by more.

/// Each takes the file from version i to i + 1.
pub(super) const MIGRATIONS: &[&str] = &[FIRST];

/// Marks a SQLite file as ours ("plmb").
pub(super) const APPLICATION_ID: i32 = 0x706c_6d62;

const FIRST: &str = "
CREATE TABLE machine (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL
) STRICT;
CREATE TABLE build (
    id INTEGER PRIMARY KEY,
    version TEXT NOT NULL,
    revision TEXT NOT NULL,
    features TEXT NOT NULL,
    kernels TEXT NOT NULL,
    UNIQUE (version, revision, features, kernels)
) STRICT;
CREATE TABLE model (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    precision TEXT NOT NULL,
    UNIQUE (hash, name, precision)
) STRICT;
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    begun_at TEXT NOT NULL,
    machine INTEGER NOT NULL REFERENCES machine (id),
    build INTEGER NOT NULL REFERENCES build (id),
    model INTEGER REFERENCES model (id),
    workload TEXT NOT NULL,
    prediction TEXT NOT NULL,
    preflight TEXT NOT NULL,
    marks TEXT NOT NULL,
    command TEXT NOT NULL
) STRICT;
CREATE TABLE arm (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    label TEXT NOT NULL,
    asked TEXT NOT NULL,
    applied TEXT NOT NULL,
    precision TEXT NOT NULL,
    fingerprint TEXT
) STRICT;
CREATE INDEX arm_of_run ON arm (run);
CREATE TABLE sample (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    arm INTEGER REFERENCES arm (id),
    phase TEXT NOT NULL,
    pair INTEGER NOT NULL,
    place INTEGER NOT NULL,
    at_ns INTEGER NOT NULL,
    elapsed_ns INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX sample_of_run ON sample (run);
CREATE TABLE figure (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    name TEXT NOT NULL,
    unit TEXT NOT NULL,
    x REAL,
    value REAL NOT NULL,
    low REAL,
    high REAL,
    predicted REAL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX figure_of_run ON figure (run);
CREATE TABLE outcome (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run (id),
    ended_at TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('complete', 'partial', 'failed')),
    verdict TEXT NOT NULL,
    marks TEXT NOT NULL
) STRICT;
CREATE INDEX outcome_of_run ON outcome (run);
";

/// Tables whose rows are never changed.
const TABLES: &[&str] = &["machine", "build", "model", "run", "arm", "sample", "figure", "outcome"];

/// Triggers by which SQLite itself refuses to change or delete a row of any table.
pub(super) fn append_only() -> String {
    let trigger = |table: &&str| {
        ["UPDATE", "DELETE"].map(|deed| {
            format!(
                "CREATE TRIGGER IF NOT EXISTS no_{deed}_of_{table} BEFORE {deed} ON {table} \
                 BEGIN SELECT RAISE(ABORT, 'results are only ever added'); END;"
            )
        })
    };
    TABLES.iter().flat_map(trigger).collect()
}
