//! Facts about sampling that users rely on: bad settings, broken models, greedy, seeds, and the draw's statistics.

use engine::sample::{
    Curve, CurvePoint, Error, Sampler, SamplerConfig, ToneCurve, log_probability, sequence_breakers,
    top_log_probabilities,
};
use proptest::prelude::*;

fn seeded(seed: u64) -> SamplerConfig {
    SamplerConfig { seed: Some(seed), ..Default::default() }
}

fn sampler(config: SamplerConfig, vocab_size: usize) -> Sampler {
    Sampler::new(config, vocab_size).unwrap()
}

fn curve(pairs: &[(f64, f64)]) -> Result<Curve, Error> {
    Curve::new(pairs.iter().map(|&(x_pct, y_pct)| CurvePoint { x_pct, y_pct }).collect())
}

/// Logits of a bell-like shape from a small generator of the test's own.
fn logits(n: usize, salt: u64, scale: f32) -> Vec<f32> {
    let mut state = salt;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| (next() + next() + next() - 1.5) * scale).collect()
}

#[test]
fn settings_out_of_range_are_named() {
    type Spoil = fn(&mut SamplerConfig);
    let cases: [(&str, Spoil); 17] = [
        ("temperature", |c| c.temperature = -0.1),
        ("temperature", |c| c.temperature = f64::NAN),
        ("temperature", |c| c.temperature = f64::INFINITY),
        ("min_p", |c| c.min_p = 1.5),
        ("min_p", |c| c.min_p = -0.1),
        ("min_p", |c| c.min_p = f64::NAN),
        ("top_p", |c| c.top_p = 1.01),
        ("typical_p", |c| c.typical_p = -1.0),
        ("xtc_probability", |c| c.xtc_probability = 2.0),
        ("xtc_threshold", |c| c.xtc_threshold = f64::NAN),
        ("top_n_sigma", |c| c.top_n_sigma = -1.0),
        ("repetition_penalty", |c| c.repetition_penalty = 0.0),
        ("presence_penalty", |c| c.presence_penalty = f64::INFINITY),
        ("dry_base", |c| c.dry_base = 0.5),
        ("dry_multiplier", |c| c.dry_multiplier = -1.0),
        ("logit_bias", |c| c.logit_bias = [(3, f32::NAN)].into()),
        ("curve and hlg", |c| {
            c.hlg = Some(ToneCurve::default());
            c.curve = Some(curve(&[(0.0, 0.0), (1.0, 1.0)]).unwrap());
        }),
    ];
    for (name, spoil) in cases {
        let mut config = SamplerConfig::default();
        spoil(&mut config);
        let message = Sampler::new(config, 10).unwrap_err().to_string();
        assert!(message.starts_with(name) && message.contains("expected"), "{name}: {message}");
    }
    let outside = SamplerConfig { logit_bias: [(10, 1.0)].into(), ..Default::default() };
    assert!(Sampler::new(outside, 10).is_err());
}

#[test]
fn a_broken_model_is_an_error_that_names_the_position() {
    let banned = SamplerConfig { logit_bias: [(1, f32::NEG_INFINITY)].into(), ..seeded(1) };
    let greedy = SamplerConfig { temperature: 0.0, ..seeded(1) };
    let narrow = SamplerConfig { top_k: 2, top_p: 0.5, ..seeded(1) };
    for config in [seeded(1), banned, greedy, narrow] {
        let mut sampler = sampler(config, 3);
        let nan = sampler.sample(&[0.0, f32::NAN, 1.0], &[], 0, 41).unwrap_err();
        assert!(matches!(nan, Error::BrokenLogits { position: 41, token: 1, .. }), "{nan}");
        let infinite = sampler.sample(&[0.0, 1.0, f32::INFINITY], &[], 0, 42).unwrap_err();
        assert!(matches!(infinite, Error::BrokenLogits { position: 42, token: 2, .. }), "{infinite}");
        let none = sampler.sample(&[f32::NEG_INFINITY; 3], &[], 0, 43).unwrap_err();
        assert!(matches!(none, Error::NoToken { position: 43, .. }), "{none}");
        let short = sampler.sample(&[0.0; 2], &[], 0, 44).unwrap_err();
        assert!(matches!(short, Error::LogitCount { position: 44, expected: 3, found: 2 }), "{short}");
    }
}

