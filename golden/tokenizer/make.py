#!/usr/bin/env python3
"""Token ids that are not ours, for engine/tests/tokenizer.rs.

    make.py MODELS LLAMA_CPP_SOURCE LLAMA_CPP_BUILD

MODELS holds the four development models; the llama.cpp folders are those that its Python package's source builds.
Writes, beside this script: corpus.json, MODEL.json (ids by llama.cpp of the real vocabularies), crossing.gguf and
spaced.gguf (small vocabularies trained here on the corpus), pre.json (ids of crossing.gguf under every pre-tokenizer
name), spaced.json, small.json with json.json (a tokenizer.json and its ids by the tokenizers package), and
versions.json. See README.md.
"""
import importlib.metadata
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from corpus import texts

HERE = pathlib.Path(__file__).parent
MODELS = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]


def build(source, lib):
    exe = pathlib.Path(tempfile.mkdtemp()) / "llama_ids"
    subprocess.run(
        ["cc", "-O1", "-o", exe, HERE / "llama_ids.c", f"-I{source}/include", f"-I{source}/ggml/include",
         f"-L{lib}/bin", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{lib}/bin"], check=True)
    return exe


def llama_ids(exe, model, strings, pre=None):
    records = b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))
    out = subprocess.run([exe, model] + ([pre] if pre else []), input=records, check=True, capture_output=True).stdout
    lines = [[int(x) for x in line.split()] for line in out.decode().split("\n")[:-1]]
    ends, rows = lines[0], lines[1:]
    assert len(rows) == 3 * len(strings), (model, pre, len(rows))
    return {"end_of_generation": ends, "as_text": rows[0::3], "as_tokens": rows[1::3], "whole": rows[2::3]}


def compact(ids):
    """as_tokens and whole only where they differ: null means the same as the row before."""
    return {
        "end_of_generation": ids["end_of_generation"],
        "as_text": ids["as_text"],
        "as_tokens": [b if b != a else None for a, b in zip(ids["as_text"], ids["as_tokens"])],
        "whole": [c if c != b else None for b, c in zip(ids["as_tokens"], ids["whole"])],
    }


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf8")


def main():
    models, source, lib = map(pathlib.Path, sys.argv[1:4])
    exe = build(source, lib)
    strings = texts()
    (HERE / "corpus.json").write_text(
        json.dumps(strings, ensure_ascii=True, indent=0) + "\n", encoding="utf8")
    for model in MODELS:
        write(f"{model}.json", compact(llama_ids(exe, models / f"{model}.gguf", strings)))


if __name__ == "__main__":
    main()
