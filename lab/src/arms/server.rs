//! An OpenAI-compatible server as an arm: an answer is streamed, arrival is timed here, tokens come from the server's usage.

use std::io::{BufRead, BufReader};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answer, Arm, Limit, Ready, Taken};
use crate::clock::Clock;
use crate::results::Settings;
use crate::{Error, Result, guards};

/// What is asked of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerWork {
    /// The model's name, as the server has it.
    pub model: String,
    /// The prompt; each sample puts a number before it, so that no prefix cache has seen it.
    pub prompt: String,
    /// Most tokens of the answer.
    pub max_tokens: u64,
}

/// A server that is running already.
pub struct ServerArm {
    label: String,
    url: String,
    work: ServerWork,
    clock: Rc<dyn Clock>,
    agent: ureq::Agent,
    limit: Limit,
}

/// One streamed answer.
#[derive(Debug, Default)]
struct Stream {
    text: String,
    chunks: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    usage: Option<u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    fingerprint: Option<String>,
}

impl ServerArm {
    /// An arm of the server at `url`, such as `http://localhost:8080`; `/v1` is added where it is not there.
    pub fn new(
        label: impl Into<String>,
        url: &str,
        work: ServerWork,
        limit: Limit,
        clock: Rc<dyn Clock>,
    ) -> ServerArm {
        let base = url.trim_end_matches('/');
        let url = if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(limit.longest))
            .timeout_connect(Some(Duration::from_secs(10)))
            .http_status_as_error(false)
            .build();
        ServerArm { label: label.into(), url, work, clock, agent: config.into(), limit }
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::arm(&self.label, format!("{}: {why}", self.url))
    }

    fn ask(&self, prompt: &str) -> Result<Stream> {
        let body = json!({
            "model": self.work.model,
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": self.work.max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let start = self.clock.now_ns();
        let mut response = self
            .agent
            .post(format!("{}/chat/completions", self.url))
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .send(body.to_string())
            .map_err(|e| self.failed(format!("{e} (limit {:.0} s)", self.limit.longest.as_secs_f64())))?;
        if !response.status().is_success() {
            let status = response.status();
            let said = response.body_mut().read_to_string().unwrap_or_default();
            return Err(self.failed(format!(
                "answered {status}: {}",
                said.trim().chars().take(300).collect::<String>()
            )));
        }
        let mut stream = Stream::default();
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            let line = line.map_err(|e| self.failed(format!("the stream broke off: {e}")))?;
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data)
                .map_err(|e| self.failed(format!("an event that is no JSON: {e}")))?;
            stream.take(&event, self.clock.now_ns() - start).map_err(|why| self.failed(why))?;
        }
        if stream.first_ns.is_none() {
            return Err(self.failed("the answer is empty: no figure"));
        }
        Ok(stream)
    }
}

impl Stream {
    fn take(&mut self, event: &Value, at_ns: u64) -> std::result::Result<(), String> {
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            return Err(format!("the server says {error}"));
        }
        let delta = &event["choices"][0];
        let piece = delta["delta"]["content"].as_str().or_else(|| delta["text"].as_str()).unwrap_or("");
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.chunks += 1;
            self.first_ns.get_or_insert(at_ns);
            self.last_ns = at_ns;
        }
        let usage = &event["usage"];
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.usage = Some(tokens);
            self.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
        if let Some(name) = event["system_fingerprint"].as_str() {
            self.fingerprint = Some(name.to_owned());
        }
        Ok(())
    }
}

impl Arm for ServerArm {
    fn label(&self) -> &str {
        &self.label
    }

    fn asked(&self) -> Settings {
        let pairs = [("url", self.url.clone()), ("model", self.work.model.clone())];
        pairs.map(|(k, v)| (k.to_owned(), v)).into()
    }

    fn prepare(&mut self) -> Result<Ready> {
        let stream = self.ask(&self.work.prompt)?;
        if stream.usage.is_none() {
            guards::tokens_by_usage(stream.chunks, None)?;
        }
        let mut applied = self.asked();
        if let Some(name) = stream.fingerprint {
            applied.insert("system_fingerprint".into(), name);
        }
        let answer = Answer { text: Some(stream.text), ..Answer::default() };
        let notes = vec!["a server's own precision is what it says of itself".into()];
        Ok(Ready { applied, answer, notes, ..Ready::default() })
    }

    fn take(&mut self, _inner: u64, turn: u64) -> Result<Taken> {
        // First, so that no prefix of it can have been kept; of the clock, so that another run's numbers are others.
        let prompt = format!("[{turn}-{}] {}", self.clock.now_ns(), self.work.prompt);
        let stream = self.ask(&prompt)?;
        let Some(tokens) = stream.usage else {
            guards::tokens_by_usage(stream.chunks, None)?;
            return Err(self.failed("no usage"));
        };
        Ok(Taken {
            elapsed_ns: stream.last_ns,
            tokens,
            bytes: 0,
            // The template's own beginning is the same in every request.
            cached_tokens: 0,
            detail: json!({
                "first_token_ns": stream.first_ns,
                "chunks": stream.chunks,
                "prompt_tokens": stream.prompt_tokens,
                "cached_tokens": stream.cached_tokens,
            }),
        })
    }

    fn bytes_per_repetition(&self) -> Option<u64> {
        None
    }

    fn is_elsewhere(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::System;
    use crate::testing::serve;

    fn arm(url: &str) -> ServerArm {
        let work = ServerWork { model: "m".into(), prompt: "Tell me.".into(), max_tokens: 8 };
        ServerArm::new("a", url, work, Limit::of(Duration::from_secs(5)), Rc::new(System::default()))
    }

    fn event(text: &str) -> String {
        format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }))
    }

    fn usage(tokens: u64) -> String {
        let usage = json!({ "completion_tokens": tokens, "prompt_tokens": 9, "prompt_tokens_details": { "cached_tokens": 4 } });
        format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage }))
    }

    #[test]
    fn tokens_come_from_usage_and_not_from_chunks() {
        let url = serve(200, format!("{}{}{}", event("Hel"), event("lo there"), usage(7)));
        let taken = arm(&url).take(1, 0).unwrap();
        assert_eq!(taken.tokens, 7);
        assert_eq!((&taken.detail["chunks"], &taken.detail["cached_tokens"]), (&json!(2), &json!(4)));
        assert!(taken.elapsed_ns > 0);
    }

    #[test]
    fn an_answer_is_kept_for_comparison() {
        let url = serve(200, format!("{}{}{}", event("Hel"), event("lo"), usage(2)));
        assert_eq!(arm(&url).prepare().unwrap().answer.text.as_deref(), Some("Hello"));
    }

    #[test]
    fn a_server_without_usage_is_refused() {
        let url = serve(200, format!("{}data: [DONE]\n\n", event("Hello")));
        let error = arm(&url).prepare().unwrap_err().to_string();
        assert!(error.contains("chunks are not tokens"), "{error}");
    }

    #[test]
    fn a_servers_refusal_is_shown() {
        let url = serve(404, "{\"error\": \"no model m\"}".into());
        let error = arm(&url).prepare().unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("no model m"), "{error}");
        let url = serve(200, "data: {\"error\": {\"message\": \"out of memory\"}}\n\n".into());
        assert!(arm(&url).prepare().unwrap_err().to_string().contains("out of memory"));
        let url = serve(200, usage(0));
        assert!(arm(&url).prepare().unwrap_err().to_string().contains("empty"));
    }
}
