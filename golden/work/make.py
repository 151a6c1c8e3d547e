#!/usr/bin/env python3
"""Counts, by another way than plumb's plan, the bytes that one decoding step reads and writes.

Real models: the tensor table of the GGUF file as the `gguf` package reads it (sizes as that package computes them from
type and shape), and the file's metadata. Published shapes: element counts written out here from each model's config.json,
times the bits of an encoding as the `gguf` package's table has them. Nothing of plumb is read or run.

usage: make.py MODELS     (the folder of the four real models)
writes work.json beside itself
"""
import json
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

CONTEXTS = [0, 1, 511, 512, 513, 4095, 16384]
BATCHES = [1, 2, 8]
HERE = Path(__file__).resolve().parent


def value(reader, key, default=None):
    field = reader.fields.get(key)
    if field is None:
        return default
    part = field.parts[field.data[0]]
    return part.tobytes().decode() if field.types[0] == gguf.GGUFValueType.STRING else part[0].item()


def kv(layers, kv_heads, key, val, windows, context, batch):
    """Bytes of f16 keys and values that a step of one token per sequence reads and writes."""
    row = kv_heads * (key + val) * 2
    seen = sum(min(context + 1, w) if w else context + 1 for w in windows)
    assert len(windows) == layers
    return {"context": context, "batch": batch, "kv_read": batch * seen * row, "kv_written": batch * layers * row}