#[test]
fn a_mask_that_leaves_nothing_is_an_error_and_one_token_is_certain() {
    let mut sampler = sampler(seeded(1), 40);
    let logits = logits(40, 1, 3.0);
    let masked = |s: &mut Sampler, words: &[u32]| {
        s.sample_masked(&logits, &[], 0, 9, Some(engine::sample::TokenMask(words)))
    };
    assert!(matches!(masked(&mut sampler, &[0, 0]), Err(Error::NoToken { position: 9, .. })));
    assert!(matches!(masked(&mut sampler, &[]), Err(Error::NoToken { position: 9, .. })));
    assert_eq!(masked(&mut sampler, &[0, 1 << 5]).unwrap().token, 37);
}

#[test]
fn greedy_takes_the_lowest_of_the_best_however_it_is_asked_for() {
    let mut logits = logits(1000, 5, 2.0);
    logits[700] = 9.0;
    logits[333] = 9.0;
    let hlg = SamplerConfig { hlg: Some(ToneCurve::default()), temperature: 0.0, ..seeded(3) };
    let asked = [
        SamplerConfig { temperature: 0.0, ..seeded(3) },
        SamplerConfig { top_k: 1, ..seeded(3) },
        SamplerConfig { top_p: 0.0, ..seeded(3) },
        SamplerConfig { temperature: 0.0, xtc_probability: 1.0, xtc_threshold: 0.0, ..seeded(3) },
        hlg,
    ];
    for config in asked {
        let mut sampler = sampler(config, 1000);
        for position in 0..50 {
            assert_eq!(sampler.sample(&logits, &[], 0, position).unwrap().token, 333);
        }
    }
}

/// Temperatures so small that everything underflows draw the best token, and the largest ones still draw.
#[test]
fn extreme_temperatures_are_harmless() {
    let logits = logits(500, 5, 2.0);
    let best = (0..500).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
    for temperature in [f64::MIN_POSITIVE, 1e-300, 1e-30, 1e-9] {
        for hlg in [None, Some(ToneCurve::default())] {
            let mut sampler = sampler(SamplerConfig { temperature, hlg, ..seeded(3) }, 500);
            for position in 0..20 {
                assert_eq!(sampler.sample(&logits, &[], 0, position).unwrap().token, best);
            }
        }
    }
    let mut sampler = sampler(SamplerConfig { temperature: f64::MAX, ..seeded(3) }, 500);
    assert!(sampler.sample(&logits, &[], 0, 0).unwrap().token < 500);
}

/// Pearson's chi-square of 40,000 draws against the exact probabilities: below the 99.9% quantile (9 degrees of freedom:
/// 27.877, from SciPy), for the first of several seeds that were fixed before the first run.
#[test]
fn draws_follow_the_distribution() {
    let p = [0.30_f64, 0.22, 0.15, 0.10, 0.08, 0.06, 0.04, 0.025, 0.015, 0.01];
    for (seed, vary_choice) in [(1, false), (2, true), (0x1234_5678_9abc_def0, false)] {
        // Ten tokens among 300, so that blocks and skipping take part.
        let mut logits = vec![f32::NEG_INFINITY; 300];
        for (i, p) in p.iter().enumerate() {
            logits[i * 31] = p.ln() as f32;
        }
        let mut sampler = sampler(seeded(seed), 300);
        let mut counts = [0_u32; 10];
        let draws = 40_000;
        for i in 0..draws {
            let (choice, position) = if vary_choice { (i, 5) } else { (0, i) };
            let token = sampler.sample(&logits, &[], choice, position).unwrap().token;
            counts[token as usize / 31] += 1;
        }
        let chi2: f64 = p
            .iter()
            .zip(counts)
            .map(|(p, n)| (f64::from(n) - p * draws as f64).powi(2) / (p * draws as f64))
            .sum();
        assert!(chi2 < 27.877, "seed {seed}: chi-square {chi2}, counts {counts:?}");
    }
}

