//! `plumb run`: what a person and a program get from it.

mod common;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use common::*;

/// `plumb run` of the default model, greedy.
fn smollm(prompt: &str) -> Command {
    let mut command = plumb(&kept_cache());
    command.args(["run", "smollm2-135m", prompt, "--temp", "0"]);
    command
}

#[test]
fn the_default_model_answers() {
    let output = ok(smollm("What color is the sky?").args(["--max-tokens", "30"]));
    assert!(stdout(&output).contains("blue"), "{}", stdout(&output));
}

#[test]
fn a_lone_argument_with_spaces_is_a_prompt_for_the_default_model() {
    let args = ["run", "What color is the sky?", "--temp", "0", "--max-tokens", "30"];
    let output = ok(plumb(&kept_cache()).args(args));
    assert!(stdout(&output).contains("blue"), "{}", stdout(&output));
}

#[test]
fn json_has_every_field_and_no_other() {
    let report = json(smollm("Say hello.").args(["--max-tokens", "5", "--fingerprint"]));
    let fields: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "text",
        "token_ids",
        "prompt_tokens",
        "generated_tokens",
        "load_s",
        "first_token_s",
        "prompt_tokens_per_s",
        "generated_tokens_per_s",
        "weight_bytes_per_token",
        "resident_bytes",
        "huge_page_bytes",
        "weight_file_bytes",
        "tokenizer_bytes",
        "kv",
        "kv_formula_bytes",
        "kv_used_bytes",
        "kv_pool_bytes",
        "seed",
        "fingerprint",
        "finish_reason",
    ];
    let mut found = fields.clone();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(report["generated_tokens"], report["token_ids"].as_array().unwrap().len());
    assert_eq!(report["finish_reason"], "length");
    // The file's matrices are 97 MB, and each is read once.
    let weights = report["weight_bytes_per_token"].as_u64().unwrap();
    assert!((90_000_000..100_000_000).contains(&weights), "{weights}");
    let without = json(smollm("Say hello.").args(["--max-tokens", "5"]));
    assert!(without.get("fingerprint").is_none(), "it was not asked for");
}

#[test]
fn the_streamed_text_is_the_reported_text() {
    let streamed = ok(smollm("Name three colours.").args(["--max-tokens", "40"]));
    let report = json(smollm("Name three colours.").args(["--max-tokens", "40"]));
    assert_eq!(stdout(&streamed).trim_end(), report["text"].as_str().unwrap().trim_end());
}

#[test]
fn a_prompt_comes_from_the_argument_a_file_or_a_pipe() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let expected = json(&mut complete(cache.path(), &model, "one two"));
    let tokenize = ["tokenize", model.to_str().unwrap(), "one two", "--bos"];
    let ids = json(plumb(cache.path()).args(tokenize))["ids"].clone();
    assert_eq!(expected["prompt_tokens"], ids.as_array().unwrap().len());

    let file = cache.path().join("prompt.txt");
    std::fs::write(&file, "one two").unwrap();
    let flags = ["--raw", "--seed", "1", "--max-tokens", "24", "--ignore-eos"];
    let from_file = json(plumb(cache.path()).arg("run").arg(&model).arg("--file").arg(&file).args(flags));
    assert_eq!(from_file["token_ids"], expected["token_ids"]);

    let mut child = plumb(cache.path())
        .arg("run")
        .arg(&model)
        .args(flags)
        .arg("--json")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one two").unwrap();
    let output = child.wait_with_output().unwrap();
    let piped: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(piped["token_ids"], expected["token_ids"]);
}

#[test]
fn a_seed_decides_the_text() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let ids = |seed: &str| {
        let args = ["abc", "--raw", "--max-tokens", "24", "--ignore-eos", "--seed", seed];
        json(plumb(cache.path()).arg("run").arg(&model).args(args))["token_ids"].clone()
    };
    assert_eq!(ids("7"), ids("7"));
    assert_ne!(ids("7"), ids("8"));

    let unseeded =
        json(plumb(cache.path()).arg("run").arg(&model).args(["abc", "--raw", "-n", "24", "--ignore-eos"]));
    let seed = unseeded["seed"].to_string();
    assert_eq!(ids(&seed), unseeded["token_ids"], "the reported seed gives the same answer again");
}

