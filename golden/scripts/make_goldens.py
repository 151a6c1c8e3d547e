#!/usr/bin/env python3
"""The reference logits of the models that make_models.py wrote.

usage: make_goldens.py MODELS_DIR OUT_DIR --oracle logits.py --llama LLAMA_LOGITS [--only NAME]

The references, none of them plumb:
  oracle      float64 NumPy over weights decoded by the gguf package (--oracle names its script)
  llama_cpp   the llama.cpp library in float32 (--llama names the program that build_llama_logits.sh builds;
              LD_LIBRARY_PATH must find its libraries)
  oracle_f16kv  the oracle with its keys (after rotation) and values rounded to float16, as a float16 cache keeps them
The oracle has no yarn and no phi3 factors; `Extended` adds them here, from the papers, and the index marks those
cases `extended`. For quantised models llama.cpp is left out (it quantises activations in its own way) and the
oracle is run a second time with its activations quantised: `oracle_int8`. phi3's window is the oracle's alone: llama.cpp
switches it off. README.md beside this folder describes the output.
"""
import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from make_models import FOLDERS, KQUANTS, LEGACY, SPECS

SHORT, LONG = 24, 320
SHORT_POSITIONS = [0, 1, 2, 5, 11, 16, 17, 20, 23]
LONG_POSITIONS = [0, 63, 64, 65, 127, 255, 256, 319]


def half(x):
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def load_oracle(path):
    spec = importlib.util.spec_from_file_location("oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Extended(module.Model):
        """Adds yarn (arXiv 2309.00071) and the long and short factors of phi3 (arXiv 2402.13753)."""

        context = 0
        f16kv = False
        rotations = 0

        def linear(self, x, name):
            y = super().linear(x, name)
            if self.f16kv and name.endswith("attn_v"):
                return half(y)
            if self.f16kv and name.endswith("attn_qkv"):
                v = (self.heads + self.kv_heads) * self.head_dim
                return np.concatenate([y[:, :v], half(y[:, v:])], axis=1)
            return y

        def special(self):
            return self.rope_kind == "yarn" or "rope_factors_long.weight" in self.t

        def rope(self, x, layer):
            self.rotations += 1  # q first, then k
            y = self.rotate(x, layer)
            return half(y) if self.f16kv and self.rotations % 2 == 0 else y

        def rotate(self, x, layer):
            if not self.special():
                return super().rope(x, layer)
            a, d = self.arch, self.rope_dim
            inv = self.theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
            old = self.meta(f"{a}.rope.scaling.original_context_length")
            if self.rope_kind == "yarn":
                def dimension(turns):
                    return d * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
                low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), d - 1)
                ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
                inv = inv * (1 - ramp) + inv / self.rope_scale * ramp
                magnitude = 1 + 0.1 * math.log(self.rope_scale)
            else:
                kind = "long" if self.context > old else "short"
                inv = inv / self.w(f"rope_factors_{kind}.weight")
                magnitude = self.meta(f"{a}.rope.scaling.attn_factor", 1.0)
            ang = np.arange(x.shape[0], dtype=np.float64)[:, None] * inv
            c, s = magnitude * np.cos(ang)[:, None, :], magnitude * np.sin(ang)[:, None, :]
            out = x.copy()
            first, second = (slice(0, d, 2), slice(1, d, 2)) if a == "llama" else (slice(0, d // 2), slice(d // 2, d))
            p, q = x[..., first], x[..., second]
            out[..., first], out[..., second] = p * c - q * s, p * s + q * c
            return out

    return Extended


def oracle(cls, path, ids, context, int8=False, f16kv=False):
    m = cls(str(path), int8)
    m.context, m.f16kv = context, f16kv
    return m.logits(ids), m.special()


def llama(program, path, ids, context, vocabulary):
    with tempfile.NamedTemporaryFile() as f:
        text = " ".join(map(str, ids)).encode()
        out = subprocess.run([program, path, str(context), f.name], input=text, stdout=subprocess.PIPE, check=True)
        assert out.stdout.split()[1] == str(context).encode(), out.stdout
        return np.fromfile(f.name, "<f4").reshape(len(ids), vocabulary).astype(np.float64)


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def compare(p, q):
    """What the second is away from the first: the largest difference of logits, and KL in nats over the positions."""
    lp, lq = log_softmax(p), log_softmax(q)
    kl = (np.exp(lp) * (lp - lq)).sum(-1)
    return {"max_abs": float(f"{np.abs(p - q).max():.3g}"), "mean_kl": float(f"{kl.mean():.3g}"),
            "max_kl": float(f"{kl.max():.3g}")}


def cases(name, s):
    r = np.random.Generator(np.random.PCG64(zlib.crc32(b"ids of " + name.encode())))
    short, long = (r.integers(0, s["v"], n).tolist() for n in (SHORT, LONG))
    yield "short", 256, short, SHORT_POSITIONS
    yield "long", 512, long, LONG_POSITIONS
    if "longrope" in s:
        yield "short_in_a_long_context", 512, short, SHORT_POSITIONS


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("models", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--oracle", required=True)
    ap.add_argument("--llama", required=True)
    ap.add_argument("--only", help="one model: compare, write nothing")
    a = ap.parse_args()
    cls = load_oracle(a.oracle)
    a.out.mkdir(parents=True, exist_ok=True)
    index = []
    for name, s in SPECS.items():
        if a.only and name != a.only:
            continue
        path = a.models / f"{name}.gguf"
        quantised = s.get("encode") in (LEGACY, KQUANTS)
        half = "encode" in s and not quantised
        if half:  # the same weights as another model: the same goldens
            continue
        entry = {"model": f"{name}.gguf", "vocabulary": s["v"], "file": f"{name}.bin"}
        entry["same_weights"] = [f"{n}.gguf" for n, t in SPECS.items() if t.get("seed") == name]
        entry["folders"] = [f"hf/{folder}" for folder, (model, *_) in FOLDERS.items() if model == name]
        entry["cases"], blob, offset = [], [], 0
        for case, context, ids, positions in cases(name, s):
            exact, extended = oracle(cls, path, ids, context)
            refs = {"oracle": exact}
            refs["oracle_f16kv"], _ = oracle(cls, path, ids, context, f16kv=True)
            agreement = {"oracle_f16kv": compare(exact, refs["oracle_f16kv"])}
            if quantised:
                refs["oracle_int8"], _ = oracle(cls, path, ids, context, int8=True)
                agreement["oracle_int8"] = compare(exact, refs["oracle_int8"])
            elif not (s["arch"] == "phi3" and "attention.sliding_window" in s.get("meta", {})):
                refs["llama_cpp"] = llama(a.llama, path, ids, context, s["v"])
                agreement["llama_cpp"] = compare(exact, refs["llama_cpp"])
            print(f"{name:18} {case:24} std {exact.std():5.2f} entropy "
                  f"{-(np.exp(log_softmax(exact)) * log_softmax(exact)).sum(-1).mean():5.2f} {agreement}", flush=True)
            where = {}
            for ref, z in refs.items():
                rows = z[positions].astype("<f4")
                where[ref] = offset
                blob.append(rows.tobytes())
                offset += rows.size
            entry["cases"].append({"case": case, "context": context, "extended": extended, "ids": ids, "positions": positions,
                                   "references": where, "agreement": agreement})
        index.append(entry)
        if not a.only:
            (a.out / entry["file"]).write_bytes(b"".join(blob))
    if not a.only:
        rows = ",\n ".join(json.dumps(e) for e in index)
        (a.out / "index.json").write_text(f"[{rows}]\n")


if __name__ == "__main__":
    main()
