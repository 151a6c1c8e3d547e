#!/usr/bin/env python3
"""What each format of the KV cache costs in quality: `plumb quality` on each model, and the table of what it said.

usage: kv.py [--plumb FILE] [--models NAME,…] [--table-only]

Every arm is compared with f16 over the text that comes with plumb, position by position (teacher-forced), with a window of 128 and
the sinks that the format has; the control stores every half one unit in the last place off. Rotation is tried on and off.
Writes each model's whole report into benches/results/kv-quality.json, beside those of models measured before, and from that file
benches/results/kv.md, with the steps at long contexts of long-contexts.json. The figures of quality do not depend on the machine or
its load.
"""
import argparse
import json
import statistics
import subprocess
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
FORMATS = "q8,q6,q5,q4,q3,q2,q8/q4"
AGAINST = ["kv=q4,kv-rotate=none", "kv=q3,kv-rotate=none", "kv=q2,kv-rotate=none", "kv=q4,kv-rotate=both", "kv=q2,kv-rotate=both",
           "kv=q2/f16,kv-rotate=none", "kv=q2/f16"]


def measure(plumb, model):
    command = [plumb, "quality", model, "--kv", FORMATS, "--json"]
    for arm in AGAINST:
        command += ["--against", arm]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def table(reports):
    lines = []
    for report in reports:
        texts = report["texts"]
        names = " and ".join(t["text"] for t in texts)
        positions = " and ".join(str(t["arms"][0]["perplexity"]["positions"]) for t in texts)
        lines += [f"### {report['model']}", "", f"Texts: {names}; {positions} positions.", "",
                  "| cache |" + "".join(f" {t['text']}: mean KL | of the control's | p95 | same best token | perplexity |" for t in texts),
                  "|---|" + "---:|" * (5 * len(texts))]
        for i, arm in enumerate(texts[0]["arms"]):
            name = arm["arm"].removeprefix("kv=").replace(",kv-rotate=none", ", not rotated")
            name = {"as it runs": "f16"}.get(name, name.replace(",kv-rotate=both", ", values rotated too"))
            cells = []
            for text in texts:
                arm, control = text["arms"][i], next(a for a in text["arms"] if a["arm"] == "control")
                d, of = arm["divergence"], control["divergence"]["mean"]
                cells += [f"{d['mean']:.4f}", f"{d['mean'] / of:.1f}×", f"{d['p95']:.4f}", f"{100 * d['top1']:.1f}%"] if d else [""] * 4
                cells.append(f"{arm['perplexity']['value']:.2f}")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def steps_table(doc):
    """Steps of one token at long contexts, of f16 and of codes."""
    lines = ["## Steps at long contexts", "", f"Measured on {doc['machine']}, with `{doc['commands']['steps']}`.", "",
             "| model | context | cache | read of it, MB | attention, ms | of f16's | step, ms | of the floor |",
             "|---|---:|---|---:|---:|---:|---:|---:|"]
    f16 = {(s["model"], s["context"]): s["attention_ms"] for s in doc["steps"] if s["kv"] == "f16"}
    for s in doc["steps"]:
        ms = statistics.median(s["samples_ms"])
        lines.append(f"| {s['model']} | {s['context']} | {s['kv']} | {s['kv_mb']:.0f} | {s['attention_ms']:.2f} | "
                     f"{s['attention_ms'] / f16[s['model'], s['context']]:.2f}× | {ms:.1f} | {100 * s['floor_ms'] / ms:.0f}% |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description="What each format of the KV cache costs in quality.")
    p.add_argument("--plumb", default="target/release/plumb")
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--table-only", action="store_true")
    a = p.parse_args()
    kept = RESULTS / "kv-quality.json"
    reports = {r["asked"]: r for r in json.loads(kept.read_text())["results"]} if kept.exists() else {}
    for model in [] if a.table_only else a.models.split(","):
        reports[model] = {"asked": model, **measure(a.plumb, model)}
        ordered = sorted(reports.values(), key=lambda r: MODELS.index(r["asked"]) if r["asked"] in MODELS else len(MODELS))
        kept.write_text(json.dumps({"results": ordered}, indent=1) + "\n")
    text = "## Quality\n\n" + table(json.loads(kept.read_text())["results"])
    text += "\n" + steps_table(json.loads((RESULTS / "long-contexts.json").read_text()))
    (RESULTS / "kv.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
