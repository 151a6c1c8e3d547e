//! The sampling chain against results that are not ours: `golden/sample` holds them with the scripts that made them.

use std::collections::BTreeMap;

use engine::sample::{Curve, Sampler, SamplerConfig, TokenMask};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/sample").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[derive(Deserialize)]
struct Steps {
    inputs: Vec<Input>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Input {
    /// A null is −∞.
    logits: Vec<Option<f32>>,
    history: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: SamplerConfig,
    input: usize,
    choice: u64,
    position: u64,
    /// Whether tokens 2, 7, 12, … are masked.
    masked: bool,
    kept: usize,
    top: Vec<(u32, f64)>,
    token: u32,
}

/// Every step alone and chains of them, on logits of several sizes with and without a mask: which tokens stay, with what
/// probability, and which one is drawn. The oracle works in f64; a logit that was adjusted is rounded to f32 here, so
/// a probability may differ by a few 2⁻²⁴ times the logit (|logit| < 32 in these cases, 100 for a bias of −100).
#[test]
fn steps_and_chains_leave_what_the_specification_says() {
    let golden: Steps = golden("steps.json");
    assert!(golden.cases.len() > 400);
    for case in &golden.cases {
        let input = &golden.inputs[case.input];
        let logits: Vec<f32> = input.logits.iter().map(|l| l.unwrap_or(f32::NEG_INFINITY)).collect();
        let mut words = vec![0_u32; logits.len().div_ceil(32)];
        for token in (0..logits.len()).filter(|token| token % 5 != 2) {
            words[token / 32] |= 1 << (token % 32);
        }
        let mask = case.masked.then_some(TokenMask(&words));
        let at = format!("{} (input {}, position {})", case.name, case.input, case.position);
        let mut sampler = Sampler::new(case.config.clone(), logits.len()).expect(&at);
        let found =
            sampler.distribution(&logits, &input.history, case.choice, case.position, mask).expect(&at);
        assert_eq!(found.len(), case.kept, "{at}: tokens kept");
        let by_token: BTreeMap<u32, f64> = found.into_iter().collect();
        for &(token, p) in &case.top {
            let ours = by_token.get(&token).unwrap_or_else(|| panic!("{at}: token {token} was removed"));
            assert!(
                (ours - p).abs() <= 1e-5 * p + 1e-13,
                "{at}: token {token}: expected {p:e}, found {ours:e}"
            );
        }
        let choice = sampler.sample_masked(&logits, &input.history, case.choice, case.position, mask);
        assert_eq!(choice.expect(&at).token, case.token, "{at}: token drawn");
    }
}

#[derive(Deserialize)]
struct Evaluations {
    curve: Curve,
    u: Vec<f64>,
    f: Vec<f64>,
}

#[test]
fn curves_agree_with_scipy() {
    let curves: BTreeMap<String, Evaluations> = golden("curves.json");
    for (name, given) in &curves {
        for (&u, &f) in given.u.iter().zip(&given.f) {
            let ours = given.curve.log_weight(u);
            assert!((ours - f).abs() < 1e-9, "{name}: f({u}): expected {f}, found {ours}");
        }
    }
}

#[derive(Deserialize)]
struct Draws {
    n: usize,
    salt: u64,
    scale: f64,
    config: SamplerConfig,
    at: Vec<(u64, u64)>,
    tokens: Vec<u32>,
}

/// The script's `synthetic`: sums of four 16-bit fields of an LCG.
fn synthetic(n: usize, salt: u64, scale: f64) -> Vec<f32> {
    let mut state = salt;
    let mut logits = Vec::with_capacity(n);
    for _ in 0..n {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let sum: u64 = [48, 32, 16, 0].iter().map(|shift| state >> shift & 0xffff).sum();
        logits.push(((sum as f64 - 131_072.0) * scale / 4096.0) as f32);
    }
    logits
}

/// The oracle evaluates the noise of every token; here most are skipped.
#[test]
fn large_vocabularies_give_the_tokens_that_evaluating_every_one_gives() {
    let draws: BTreeMap<String, Draws> = golden("draws.json");
    for (name, given) in &draws {
        let logits = synthetic(given.n, given.salt, given.scale);
        let mut sampler = Sampler::new(given.config.clone(), given.n).unwrap();
        for (&(choice, position), &token) in given.at.iter().zip(&given.tokens) {
            let ours = sampler.sample(&logits, &[], choice, position).unwrap().token;
            assert_eq!(ours, token, "{name}, choice {choice}, position {position}");
        }
    }
}

#[derive(Deserialize)]
struct Peer {
    config: SamplerConfig,
    logits: Vec<f32>,
    history: Vec<u32>,
    /// Tokens that stay, with their logits.
    left: Vec<(u32, f64)>,
}

/// llama.cpp computes in f32 and its logits were written with seven digits.
#[test]
fn details_that_the_descriptions_leave_open_are_as_in_llama_cpp() {
    let cases: Vec<Peer> = golden("llama.json");
    for case in &cases {
        let mut sampler = Sampler::new(case.config.clone(), case.logits.len()).unwrap();
        let found = sampler.distribution(&case.logits, &case.history, 0, 0, None).unwrap();
        let at = format!("{:?} on {} logits", case.config, case.logits.len());
        assert_eq!(found.len(), case.left.len(), "{at}");
        let total: f64 = case.left.iter().map(|(_, logit)| logit.exp()).sum();
        let by_token: BTreeMap<u32, f64> = found.into_iter().collect();
        for &(token, logit) in &case.left {
            let p = logit.exp() / total;
            let ours = by_token.get(&token).unwrap_or_else(|| panic!("{at}: token {token} was removed"));
            assert!((ours - p).abs() < 4e-6 * p + 1e-12, "{at}: token {token}: expected {p}, found {ours}");
        }
    }
}
