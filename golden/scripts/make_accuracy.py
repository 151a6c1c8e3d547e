#!/usr/bin/env python3
"""What the oracle, exact and with activations quantised, makes of the fixed text with one real model.

usage: make_accuracy.py MODEL.gguf ACCURACY_DIR --oracle logits.py --tokenize LLAMA_TOKENIZE [--tokens 2048]

Tokenizes ACCURACY_DIR/text.txt by llama.cpp's llama-tokenize, runs both oracles over the first 2,048 tokens, and writes
ACCURACY_DIR/NAME.bin and NAME.json (NAME: the model file's). README.md beside this folder describes them. The bars that an
engine is held to are computed here: the mean KL of the quantised oracle to the exact one, and both mean log-probabilities.
Needs numpy, gguf, 5 GB of memory and for the largest model some ten minutes (set OPENBLAS_NUM_THREADS).
"""
import argparse
import hashlib
import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np

TOP = 64
ROWS = 128  # positions of the head computed at once


def matmul_einsum(spec, a, b):
    """The oracle's two einsum patterns by matrix products: the same sums, and BLAS does them."""
    if spec == "qhd,khd->hqk":
        return np.matmul(a.transpose(1, 0, 2), b.transpose(1, 2, 0))
    assert spec == "hqk,khd->qhd", spec
    return np.matmul(a, b.transpose(1, 0, 2)).transpose(1, 0, 2)


def load(path):
    spec = importlib.util.spec_from_file_location("oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.einsum = matmul_einsum

    class Headless(module.Model):
        """Stops before the head, whose input `logits` then returns: the whole [tokens, vocabulary] would not fit."""

        def head(self):
            return "output" if "output.weight" in self.t else "token_embd"

        def linear(self, x, name):
            if name != self.head():
                return super().linear(x, name)
            kind = self.t[name + ".weight"].tensor_type.name
            return module.int8_blocks(x) if self.int8 and kind not in module.FLOAT_TYPES else x

    return Headless


def log_sum_exp(z):
    m = z.max(-1)
    return m + np.log(np.exp(z - m[:, None]).sum(-1))


def top(z):
    ids = np.argpartition(-z, TOP, axis=-1)[:, :TOP]
    values = np.take_along_axis(z, ids, -1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(ids, order, -1), np.take_along_axis(values, order, -1)


def kl_of_top(ids, lp_of_top, lq):
    """KL over the exact oracle's best 64 tokens and one bucket for all others: what an engine can be measured by."""
    p, lq_top = np.exp(lp_of_top), np.take_along_axis(lq, ids, -1)
    rest_p, rest_q = (np.maximum(1 - x.sum(-1), 1e-12) for x in (p, np.exp(lq_top)))
    return (p * (lp_of_top - lq_top)).sum(-1) + rest_p * np.log(rest_p / rest_q)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model", type=Path)
    ap.add_argument("accuracy", type=Path)
    ap.add_argument("--oracle", required=True)
    ap.add_argument("--tokenize", required=True)
    ap.add_argument("--tokens", type=int, default=2048)
    a = ap.parse_args()
    text = a.accuracy / "text.txt"
    out = subprocess.run([a.tokenize, "-m", a.model, "-f", text, "--ids", "--log-disable"], capture_output=True, text=True,
                         check=True).stdout
    ids = json.loads(out[out.index("["):])[: a.tokens]
    cls = load(a.oracle)
    hidden = {}
    for name, int8 in (("oracle", False), ("oracle_int8", True)):
        m = cls(str(a.model), int8)
        assert not m.final_cap
        hidden[name] = m.logits(ids)
        print(a.model.stem, name, "layers done", flush=True)
    head = m.w(m.head() + ".weight").T
    truth = np.array(ids[1:] + [0])
    parts = {n: {"lse": [], "true": [], "ids": [], "logits": []} for n in hidden}
    kl, kl_top, agree = [], [], []
    for at in range(0, len(ids), ROWS):
        logs = {}
        for name, h in hidden.items():
            z = h[at : at + ROWS] @ head
            lse = log_sum_exp(z)
            best, values = top(z)
            for key, x in (("lse", lse), ("ids", best), ("logits", values),
                           ("true", z[np.arange(len(z)), truth[at : at + ROWS]] - lse)):
                parts[name][key].append(x)
            logs[name] = (z - lse[:, None], best, values - lse[:, None])
        (lp, best, lp_top), (lq, best_q, _) = logs["oracle"], logs["oracle_int8"]
        kl.append((np.exp(lp) * (lp - lq)).sum(-1))
        kl_top.append(kl_of_top(best, lp_top, lq))
        agree.append(best[:, 0] == best_q[:, 0])
    kl, kl_top, agree = (np.concatenate(x) for x in (kl, kl_top, agree))
    blob, where = [], {}
    for name, p in parts.items():
        p = {k: np.concatenate(v) for k, v in p.items()}
        p["true"] = p["true"][:-1]  # the last token has no successor
        for key, kind in (("lse", "<f4"), ("true", "<f4"), ("ids", "<u4"), ("logits", "<f4")):
            where[f"{name}.{key}"] = [sum(map(len, blob)), list(p[key].shape)]
            blob.append(p[key].astype(kind).tobytes())
        parts[name] = p
    exact, int8 = parts["oracle"]["true"], parts["oracle_int8"]["true"]
    d = int8 - exact
    doc = {
        "model": a.model.name, "text_sha256": hashlib.sha256(text.read_bytes()).hexdigest(), "vocabulary": int(head.shape[1]),
        "tokens": len(ids), "top": TOP, "file": f"{a.model.stem}.bin", "arrays": where,
        "int8_mean_kl": kl.mean(), "int8_mean_kl_top": kl_top.mean(), "int8_max_kl": kl.max(),
        "int8_mean_kl_top_first_64": kl_top[:64].mean(), "int8_same_best": agree.mean(),
        "mean_log_probability": exact.mean(), "int8_mean_log_probability": int8.mean(),
        "log_probability_difference": d.mean(), "paired_standard_error": d.std(ddof=1) / np.sqrt(len(d)),
        "ids": ids,
    }
    doc = {k: float(f"{v:.6g}") if isinstance(v, (float, np.floating)) else v for k, v in doc.items()}
    (a.accuracy / doc["file"]).write_bytes(b"".join(blob))
    (a.accuracy / f"{a.model.stem}.json").write_text(json.dumps(doc) + "\n")
    print({k: v for k, v in doc.items() if isinstance(v, float)}, flush=True)


if __name__ == "__main__":
    main()