def real(path):
    reader = gguf.GGUFReader(path)
    arch = value(reader, "general.architecture")
    get = lambda key, default=None: value(reader, f"{arch}.{key}", default)
    sizes = {t.name: int(t.n_bytes) for t in reader.tensors}
    shapes = {t.name: [int(n) for n in t.shape] for t in reader.tensors}  # innermost first
    table = sizes["token_embd.weight"]
    vocab = shapes["token_embd.weight"][1]
    row = table // vocab
    tied = "output.weight" not in sizes
    # Vectors are read as f32, whatever the file's type.
    once = 0
    for name, size in sizes.items():
        if name in ("token_embd.weight", "output.weight") or name.startswith("rope_"):
            continue
        vector = len(shapes[name]) == 1
        once += 4 * shapes[name][0] if vector else size
    once += table if tied else sizes["output.weight"]
    heads, layers = get("attention.head_count"), get("block_count")
    kv_heads = get("attention.head_count_kv", heads)
    key = get("attention.key_length", get("embedding_length") // heads)
    val = get("attention.value_length", key)
    windows = [None] * layers
    if arch == "gemma3":
        # Five sliding layers, then one that sees everything; the file of this model leaves the pattern out.
        w = get("attention.sliding_window")
        pattern = get("attention.sliding_window_pattern", 6)
        windows = [None if (i + 1) % pattern == 0 else w for i in range(layers)]
    steps = []
    for context in CONTEXTS:
        for batch in BATCHES:
            step = kv(layers, kv_heads, key, val, windows, context, batch)
            steps.append({**step, "weights_read": once + batch * row})
    return {"name": Path(path).stem, "architecture": arch, "steps": steps}


# From each model's config.json.
PUBLISHED = [
    dict(name="llama-3.2-1b", architecture="llama", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64,
         vocab=128256, tied=True, encodings=["Q4_K", "Q8_0"]),
    dict(name="llama-3.1-8b", architecture="llama", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128,
         vocab=128256, tied=False, encodings=["Q4_K", "Q6_K", "F16"]),
    dict(name="qwen2.5-7b", architecture="qwen2", layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4, head_dim=128,
         vocab=152064, tied=False, qkv_bias=True, encodings=["Q4_0", "Q5_K"]),
    dict(name="qwen3-8b", architecture="qwen3", layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8, head_dim=128,
         vocab=151936, tied=False, qk_norms=True, encodings=["Q4_1", "IQ4_XS"]),
    dict(name="gemma-3-1b", architecture="gemma3", layers=26, hidden=1152, ffn=6912, heads=4, kv_heads=1, head_dim=256,
         vocab=262144, tied=True, qk_norms=True, post_norms=True, window=512, pattern=6, encodings=["Q8_0", "BF16"]),
]


def published(c, encoding):
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]

    def matrix(rows, cols):
        assert cols % block == 0, (c["name"], encoding, cols)
        return rows * cols * size // block

    h, q, k = c["hidden"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
    layer = matrix(q, h) + 2 * matrix(k, h) + matrix(h, q) + 2 * matrix(c["ffn"], h) + matrix(h, c["ffn"])
    layer += 4 * 2 * h
    if c.get("qkv_bias"):
        layer += 4 * (q + 2 * k)
    if c.get("qk_norms"):
        layer += 4 * 2 * c["head_dim"]
    if c.get("post_norms"):
        layer += 4 * 2 * h
    # Tied or not, one matrix of this size is the head.
    once = c["layers"] * layer + 4 * h + matrix(c["vocab"], h)
    w, p = c.get("window"), c.get("pattern")
    windows = [w if w and (i + 1) % p != 0 else None for i in range(c["layers"])]
    steps = []
    for context in CONTEXTS:
        for batch in BATCHES:
            step = kv(c["layers"], c["kv_heads"], c["head_dim"], c["head_dim"], windows, context, batch)
            steps.append({**step, "weights_read": once + batch * matrix(1, h)})
    shape = {k: v for k, v in c.items() if k != "encodings"}
    return {"shape": shape, "encoding": encoding, "windows": windows, "steps": steps}


# Formats of keys and values, window, sinks.
CACHES = [("q4", "q4", 128, 4), ("q8", "q4", 0, 0), ("f16", "q2", 128, 4), ("q3", "q6", 300, 20)]


def packed_side(bits, channels, of_keys, window, query, cache_window, sinks):
    """Bytes of one head's keys or values that the query at this position reads, and that its step writes: position by
    position, as the format's definition has it."""
    seen = [p for p in range(query + 1) if not window or p > query - window]
    if bits == 16 or (window and window <= cache_window):
        return len(seen) * channels * 2, channels * 2
    # A group of 32 is packed for a query when all of it lies behind the window.
    packed = lambda group, query: 32 * (group + 1) <= query + 1 - cache_window
    levels = channels if of_keys else 32 * -(-channels // 32)
    group_bytes = 32 * channels * bits // 8 + 2 * 2 * levels
    groups = {p // 32 for p in seen if packed(p // 32, query)}
    halves = [p for p in seen if p // 32 not in groups or p < sinks]
    new = [g for g in groups if not packed(g, query - 1)]
    read = len(halves) * channels * 2 + len(groups) * group_bytes + len(new) * 32 * channels * 2
    return read, channels * 2 * (2 if query < sinks else 1) + len(new) * group_bytes


def packed_steps(c, keys, values, cache_window, sinks):
    bits = lambda name: 16 if name == "f16" else int(name[1:])
    w, p = c.get("window"), c.get("pattern")
    windows = [w if w and (i + 1) % p != 0 else None for i in range(c["layers"])]
    steps = []
    for context in [0, 1, 3, 31, 32, 159, 160, 161, 200, 331, 511, 1000, 4095]:
        read = written = 0
        for window in windows:
            for name, of_keys in ((keys, True), (values, False)):
                r, w = packed_side(bits(name), c["head_dim"], of_keys, window, context, cache_window, sinks)
                read, written = read + c["kv_heads"] * r, written + c["kv_heads"] * w
        steps.append({"context": context, "kv_read": read, "kv_written": written})
    return steps


def packed_cache(c, cache):
    keys, values, cache_window, sinks = cache
    w, p = c.get("window"), c.get("pattern")
    return {"shape": {k: v for k, v in c.items() if k != "encodings"}, "keys": keys, "values": values, "cache_window": cache_window,
            "sinks": sinks, "windows": [w if w and (i + 1) % p != 0 else None for i in range(c["layers"])],
            "steps": packed_steps(c, keys, values, cache_window, sinks)}


models = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
doc = {
    "made_by": "golden/work/make.py",
    "versions": {"gguf": version("gguf"), "numpy": numpy.__version__,
                 "python": sys.version.split()[0]},
    "real": [real(Path(sys.argv[1]) / f"{m}.gguf") for m in models],
    "published": [published(c, e) for c in PUBLISHED for e in c["encodings"]],
    "packed": [packed_cache(c, cache) for c in (PUBLISHED[0], PUBLISHED[-1]) for cache in CACHES],
}
(HERE / "work.json").write_text(json.dumps(doc, indent=None, separators=(",", ":")) + "\n")
for m in doc["real"]:
    print(m["name"], m["steps"][0])