/// XTC's coin follows its chance: 20,000 positions at 0.3, four standard deviations being 259.
#[test]
fn xtc_acts_as_often_as_it_should() {
    let config = SamplerConfig { xtc_probability: 0.3, xtc_threshold: 0.1, ..seeded(9) };
    let mut sampler = sampler(config, 3);
    let acted = (0..20_000)
        .filter(|&i| sampler.distribution(&[2.0, 1.5, 0.0], &[], 0, i, None).unwrap().len() < 3)
        .count();
    assert!((acted as i64 - 6000).abs() < 259, "{acted}");
}

#[test]
fn a_draw_depends_on_its_address_alone() {
    let logits = logits(5000, 8, 4.0);
    let at: Vec<(u64, u64)> = (0..30).flat_map(|position| [(0, position), (1, position)]).collect();
    let mut one = sampler(seeded(5), 5000);
    let in_order: Vec<u32> = at.iter().map(|&(c, p)| one.sample(&logits, &[], c, p).unwrap().token).collect();
    let reversed = at.iter().rev().map(|&(c, p)| one.sample(&logits, &[], c, p).unwrap().token);
    assert!(reversed.eq(in_order.iter().rev().copied()));
    let alone = at.iter().map(|&(c, p)| sampler(seeded(5), 5000).sample(&logits, &[], c, p).unwrap().token);
    assert!(alone.eq(in_order.iter().copied()));
    let other_seed =
        at.iter().map(|&(c, p)| sampler(seeded(6), 5000).sample(&logits, &[], c, p).unwrap().token);
    assert!(!other_seed.eq(in_order.iter().copied()));
}

#[test]
fn without_a_seed_one_is_drawn_and_repeats_the_tokens() {
    let logits = logits(500, 8, 2.0);
    let mut first = sampler(SamplerConfig::default(), 500);
    let mut again = sampler(seeded(first.seed()), 500);
    for position in 0..20 {
        let tokens = [&mut first, &mut again].map(|s| s.sample(&logits, &[], 0, position).unwrap());
        assert_eq!(tokens[0], tokens[1]);
    }
    assert_ne!(first.seed(), sampler(SamplerConfig::default(), 500).seed());
    assert!(first.describe().contains(&first.seed().to_string()));
}

/// With shared noise a narrower policy takes the wider one's token whenever it has kept it.
#[test]
fn two_policies_with_one_seed_share_their_noise() {
    let mut agreed = 0;
    for position in 0..400 {
        let logits = logits(2000, position + 1, 6.0);
        let mut wide = sampler(seeded(11), 2000);
        let mut narrow = sampler(SamplerConfig { top_p: 0.7, ..seeded(11) }, 2000);
        let kept = narrow.distribution(&logits, &[], 0, position, None).unwrap();
        let (a, b) = (
            wide.sample(&logits, &[], 0, position).unwrap().token,
            narrow.sample(&logits, &[], 0, position).unwrap().token,
        );
        if kept.iter().any(|(token, _)| *token == a) {
            assert_eq!(a, b);
            agreed += 1;
        }
    }
    assert!(agreed > 200, "{agreed}");
}

#[test]
fn the_identity_curve_is_temperature_one() {
    let json = r#"{"space":"logprob","points":[{"x_pct":0,"y_pct":0},{"x_pct":3,"y_pct":3},{"x_pct":100,"y_pct":100}]}"#;
    let identity = Curve::from_json(json).unwrap();
    assert!(identity.is_identity());
    for u in [-100.0, -30.0, -25.3, -20.0, -3.5, -1e-3, 0.0] {
        assert!((identity.log_weight(u) - u).abs() < 1e-12, "{u}");
    }
    // One point a hair off, so that the curve is evaluated as such.
    let nearly = curve(&[(0.0, 0.0), (3.0, 3.000_000_000_000_1), (100.0, 100.0)]).unwrap();
    assert!(!nearly.is_identity());
    let mut plain = sampler(seeded(4), 3000);
    let mut curved = sampler(SamplerConfig { curve: Some(identity), temperature: 0.3, ..seeded(4) }, 3000);
    let mut evaluated = sampler(SamplerConfig { curve: Some(nearly), ..seeded(4) }, 3000);
    for position in 0..2000 {
        let logits = logits(3000, position + 1, 5.0);
        let token = plain.sample(&logits, &[], 0, position).unwrap().token;
        assert_eq!(curved.sample(&logits, &[], 0, position).unwrap().token, token);
        assert_eq!(evaluated.sample(&logits, &[], 0, position).unwrap().token, token);
    }
}

