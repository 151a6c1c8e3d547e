#!/usr/bin/env python3
"""plumb and llama.cpp on the same models, alternating, on an idle machine.

usage: peer.py [--models DIR] [--peer DIR] [--plumb FILE] [--only NAME,…] [--rounds 5] [--threads 2] [--out NAME] [--peer-only] [--prompt-only]

Each round times, one after the other: read bandwidth at the model's working set (4 KiB and 2 MiB pages), the peer's
prompt of 512 tokens, plumb (prompt of 512 tokens and 128 generated behind it), the peer's 128 tokens at depth 512. The peer
runs at the better of `-fa 0` and `-fa 1`, chosen apart for the two tests by one run of each beforehand, with its own warm-up; each of
plumb's figures comes from one whole process, nothing warmed but the page cache. Writes benches/results/NAME.json (every
sample, the machine, the commands) and NAME.md (medians, ratios, share of the floor), and prints the table.

The floor is the bytes a generated token must stream (weights as plumb reports them, and the KV of the mean position) over
the read bandwidth of the same round's probe with the page size that plumb's mapping got.
Needs a C compiler; llama-bench and llama-tokenize of a built llama.cpp; the models in GGUF.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMPT, GENERATED = 512, 128
# Bytes of KV per position in float16: layers * kv heads * 2 * head size * 2. Within 640 positions gemma3's window of 512
# saves at most a few per cent of its KV; it is counted as if full.
KV_BYTES = {"smollm2-135m": 30 * 3 * 2 * 64 * 2, "gemma3-270m": 18 * 1 * 2 * 256 * 2,
            "qwen2.5-coder-0.5b": 24 * 2 * 2 * 64 * 2, "qwen2.5-coder-1.5b": 28 * 2 * 2 * 128 * 2}
# Weight bytes of one generated token, rounded: for --peer-only, where plumb is not there to say.
WEIGHT_BYTES = {"smollm2-135m": 97e6, "gemma3-270m": 247e6, "qwen2.5-coder-0.5b": 392e6, "qwen2.5-coder-1.5b": 980e6}
# What the project set itself: ratios to the peer (generation, prompt) and the share of the floor.
GOALS = {"smollm2-135m": (3.5, 7.0, 0.75), "gemma3-270m": (2.1, 4.0, 0.75),
         "qwen2.5-coder-0.5b": (2.0, 4.0, 0.85), "qwen2.5-coder-1.5b": (1.6, 2.5, 0.85)}


def run(command):
    p = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {p.returncode}\n{p.stderr[-2000:]}")
    return p.stdout


def read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def machine():
    cpu = next((l.split(":")[1].strip() for l in (read("/proc/cpuinfo") or "").splitlines() if l.startswith("model name")), None)
    flags = next((l.split(":")[1].split() for l in (read("/proc/cpuinfo") or "").splitlines() if l.startswith("flags")), [])
    memory = next((l.split()[1] for l in (read("/proc/meminfo") or "").splitlines() if l.startswith("MemTotal")), None)
    return {"cpu": cpu, "cpus_allowed": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "isa": [f for f in flags if f.startswith(("avx", "amx", "fma"))], "hypervisor": "hypervisor" in flags,
            "memory_kib": int(memory) if memory else None,
            "last_cache": read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
            "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"), "load": os.getloadavg()}


def busy_seconds():
    """CPU seconds that others used: the sum over CPUs of everything but idle and waiting."""
    f = read("/proc/stat").splitlines()[0].split()[1:9]
    return (sum(map(int, f)) - int(f[3]) - int(f[4])) / os.sysconf("SC_CLK_TCK")


def check_idle():
    before = busy_seconds()
    time.sleep(2)
    used = (busy_seconds() - before) / 2
    if used > 0.1:
        print(f"warning: something else uses {used:.2f} CPUs; these figures will not be worth much", file=sys.stderr)
    return used


def prompt_text(peer, model, tokens):
    """A piece of the committed text that is exactly `tokens` tokens of this model by the peer's tokenizer."""
    text = (HERE.parent / "golden/accuracy/text.txt").read_text()
    def count(n):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write(text[:n])
            f.flush()
            ids = run([peer / "llama-tokenize", "-m", model, "-f", f.name, "--ids", "--log-disable"])
        return len(json.loads(ids[ids.index("["):]))
    low, high = 1, len(text)
    while low < high:
        mid = (low + high) // 2
        low, high = (low, mid) if count(mid) >= tokens else (mid + 1, high)
    for n in range(low, low + 40):
        if count(n) == tokens:
            return text[:n]
    return text[:low]


