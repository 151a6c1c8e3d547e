//! The guards' decisions on recorded samples: each refuses what once misled, and lets the sound measurement pass.

use super::*;

fn settings(pairs: &[(&str, &str)]) -> Settings {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn says(guarded: Guarded, words: &[&str]) {
    let caught = guarded.expect_err("refused").to_string();
    for word in words {
        assert!(caught.contains(word), "{caught:?} does not say {word:?}");
    }
}

#[test]
fn fixed_cost_shows_when_work_is_doubled() {
    assert!((fixed_share(110.0, 210.0) - 10.0 / 110.0).abs() < 1e-12);
    amortised(1000.0, 1990.0).unwrap();
    amortised(1000.0, 2100.0).unwrap();
    says(amortised(1000.0, 1500.0), &["1.50 times as long", "50%"]);
    says(amortised(0.0, 0.0), &["100%"]);
}

#[test]
fn builds_and_preparations_inside_the_timer_are_refused() {
    nothing_built(3, 3).unwrap();
    says(nothing_built(3, 5), &["2 builds"]);
    prepared_once(1, 100).unwrap();
    says(prepared_once(100, 100), &["100 times in 100 calls"]);
}

#[test]
fn a_timer_that_waits_cannot_tell_work_apart() {
    distinguishable(100.0, 390.0, 4.0).unwrap();
    distinguishable(100.0, 101.0, 1.1).unwrap();
    says(distinguishable(100.0, 102.0, 4.0), &["4.0 times the work", "drain"]);
}

#[test]
fn contention_and_swapping_are_refused() {
    let quiet = Traffic { seconds: 1.0, others_cpus: Some(0.03), ..Traffic::default() };
    undisturbed(&quiet, &Limits::default()).unwrap();
    let busy = Traffic { others_cpus: Some(0.9), ..quiet.clone() };
    says(undisturbed(&busy, &Limits::default()), &["other processes: 0.90 CPUs"]);
    let swapping = Traffic { swapped_pages_per_s: Some(900.0), ..quiet };
    says(undisturbed(&swapping, &Limits::default()), &["swapping"]);
}

#[test]
fn inputs_must_rotate_through_more_than_the_cache() {
    rotated(80 << 20, 36 << 20).unwrap();
    says(rotated(1 << 20, 36 << 20), &["rotate"]);
    rotated(1, 0).unwrap();
}

#[test]
fn a_claim_needs_three_models_that_agree() {
    says(three_models(&[("a", -127.0)]), &["1 of the 3"]);
    says(three_models(&[("a", -127.0), ("b", 50.0), ("c", 20.0)]), &["sign"]);
    says(three_models(&[("a", 1.0), ("a", 2.0), ("a", 1.0)]), &["1 of the 3"]);
    three_models(&[("a", 1.0), ("b", 2.0), ("c", 0.5)]).unwrap();
}

#[test]
fn effects_inside_the_floor_and_single_shots_are_refused() {
    beyond_noise(40, -0.05, 0.02).unwrap();
    says(beyond_noise(40, -0.011, 0.02), &["-1.1%", "±2.0%"]);
    says(beyond_noise(1, -0.4, 0.02), &["1 pairs"]);
}

#[test]
fn no_rate_is_above_the_ceiling() {
    below_ceiling(20_000_000_000, 1_000_000_000, 20e9).unwrap();
    says(below_ceiling(4_400_000_000, 1_000_000, 20e9), &["4400.0 GB/s", "20.0 GB/s"]);
    result_checked(1.0, 1.0, 0.0).unwrap();
    says(result_checked(f64::NAN, 1.0, 0.5), &["expected 1"]);
}

#[test]
fn a_floor_is_the_ledgers() {
    by_ledger(1_000_000, 1_010_000).unwrap();
    says(by_ledger(1_500_000, 1_000_000), &["1.50 times"]);
}

#[test]
fn a_cost_that_removal_does_not_save_is_refused() {
    removal(0.25, 100.0, 80.0).unwrap();
    says(removal(0.25, 100.0, 99.5), &["25%", "0.5%"]);
}

#[test]
fn residency_needs_the_size_and_the_control() {
    assert_eq!(residency(1 << 20, 36 << 20, Some(2.0)), Residency::Cache);
    assert_eq!(residency(1 << 20, 36 << 20, Some(1.0)), Residency::Unclear);
    assert_eq!(residency(1 << 20, 36 << 20, None), Residency::Unclear);
    assert_eq!(residency(1 << 30, 36 << 20, Some(1.0)), Residency::Memory);
    assert_eq!(residency(1 << 30, 36 << 20, Some(1.5)), Residency::Unclear);
    from_memory(Residency::Memory, 1 << 30, 36 << 20).unwrap();
    says(from_memory(Residency::Cache, 1 << 20, 36 << 20), &["1.0 MB", "37.7 MB"]);
}

#[test]
fn what_was_asked_must_have_been_applied() {
    let asked = settings(&[("kernels", "avx512"), ("threads", "2")]);
    applied(&asked, &settings(&[("kernels", "avx512"), ("threads", "2"), ("context", "64")])).unwrap();
    let fell_back = settings(&[("kernels", "avx2"), ("threads", "2")]);
    says(applied(&asked, &fell_back), &["kernels: asked avx512, applied avx2"]);
    says(applied(&asked, &settings(&[("threads", "2")])), &["not reported"]);
    context_arrived(8192, 8192).unwrap();
    says(context_arrived(8192, 31), &["8192", "31"]);
}

#[test]
fn tiny_durations_and_lost_units_are_refused() {
    long_enough(2_000_000, 30).unwrap();
    says(long_enough(40, 30), &["40 ns"]);
    says(long_enough(1_000_000, 4_000_000), &["4000000000 ns"]);
    plausible_peak(2e10, 1.9e10).unwrap();
    says(plausible_peak(0.0, 1.9e10), &["unit"]);
    says(plausible_peak(20.0, 1.9e10), &["unit"]);
    says(plausible_peak(f64::NAN, 1.0), &["unit"]);
}

#[test]
fn tokens_come_from_usage() {
    tokens_by_usage(64, Some(64)).unwrap();
    says(tokens_by_usage(14, Some(64)), &["14", "64"]);
    says(tokens_by_usage(14, None), &["no usage"]);
    prompt_computed(512, 0).unwrap();
    says(prompt_computed(512, 448), &["448 of 512"]);
}

#[test]
fn equal_tokens_with_other_logits_are_not_the_same_answer() {
    same_answer(&[1, 2], &[1, 2], Some("x"), Some("x")).unwrap();
    same_answer(&[1, 2], &[1, 2], None, Some("x")).unwrap();
    says(same_answer(&[1, 2], &[1, 3], None, None), &["place 1"]);
    says(same_answer(&[1, 2], &[1, 2], Some("x"), Some("y")), &["KL"]);
}

#[test]
fn an_oracle_is_someone_elses() {
    independent_oracle(Some("numpy 2.1"), "plumb").unwrap();
    says(independent_oracle(Some("plumb"), "plumb"), &["agrees with itself"]);
    says(independent_oracle(None, "plumb"), &["nothing says"]);
}

#[test]
fn a_detector_must_find_what_was_injected() {
    sensitive(0.05, Interval { low: 0.94, high: 0.965 }).unwrap();
    says(sensitive(0.05, Interval { low: 0.99, high: 1.01 }), &["5%"]);
    says(sensitive(0.05, Interval { low: 0.50, high: 0.52 }), &["0.500"]);
    says(sensitive(0.05, Interval { low: f64::NAN, high: f64::NAN }), &["5%"]);
}

#[test]
fn arms_must_alternate() {
    interleaved(&[0, 1, 1, 0, 0, 1, 1, 0]).unwrap();
    says(interleaved(&[0, 0, 0, 1, 1, 1]), &["3 times in a row"]);
    says(interleaved(&[0, 1, 0, 1, 0, 1]), &["always ran first"]);
}

#[test]
fn parity_of_two_bad_numbers_is_refused() {
    absolute(90.0, 100.0).unwrap();
    says(absolute(9.0, 100.0), &["9.0", "100.0"]);
    absolute(1.0, f64::NAN).unwrap();
}

#[test]
fn a_first_call_is_seen_apart() {
    assert_eq!(first_call_ratio(500.0, &[100.0, 90.0, 110.0]), 5.0);
}