#[test]
fn an_answer_ends_before_a_stop_text() {
    let whole = json(smollm("Name three colours.").args(["--max-tokens", "40"]));
    let whole = whole["text"].as_str().unwrap();
    // A word from the middle that does not come earlier.
    let word =
        whole.split_whitespace().skip(5).find(|w| w.len() > 3 && whole.matches(w).count() == 1).unwrap();
    let report =
        json(smollm("Name three colours.").args(["--max-tokens", "40", "--stop", "§", "--stop", word]));
    assert_eq!(report["finish_reason"], "stop");
    assert_eq!(report["text"].as_str().unwrap(), &whole[..whole.find(word).unwrap()]);
}

#[test]
fn a_full_context_ends_the_answer_with_its_reason() {
    let cache = tempfile::tempdir().unwrap();
    let args = ["abc", "--raw", "--ignore-eos", "--max-tokens", "1000", "--ctx", "64", "--seed", "1"];
    let model = golden("llama-64.gguf");
    let report = json(plumb(cache.path()).arg("run").arg(&model).args(args));
    assert_eq!(report["finish_reason"], "context");
    let positions = report["prompt_tokens"].as_u64().unwrap() + report["generated_tokens"].as_u64().unwrap();
    assert_eq!(positions, 65, "64 positions hold tokens, and the last one's logits gave one more");

    let output = ok(plumb(cache.path()).arg("run").arg(&model).args(args));
    assert!(stderr(&output).contains("context of 64 tokens is full"), "{}", stderr(&output));
}

#[test]
fn a_model_without_a_template_completes_text_and_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let args = ["abc", "--seed", "1", "--max-tokens", "24", "--ignore-eos"];
    let report = json(plumb(cache.path()).arg("run").arg(&model).args(args));
    assert_eq!(report["token_ids"], json(&mut complete(cache.path(), &model, "abc"))["token_ids"]);
    let output = ok(plumb(cache.path()).arg("run").arg(&model).args(args));
    assert!(stderr(&output).contains("no chat template"), "{}", stderr(&output));
}

#[test]
fn a_given_template_is_used_and_its_refusal_reported() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let template = cache.path().join("t.jinja");
    std::fs::write(&template, "{{ messages[0].content }}+{{ messages[1].content }}").unwrap();
    let args = ["b", "--system", "a", "--seed", "1", "--max-tokens", "24", "--ignore-eos", "--template"];
    let report = json(plumb(cache.path()).arg("run").arg(&model).args(args).arg(&template));
    assert_eq!(report["token_ids"], json(&mut complete(cache.path(), &model, "a+b"))["token_ids"]);

    std::fs::write(&template, "{{ raise_exception('no system here') }}").unwrap();
    let said = fails(plumb(cache.path()).arg("run").arg(&model).args(args).arg(&template), 1);
    assert!(said.contains("no system here"), "{said}");
}