def bench(peer, model, fa, threads, args):
    out = run([peer / "llama-bench", "-m", model, "-t", threads, "-fa", fa, "-r", 1, "-o", "json", *args])
    (row,) = [r for r in json.loads(out) if r["n_gen"] or r["n_prompt"]]
    return row["avg_ts"], row["build_commit"] or row.get("build_number")


def plumb_once(plumb, model, prompt, threads):
    out = run([plumb, "run", model, "--raw", "--file", prompt, "--max-tokens", GENERATED, "--ignore-eos", "--temp", 0,
               "--threads", threads, "--ctx", PROMPT + GENERATED, "--json"])
    return json.loads(out.strip().splitlines()[-1])


def one_model(name, a, bandwidth):
    model, peer = a.models / f"{name}.gguf", a.peer
    prompt_args, gen_args = ["-p", PROMPT, "-n", 0], ["-p", 0, "-n", GENERATED, "-d", PROMPT]
    timed = [prompt_args] if a.prompt_only else [prompt_args, gen_args]
    first = {fa: tuple(bench(peer, model, fa, a.threads, args)[0] for args in timed) for fa in (0, 1)}
    best = [max((0, 1), key=lambda fa: first[fa][i]) for i in range(len(timed))]
    fa_prompt, fa_gen = best[0], best[-1]
    samples = {k: [] for k in ("peer_prompt", "peer_generation", "plumb_prompt", "plumb_generation", "bandwidth_4k",
                               "bandwidth_2m", "plumb")}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(prompt_text(peer, model, PROMPT))
        f.flush()
        if a.peer_only:
            weights = int(WEIGHT_BYTES[name])
        else:  # packs on first use, and fills the page cache
            weights = plumb_once(a.plumb, model, f.name, a.threads)["weight_bytes_per_token"]
        stream = weights + KV_BYTES[name] * (PROMPT + GENERATED // 2)
        for i in range(a.rounds):
            for page in () if a.prompt_only else ("4k", "2m"):
                samples[f"bandwidth_{page}"].append(json.loads(run([bandwidth, stream, a.threads, page, 1.0]))["median_gb_per_s"])
            samples["peer_prompt"].append(bench(peer, model, fa_prompt, a.threads, prompt_args)[0])
            ours = None if a.peer_only else plumb_once(a.plumb, model, f.name, a.threads)
            if a.prompt_only:
                samples["plumb_prompt"].append(ours["prompt_tokens_per_s"])
                print(f"{name} round {i + 1}: prompt {ours['prompt_tokens_per_s']:.1f} against {samples['peer_prompt'][-1]:.1f}",
                      file=sys.stderr)
                continue
            rate, build = bench(peer, model, fa_gen, a.threads, gen_args)
            samples["peer_generation"].append(rate)
            if not ours:
                print(f"{name} round {i + 1}: peer prompt {samples['peer_prompt'][-1]:.1f}, generation {rate:.1f}", file=sys.stderr)
                continue
            samples["plumb_prompt"].append(ours["prompt_tokens_per_s"])
            samples["plumb_generation"].append(ours["generated_tokens_per_s"])
            samples["plumb"].append({k: v for k, v in ours.items() if k not in ("text", "token_ids")})
            print(f"{name} round {i + 1}: prompt {ours['prompt_tokens_per_s']:.1f} against {samples['peer_prompt'][-1]:.1f}, "
                  f"generation {ours['generated_tokens_per_s']:.1f} against {rate:.1f}", file=sys.stderr)
    samples = {k: v for k, v in samples.items() if v}
    if a.prompt_only:
        return {"model": name, "peer_fa": {"prompt": fa_prompt}, "samples": samples,
                "median": {k: statistics.median(v) for k, v in samples.items()}}
    last = samples["plumb"][-1] if "plumb" in samples else {"prompt_tokens": PROMPT, "generated_tokens": GENERATED}
    page = "2m" if last.get("huge_page_bytes", 0) >= weights * 0.9 else "4k"
    return {"model": name, "peer_build": build, "peer_fa": {"prompt": fa_prompt, "generation": fa_gen},
            "peer_first": {str(k): v for k, v in first.items()}, "prompt_tokens": last["prompt_tokens"],
            "generated_tokens": last["generated_tokens"], "weight_bytes_per_token": weights, "stream_bytes": stream,
            "page": page, "samples": samples, "median": {k: statistics.median(v) for k, v in samples.items() if k != "plumb"}}


def table(results):
    if "peer_generation" not in results[0]["samples"]:
        rows = (f"| {r['model']} | {r['median']['peer_prompt']:.1f} | {r['median']['plumb_prompt']:.1f} | "
                f"**{r['median']['plumb_prompt'] / r['median']['peer_prompt']:.2f}×** | {GOALS[r['model']][1]}× |" for r in results)
        return "\n".join([f"| model, prompt of {PROMPT} | llama.cpp tokens/s | plumb tokens/s | ratio | goal |",
                          "|---|---:|---:|---:|---:|", *rows]) + "\n"
    if "plumb" not in results[0]["samples"]:
        rows = (f"| {r['model']} | {r['median']['peer_prompt']:.1f} | {r['median']['peer_generation']:.1f} | "
                f"{r['median']['bandwidth_4k']:.1f} / {r['median']['bandwidth_2m']:.1f} |" for r in results)
        return "\n".join(["| model | prompt | generation | read GB/s, 4 KiB / 2 MiB pages |", "|---|---:|---:|---:|", *rows]) + "\n"
    out = ["| model | test | llama.cpp tokens/s | plumb tokens/s | ratio | goal | floor tokens/s (pages) | of floor | goal |",
           "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for r in results:
        m, (g_gen, g_prompt, g_floor) = r["median"], GOALS[r["model"]]
        floor = m[f"bandwidth_{r['page']}"] * 1e9 / r["stream_bytes"]
        out.append(f"| {r['model']} | generation at {PROMPT} | {m['peer_generation']:.1f} | {m['plumb_generation']:.1f} | "
                   f"**{m['plumb_generation'] / m['peer_generation']:.2f}×** | {g_gen}× | {floor:.0f} ({r['page']}) | "
                   f"{m['plumb_generation'] / floor:.0%} | {g_floor:.0%} |")
        out.append(f"| | prompt of {PROMPT} | {m['peer_prompt']:.1f} | {m['plumb_prompt']:.1f} | "
                   f"**{m['plumb_prompt'] / m['peer_prompt']:.2f}×** | {g_prompt}× | | | |")
    return "\n".join(out) + "\n"


def main():
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "plumb"
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--models", type=Path, default=Path(os.environ.get("PLUMB_MODELS", cache / "models")))
    ap.add_argument("--peer", type=Path, default=Path(os.environ.get("PLUMB_PEERS", cache / "peers")) / "llama.cpp/build/bin")
    ap.add_argument("--plumb", type=Path, default=HERE.parent / "target/release/plumb")
    ap.add_argument("--only", default=",".join(KV_BYTES), help="models, separated by commas")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--out", default="peer", help="name of the files in benches/results")
    ap.add_argument("--prompt-only", action="store_true", help="the prompts alone")
    ap.add_argument("--peer-only", action="store_true", help="the peer and the bandwidth, without plumb")
    a = ap.parse_args()
    others = check_idle()
    with tempfile.TemporaryDirectory() as tmp:
        bandwidth = Path(tmp) / "bandwidth"
        run(["cc", "-O3", "-march=native", "-pthread", HERE / "bandwidth.c", "-o", bandwidth])
        results = [one_model(name, a, bandwidth) for name in a.only.split(",")]
    doc = {"machine": machine(), "others_used_cpus": others, "date": time.strftime("%Y-%m-%d"), "rounds": a.rounds,
           "threads": a.threads, "plumb": None if a.peer_only else run([a.plumb, "--version"]).strip(), "results": results}
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{a.out}.json").write_text(json.dumps(doc, indent=1) + "\n")
    text = table(results)
    (folder / f"{a.out}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
