#!/usr/bin/env python3
"""What plumb holds in memory, what two processes share, and how long a warm start takes.

usage: memory.py [--models DIR] [--plumb FILE] [--only NAME,…] [--starts 9] [--out NAME]

Resident: a prompt that fills the context but for 16 tokens, at each context; against the mapped file, the KV formula, the
tokenizer and 64 MiB. Sharing: the proportional set size (Pss) of two processes on one model beside that of one. Warm start: from
exec to the first byte of output after a prompt of 16 tokens, packed and with a warm page cache, medians.
Writes benches/results/NAME.json with every sample, and prints a table.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
MIB = 1 << 20


def answer(plumb, model, prompt, *more):
    command = [plumb, "run", model, "--raw", "--file", prompt, "--ignore-eos", "--temp", "0", "--json", *more]
    out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
    return {k: v for k, v in json.loads(out.splitlines()[-1]).items() if k not in ("text", "token_ids")}


def first_byte(plumb, model, prompt):
    """Seconds from exec to the first byte."""
    command = [plumb, "run", model, "--raw", "--file", prompt, "--ignore-eos", "--temp", "0", "--max-tokens", "4"]
    start = time.perf_counter()
    p = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdout.read(1)
    took = time.perf_counter() - start
    p.communicate()
    return took


def pss(pid):
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def shared(plumb, model, prompt, count):
    """Pss of each of `count` processes that answer at once, taken when all have loaded."""
    command = [plumb, "run", model, "--raw", "--file", prompt, "--ignore-eos", "--temp", "0", "--max-tokens", "3000",
               "--ctx", "4096", "--threads", "1"]
    ps = [subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(count)]
    for p in ps:
        p.stdout.read(1)
    time.sleep(0.5)
    out = [pss(p.pid) for p in ps]
    for p in ps:
        p.kill()
        p.communicate()
    return out


def main():
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "plumb"
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--models", type=Path, default=Path(os.environ.get("PLUMB_MODELS", cache / "models")))
    ap.add_argument("--plumb", type=Path, default=HERE.parent / "target/release/plumb")
    ap.add_argument("--only", default=",".join(NAMES))
    ap.add_argument("--contexts", default="512,4096,8192")
    ap.add_argument("--starts", type=int, default=9)
    ap.add_argument("--out", default="memory")
    a = ap.parse_args()
    text = (HERE.parent / "golden/accuracy/text.txt").read_text()
    results = []
    for name in a.only.split(","):
        model = a.models / f"{name}.gguf"
        with tempfile.TemporaryDirectory() as tmp:
            short, long = Path(tmp) / "short", Path(tmp) / "long"
            short.write_text("The lighthouse keeper wrote down the weather twice a day for years and")
            answer(a.plumb, model, short, "--max-tokens", "1")  # packs, and warms the page cache
            resident = []
            for context in map(int, a.contexts.split(",")):
                # About 3 characters a token; cut so that it fits.
                size = int(context * 2.2)
                long.write_text((text * (size // len(text) + 1))[:size])
                row = answer(a.plumb, model, long, "--max-tokens", "16", "--ctx", context)
                resident.append({"context": context, **row})
            starts = [first_byte(a.plumb, model, short) for _ in range(a.starts)]
            results.append({"model": name, "resident": resident, "warm_start_s": starts,
                            "pss_one": shared(a.plumb, model, short, 1), "pss_two": shared(a.plumb, model, short, 2)})
    out = HERE / "results" / f"{a.out}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "results": results}, indent=1) + "\n")
    print("| model | context | tokens | resident MB | allowed MB (file + KV + tokenizer + 64 MiB) |")
    print("|---|---:|---:|---:|---:|")
    for r in results:
        for row in r["resident"]:
            allowed = row["weight_file_bytes"] + row["kv_formula_bytes"] + row["tokenizer_bytes"] + 64 * MIB
            print(f"| {r['model']} | {row['context']} | {row['prompt_tokens'] + row['generated_tokens']} | "
                  f"{row['resident_bytes'] / 1e6:.1f} | {allowed / 1e6:.1f} |")
    print("\n| model | warm start, median of", a.starts, "| Pss of one | of two |\n|---|---:|---:|---:|")
    for r in results:
        mb = lambda v: " + ".join(f"{x / 1e6:.0f}" for x in v)
        print(f"| {r['model']} | {statistics.median(r['warm_start_s']) * 1e3:.0f} ms | {mb(r['pss_one'])} MB | {mb(r['pss_two'])} MB |")


if __name__ == "__main__":
    main()
