#!/usr/bin/env python3
"""A third implementation on the Hugging Face folders: mlx-lm (its CPU build) against the oracle's goldens.

usage: check_mlx.py GOLDEN_DIR        needs mlx[cpu], mlx-lm, numpy; prints the largest difference at each golden position

It checks the folders as much as the logits: they load as published models do. Where mlx-lm is known to compute something else,
the line says so and does not count.
"""
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

OTHERWISE = {
    ("gemma2-256", "short"): "mlx-lm gives gemma2 no sliding window: equal until position 15",
    ("gemma2-256", "long"): "mlx-lm gives gemma2 no sliding window: equal until position 15",
    ("gemma3-7", "short"): "mlx-lm ignores rotary scaling in rope_parameters, and rounds the embedding's factor to bfloat16",
    ("gemma3-7", "long"): "mlx-lm ignores rotary scaling in rope_parameters, and rounds the embedding's factor to bfloat16",
    ("gemma3-256", None): "mlx-lm cannot run gemma3 with fewer layers than one round of its pattern",
    ("phi3-longrope", "short"): "mlx-lm always uses the long factors",
}


def main():
    mx.set_default_device(mx.cpu)
    root = Path(sys.argv[1])
    failed = False
    for entry in json.loads((root / "logits/index.json").read_text()):
        logits = np.fromfile(root / "logits" / entry["file"], "<f4")
        for folder in entry["folders"]:
            if note := OTHERWISE.get((Path(folder).name, None)):
                print(f"{folder:28} {note}")
                continue
            model, _ = load_model(root / "models" / folder)
            model.set_dtype(mx.float32)
            for case in entry["cases"]:
                rows = len(case["positions"])
                want = logits[case["references"]["oracle"] :][: rows * entry["vocabulary"]].reshape(rows, -1)
                got = np.array(model(mx.array([case["ids"]])).astype(mx.float32))[0][case["positions"]]
                d = np.abs(got - want).max(-1)
                note = OTHERWISE.get((Path(folder).name, case["case"]), "")
                failed |= not note and d.max() > 2e-4
                print(f"{folder:28} {case['case']:24}", " ".join(f"{x:.0e}" for x in d), note)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