#[test]
fn bad_curves_are_refused_with_what_is_wrong() {
    let message = |pairs: &[(f64, f64)]| curve(pairs).unwrap_err().to_string();
    assert!(message(&[(1.0, 1.0)]).contains("two or more"));
    assert!(message(&[]).contains("two or more"));
    assert!(message(&[(1.0, 1.0), (5.0, 2.0), (1.0, 3.0)]).contains("x_pct = 1 twice"));
    assert!(message(&[(0.0, 1.0), (1e-9, 2.0)]).contains("twice"));
    assert!(message(&[(1.0, 5.0), (10.0, 4.0)]).contains("falls"));
    assert!(message(&[(1.0, f64::NAN), (10.0, 4.0)]).contains("points[0].y_pct"));
    assert!(curve(&[(10.0, 4.0), (1.0, 4.0)]).is_ok(), "level, and in any order");
    for json in [
        r#"{"space":"linear","points":[{"x_pct":0,"y_pct":0},{"x_pct":100,"y_pct":100}]}"#,
        r#"{"space":"logprob","points":[{"x_pct":0},{"x_pct":100,"y_pct":100}]}"#,
        r#"{"space":"logprob","points":[{"x_pct":0,"y_pct":0},{"x_pct":100,"y_pct":100}],"monotonic":false}"#,
        r#"{"points":[{"x_pct":0,"y_pct":0},{"x_pct":100,"y_pct":100}]}"#,
        "{",
        "[]",
    ] {
        assert!(Curve::from_json(json).unwrap_err().to_string().starts_with("curve"), "{json}");
    }
}

#[test]
fn tone_curves_are_read_from_text() {
    let curve = ToneCurve::parse("width=2, shoulder=0.5,toe=inf,pivot=3");
    assert!(curve.unwrap_err().to_string().contains("toe"));
    let curve = ToneCurve::parse("pivot=3,width=inf").unwrap();
    assert_eq!(curve, ToneCurve { width: f64::INFINITY, pivot_offset: 3.0, ..Default::default() });
    assert_eq!(ToneCurve::parse("").unwrap(), ToneCurve::default());
    assert_eq!(ToneCurve::parse("width=4,shoulder=4,toe=6,pivot=6").unwrap(), ToneCurve::default());
    for bad in
        ["width", "width=", "width=x", "colour=3", "width=1,width=1", "width=-1", "pivot=nan", "toe=1=2"]
    {
        assert!(ToneCurve::parse(bad).unwrap_err().to_string().starts_with("hlg"), "{bad}");
    }
    let json = serde_json::to_string(&curve).unwrap();
    assert_eq!(serde_json::from_str::<ToneCurve>(&json).unwrap(), curve, "{json}");
}