#[test]
fn the_bits_do_not_depend_on_instruction_set_or_threads() {
    let cache = tempfile::tempdir().unwrap();
    for name in ["llama-64.gguf", "gemma3-256.gguf", "qwen3-k.gguf", "llama-legacy.gguf"] {
        let run = |isa: &str, threads: &str| {
            let mut command = complete(cache.path(), &golden(name), "The same bits, whoever computes them.");
            command.args(["--json", "--fingerprint=all", "--threads", threads]).env("PLUMB_ISA", isa);
            let output = command.output().unwrap();
            if stderr(&output).contains("lacks the instructions") {
                return None;
            }
            assert!(output.status.success(), "{isa}: {}", stderr(&output));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            Some(report["fingerprint"].as_str().unwrap().to_owned())
        };
        let expected = run("portable", "1").unwrap();
        assert_eq!(expected.len(), 32);
        for isa in ["portable", "avx2", "avx512-bw", "avx512-vnni"] {
            for threads in ["1", "2", "3"] {
                if let Some(found) = run(isa, threads) {
                    assert_eq!(found, expected, "{name}, {isa}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn the_real_model_gives_the_same_bits_with_any_threads() {
    let run = |threads: &str| {
        let args = ["--max-tokens", "8", "--fingerprint=all", "--threads", threads];
        json(smollm("Why is the sky blue?").args(args))["fingerprint"].clone()
    };
    let one = run("1");
    assert_eq!(run("2"), one);
    assert_eq!(run("3"), one);
}

#[test]
fn interrupting_ends_the_answer_and_keeps_what_was_said() {
    let mut child = smollm("Tell me a very long story.")
        .args(["--ignore-eos", "--max-tokens", "4000", "--stats"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    ok(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("ended by: interrupted"), "{}", stderr(&output));
}

/// A conversation needs a terminal; Python's standard library has one.
#[test]
fn a_chat_remembers_what_was_said() {
    let script = r#"
import os, pty, sys, time, select
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
def wait(text):
    global seen
    end = time.time() + 120
    while text not in seen:
        if time.time() > end: sys.exit("no %r in %r" % (text, seen))
        if select.select([fd], [], [], 1)[0]:
            try: seen += os.read(fd, 4096)
            except OSError: sys.exit("ended early: %r" % seen)
    seen = seen[seen.index(text) + len(text):]
wait(b"/help tells more")
wait(b"> ")
os.write(fd, b"What color is the sky?\r")
wait(b"blue")
wait(b"> ")
os.write(fd, b"And the grass?\r")
wait(b"> ")
os.write(fd, b"/stats\r")
wait(b"kept from before")
wait(b"> ")
os.write(fd, b"/save " + os.environb[b"KEPT"] + b"\r")
wait(b" tokens, ")
wait(b"> ")
os.write(fd, b"/reset\r")
wait(b"new conversation")
wait(b"> ")
os.write(fd, b"/load " + os.environb[b"KEPT"] + b"\r")
wait(b" tokens from ")
wait(b"> ")
os.write(fd, b"And the sea?\r")
wait(b"> ")
os.write(fd, b"/stats\r")
wait(b"kept from before")
wait(b"> ")
os.write(fd, b"/load /nowhere/at/all\r")
wait(b"nowhere")
wait(b"> ")
os.write(fd, b"\x04")
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"#;
    let kept = tempfile::tempdir().unwrap();
    let chat = ["run", "smollm2-135m", "--temp", "0", "--max-tokens", "20"];
    let mut command = Command::new("python3");
    command.args(["-c", script, env!("CARGO_BIN_EXE_plumb")]).args(chat);
    let like = plumb(&kept_cache());
    command
        .envs(like.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .env("KEPT", kept.path().join("kept"))
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    ok(&mut command);
}

#[test]
fn a_packed_cache_answers_in_less_memory_and_says_so() {
    // Long enough that most of it has left the window.
    let prompt = "The ferry left at six, before the fog had decided whether to stay. ".repeat(60);
    let run = |kv: &str| {
        let args = ["--raw", "--max-tokens", "8", "--ctx", "2048", "--fingerprint", "--kv", kv];
        json(smollm(&prompt).args(args))
    };
    let (halves, q4, again) = (run("f16"), run("q4"), run("q4"));
    assert_eq!((halves["kv"].as_str(), q4["kv"].as_str()), (Some("f16"), Some("q4-w128-s4-rk")));
    assert_eq!(q4["fingerprint"], again["fingerprint"]);
    assert_ne!(q4["fingerprint"], halves["fingerprint"]);
    let bytes = |report: &serde_json::Value, name: &str| report[name].as_f64().unwrap();
    let ratio = bytes(&q4, "kv_formula_bytes") / bytes(&halves, "kv_formula_bytes");
    assert!((0.31..0.6).contains(&ratio), "{ratio}");
    for report in [&halves, &q4] {
        let (used, formula) = (bytes(report, "kv_used_bytes"), bytes(report, "kv_formula_bytes"));
        assert!(used >= formula && used < 1.6 * formula, "{used} for {formula}");
    }
    assert!(bytes(&q4, "resident_bytes") < bytes(&halves, "resident_bytes"));
}

#[test]
fn a_cache_that_cannot_be_is_refused_with_the_numbers() {
    for (args, says) in [
        (&["--kv", "q7"][..], "f16, q8, q6, q5, q4, q3, q2"),
        (&["--kv", "q4", "--ctx", "100", "--kv-window", "101"], "at most the context, 100, found 101"),
        (&["--kv", "q4", "--kv-sinks", "33"], "at most 32, found 33"),
        (&["--kv-window", "64"], "--kv-window needs a packed format"),
    ] {
        let found = fails(smollm("Hello").args(args), 2);
        assert!(found.contains(says), "{found}");
    }
}
