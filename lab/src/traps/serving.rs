//! Falsehoods of streams, prompts and files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use engine::{Feed, LogitRows, Model};
use serde_json::json;

use super::{Field, Sprung, TrapModel, timed};
use crate::arms::{Arm, Limit, ServerArm, ServerWork};
use crate::clock::System;
use crate::{Error, Result, guards};

/// Answers one request on a port of its own with `chunks` events of `per_chunk` tokens each, a token every `token`; gives its address.
fn stream_server(chunks: u64, per_chunk: u64, token: Duration) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("127.0.0.1"))?;
    let address = listener.local_addr().map_err(Error::io("127.0.0.1"))?;
    std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        let mut reader = BufReader::new(&stream);
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
            if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        let send = |text: String| (&stream).write_all(text.as_bytes());
        // A client that has gone ends the answer.
        let _ = reader.read_exact(&mut vec![0; length]);
        let _ = (|| {
            send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".into())?;
            for _ in 0..chunks {
                std::thread::sleep(token * per_chunk as u32);
                let text = "word ".repeat(per_chunk as usize);
                send(format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] })))?;
            }
            let usage = json!({ "completion_tokens": chunks * per_chunk, "prompt_tokens": 8 });
            send(format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage })))
        })();
    });
    Ok(format!("http://{address}"))
}

pub(super) fn chunks_as_tokens(_: &mut Field<'_>) -> Result<Sprung> {
    let url = stream_server(12, 5, Duration::from_millis(4))?;
    let work = ServerWork { model: "any".into(), prompt: "Tell me.".into(), max_tokens: 60 };
    let limit = Limit::of(Duration::from_secs(30));
    let taken = ServerArm::new("server", &url, work, limit, Rc::new(System::default())).take(1, 0)?;
    let seconds = taken.elapsed_ns as f64 / 1e9;
    let chunks = taken.detail["chunks"].as_u64().unwrap_or(0);
    Sprung::new(
        format!("{:.1} tokens/s, by counting {chunks} chunks", chunks as f64 / seconds),
        format!("{:.1} tokens/s, by the server's usage", taken.tokens as f64 / seconds),
        guards::tokens_by_usage(chunks, Some(taken.tokens)),
    )
}

fn model<'f>(field: &'f mut Field<'_>, name: &str) -> Result<&'f mut TrapModel> {
    field.model.as_mut().ok_or_else(|| Error::invalid(name, "a model (--model)", "none"))
}

/// Time and reused positions of a prompt.
fn prompt(model: &mut Model, clock: &dyn crate::clock::Clock, tokens: &[u32]) -> Result<(f64, usize)> {
    let mut sequence = model.sequence(tokens);
    let reused = sequence.len();
    let mut row = vec![0.0; model.plan().vocab];
    let mut stepped = Ok(());
    let ns = timed(clock, || {
        let feed = Feed { sequence: &mut sequence, tokens: &tokens[reused..], logits: LogitRows::Last };
        stepped = model.step(&mut [feed], &mut row);
    });
    stepped?;
    sequence.keep();
    Ok((ns, reused))
}

pub(super) fn prefix_hit(field: &mut Field<'_>) -> Result<Sprung> {
    let clock = field.clock;
    let model = &mut model(field, "prefix-hit")?.model;
    let vocab = model.plan().vocab as u32;
    let count = (model.context() / 2).min(256);
    let tokens = |seed: u32| -> Vec<u32> {
        (0..count as u32).map(|i| (i * 7919 + seed * 104_729 + 13) % vocab).collect()
    };
    model.forget_prefixes();
    prompt(model, clock, &tokens(1))?;
    let (again, cached) = prompt(model, clock, &tokens(1))?;
    let (distinct, _) = prompt(model, clock, &tokens(2))?;
    let rate = |ns: f64| count as f64 * 1e9 / ns;
    Sprung::new(
        format!("{:.0} prompt tokens/s", rate(again)),
        format!("{:.0} prompt tokens/s, for a prompt that was not seen before", rate(distinct)),
        guards::prompt_computed(count, cached),
    )
}

pub(super) fn file_size_floor(field: &mut Field<'_>) -> Result<Sprung> {
    let clock = field.clock;
    let trap = model(field, "file-size-floor")?;
    let file_bytes = trap.file_bytes;
    let model = &mut trap.model;
    let depth = model.context().saturating_sub(16).min(512);
    let work = model.plan().work(1, depth, 1);
    let ledger = work.bytes_read.weights + work.bytes_read.kv;
    let mut row = vec![0.0; model.plan().vocab];
    let mut sequence = model.sequence(&[]);
    let before: Vec<u32> = (0..depth as u32).map(|i| 1 + i % 97).collect();
    if depth > 0 {
        model.step(
            &mut [Feed { sequence: &mut sequence, tokens: &before, logits: LogitRows::None }],
            &mut [],
        )?;
    }
    let mut times = Vec::new();
    for token in 1..=8u32 {
        let mut stepped = Ok(());
        times.push(timed(clock, || {
            let feed = Feed { sequence: &mut sequence, tokens: &[token], logits: LogitRows::Last };
            stepped = model.step(&mut [feed], &mut row);
        }));
        stepped?;
    }
    let ns = crate::stats::median(&times);
    // Against the rate that the ledger's bytes alone would need, whatever the machine's bandwidth is: the two floors' ratio.
    let achieved = |bytes: u64| bytes as f64 / ns;
    Sprung::new(
        format!(
            "{:.2} GB/s \"achieved\", by the file's {:.1} MB a token",
            achieved(file_bytes),
            file_bytes as f64 / 1e6
        ),
        format!(
            "{:.2} GB/s, by the {:.1} MB that the operations read behind {depth} positions",
            achieved(ledger),
            ledger as f64 / 1e6
        ),
        guards::by_ledger(file_bytes, ledger),
    )
}