#[test]
fn a_configuration_survives_its_json() {
    let config = SamplerConfig {
        logit_bias: [(3, -1.5), (90, 2.0)].into(),
        dry_sequence_breakers: vec![4, 5],
        penalty_last_n: Some(64),
        curve: Some(curve(&[(0.0, 0.0), (5.0, 20.0), (100.0, 90.0)]).unwrap()),
        seed: Some(u64::MAX),
        ..Default::default()
    };
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<SamplerConfig>(&json).unwrap(), config);
    assert_eq!(serde_json::from_str::<SamplerConfig>("{}").unwrap(), SamplerConfig::default());
    assert!(serde_json::from_str::<SamplerConfig>(r#"{"temprature":1}"#).is_err());
}

#[test]
fn a_models_generation_settings_become_a_configuration() {
    let read = |json: &str| {
        let object = serde_json::from_str(json).unwrap();
        SamplerConfig::from_generation_settings(&object)
    };
    let (folder, rest) = read(
        r#"{"bos_token_id":151643,"pad_token_id":null,"do_sample":true,"eos_token_id":[151645,151643],"num_beams":1,
            "repetition_penalty":1.1,"temperature":0.7,"top_p":0.8,"top_k":20,"transformers_version":"4.37.0"}"#,
    )
    .unwrap();
    let expected = SamplerConfig {
        repetition_penalty: 1.1,
        temperature: 0.7,
        top_p: 0.8,
        top_k: 20,
        ..Default::default()
    };
    assert_eq!((folder, rest), (expected, vec![]));
    let (gguf, rest) = read(
        r#"{"general.sampling.temp":0.6,"general.sampling.top_k":-1,"general.sampling.min_p":0.05,
            "general.sampling.penalty_last_n":-1,"general.sampling.penalty_repeat":1.2,"general.sampling.mirostat":2}"#,
    )
    .unwrap();
    let expected =
        SamplerConfig { temperature: 0.6, min_p: 0.05, repetition_penalty: 1.2, ..Default::default() };
    assert_eq!((gguf, rest), (expected, vec!["general.sampling.mirostat".to_string()]));
    assert_eq!(read(r#"{"do_sample":false,"temperature":0.6}"#).unwrap().0.temperature, 0.0);
    assert_eq!(read("{}").unwrap().0, SamplerConfig::default());
    assert!(read(r#"{"top_p":"high"}"#).unwrap_err().to_string().starts_with("top_p"));
    assert!(read(r#"{"top_k":1.5}"#).unwrap_err().to_string().starts_with("top_k"));
    assert!(read(r#"{"min_p":7}"#).unwrap_err().to_string().starts_with("min_p"));
}

#[test]
fn the_chain_is_told_in_its_order() {
    let config =
        SamplerConfig { repetition_penalty: 1.1, top_k: 40, top_p: 0.95, temperature: 0.8, ..seeded(7) };
    let told = sampler(config.clone(), 10).describe();
    let order = ["penalties", "top-k 40", "top-p 0.95", "temperature 0.8", "seed 7"];
    let at: Vec<usize> = order.iter().map(|part| told.find(part).expect(part)).collect();
    assert!(at.is_sorted(), "{told}");
    let curved = SamplerConfig { curve: Some(curve(&[(0.0, 0.0), (5.0, 20.0)]).unwrap()), ..config };
    let told = sampler(curved, 10).describe();
    assert!(told.contains("in place of top-k 40, top-p 0.95, temperature 0.8"), "{told}");
    assert_eq!(sampler(SamplerConfig { temperature: 0.0, ..seeded(1) }, 10).describe(), "greedy");
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits = logits(4001, 3, 6.0);
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let exact = |token: u32| f64::from(logits[token as usize]) - total.ln();
    let mut sampler =
        sampler(SamplerConfig { logprobs: true, temperature: 0.5, top_k: 5, ..seeded(3) }, 4001);
    for position in 0..20 {
        let choice = sampler.sample(&logits, &[], 0, position).unwrap();
        let found = f64::from(choice.logprob.unwrap());
        // Half a unit of f32 at 8 to 16 nats, and the sum's own 2⁻²¹.
        assert!((found - exact(choice.token)).abs() < 1e-6, "{found}");
    }
    let top = top_log_probabilities(&logits, 20);
    let mut order: Vec<u32> = (0..4001).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    assert!(top.iter().map(|t| t.0).eq(order[..20].iter().copied()));
    assert_eq!(top[3].1, log_probability(&logits, top[3].0));
}

#[test]
fn dry_breakers_are_the_tokens_that_hold_them() {
    let pieces = [(0, "a"), (1, "\n"), (2, " :"), (5, "x\ny"), (6, "é")];
    assert_eq!(sequence_breakers(pieces, &["\n", ":", ""]), [1, 2, 5]);
}

/// Any chain with settings in range.
fn any_config() -> impl Strategy<Value = SamplerConfig> {
    let truncations = (0_u32..50, 0.0..=1.0, 0.0..=1.0, 0.0..=1.0, 0.0..3.0, 0.0..3.0);
    let others = (0.0..=1.0, 0.0..=1.0, 0.1..2.0, -2.0..2.0, -2.0..2.0, 0.0..3.0, any::<u64>(), 0..3);
    (truncations, others).prop_map(|((k, typical, top_p, min_p, sigma, t), o)| SamplerConfig {
        top_k: k,
        typical_p: typical,
        top_p,
        min_p: if min_p > 0.5 { 0.0 } else { min_p },
        top_n_sigma: if sigma > 2.0 { 0.0 } else { sigma },
        temperature: t,
        xtc_probability: o.0,
        xtc_threshold: o.1,
        repetition_penalty: o.2,
        presence_penalty: o.3,
        frequency_penalty: o.4,
        dry_multiplier: o.5,
        seed: Some(o.6),
        hlg: (o.7 == 1).then(ToneCurve::default),
        curve: (o.7 == 2).then(|| curve(&[(0.001, 1e-8), (1.0, 3.0), (60.0, 60.0), (99.0, 70.0)]).unwrap()),
        ..Default::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the settings and however extreme the logits, a token that is in the running comes out.
    #[test]
    fn every_chain_keeps_at_least_one_token(
        config in any_config(),
        values in prop::collection::vec(
            prop_oneof![4 => -8.0_f32..8.0, 1 => Just(f32::NEG_INFINITY), 1 => -3e38_f32..3e38, 1 => Just(1.0)], 1..300),
        history in prop::collection::vec(0_u32..40, 0..60),
        position in any::<u64>(),
    ) {
        prop_assume!(values.iter().any(|&l| l > f32::NEG_INFINITY));
        let mut sampler = sampler(config, values.len());
        let left = sampler.distribution(&values, &history, 1, position, None).unwrap();
        let total: f64 = left.iter().map(|(_, p)| p).sum();
        prop_assert!(!left.is_empty() && (total - 1.0).abs() < 1e-9, "{} tokens, mass {}", left.len(), total);
        let token = sampler.sample(&values, &history, 1, position).unwrap().token;
        prop_assert!(left.iter().any(|(t, _)| *t == token));
        prop_assert!(values[token as usize] > f32::NEG_INFINITY);
    }

    /// Renaming the tokens renames the distribution and changes nothing else (but where logits are equal).
    #[test]
    fn the_order_of_tokens_does_not_matter(
        config in any_config(),
        order in Just((0..120).collect::<Vec<usize>>()).prop_shuffle(),
        history in prop::collection::vec(0_u32..20, 0..60),
        salt in any::<u64>(),
    ) {
        let values = logits(120, salt, 5.0);
        let renamed: Vec<f32> = order.iter().map(|&old| values[old]).collect();
        let mut new_name = vec![0_u32; 120];
        for (new, &old) in order.iter().enumerate() {
            new_name[old] = new as u32;
        }
        let renamed_history: Vec<u32> = history.iter().map(|&t| new_name[t as usize]).collect();
        let mut sampler = sampler(config, 120);
        let before = sampler.distribution(&values, &history, 0, 3, None).unwrap();
        let after = sampler.distribution(&renamed, &renamed_history, 0, 3, None).unwrap();
        let mut distinct: Vec<f64> = before.iter().map(|(_, p)| *p).collect();
        distinct.dedup();
        prop_assume!(distinct.len() == before.len());
        prop_assert_eq!(before.len(), after.len());
        for (b, a) in before.iter().zip(&after) {
            prop_assert_eq!(new_name[b.0 as usize], a.0);
            prop_assert!((b.1 - a.1).abs() <= 1e-9 * b.1);
        }
    }
}
