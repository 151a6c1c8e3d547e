#!/usr/bin/env python3
"""Expected values of the laboratory's statistics (lab/src/stats.rs), by NumPy and SciPy.

usage: make.py      (pip install numpy scipy); writes stats.json beside itself

The generator is SplitMix64 as its authors published it (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
2014); the bootstrap is the circular block bootstrap of Politis and Romano (1992) for the median, by percentiles. Where the
values are independent, SciPy's own bootstrap gives a second opinion with another generator.
"""
import json
import math
from pathlib import Path

import numpy as np
import scipy
from scipy import stats

MASK = (1 << 64) - 1
RESAMPLES, CONFIDENCE = 10_000, 0.99


def splitmix64(seed):
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def block_length(n):
    root = math.ceil(round(n ** (1 / 3), 9))
    return min(max(2, root + root % 2), n)


def interval(values, seed):
    n, length = len(values), block_length(len(values))
    blocks = math.ceil(n / length)
    words = splitmix64(seed)
    starts = np.array([[(next(words) * n) >> 64 for _ in range(blocks)] for _ in range(RESAMPLES)])
    index = (starts[:, :, None] + np.arange(length)) % n
    medians = np.median(values[index.reshape(RESAMPLES, -1)[:, :n]], axis=1)
    tail = (1 - CONFIDENCE) / 2
    return np.quantile(medians, [tail, 1 - tail])


def case(name, values, seed, independent=True):
    values = np.asarray(values, dtype=np.float64)
    low, high = interval(values, seed)
    second = None
    if independent and len(values) >= 30:
        r = stats.bootstrap((values,), np.median, confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile",
                            rng=np.random.default_rng(7))
        second = [r.confidence_interval.low, r.confidence_interval.high]
    wins = (np.sum(values > 1) + np.sum(values == 1) / 2) / len(values)
    return {"name": name, "ratios": values.tolist(), "seed": seed, "median": float(np.median(values)), "low": float(low),
            "high": float(high), "win_rate": float(wins), "scipy": second,
            "quantiles": [[q, float(np.quantile(values, q))] for q in (0, 0.005, 0.25, 0.5, 0.95, 1)]}


def main():
    rng = np.random.default_rng(20240501)
    drift = np.cumsum(rng.normal(0, 0.004, 90))
    words = splitmix64(1234567)
    doc = {
        "made_by": f"make.py, NumPy {np.__version__}, SciPy {scipy.__version__}",
        "words": [str(next(words)) for _ in range(5)],
        "cases": [
            case("one", [1.25], 1),
            case("two", [0.5, 1.5], 2),
            case("ties", [1, 1, 1, 2, 0.5, 1, 1], 3),
            case("ten", rng.normal(1, 0.03, 10), 4),
            case("even noise", rng.normal(1, 0.05, 100), 5),
            case("five per cent", rng.normal(1.05, 0.03, 151), 6),
            case("heavy tails", 1 + 0.01 * rng.standard_t(2, 64), 7),
            case("drift", 1 + drift + rng.normal(0, 0.01, 90), 8, independent=False),
        ],
    }
    (Path(__file__).resolve().parent / "stats.json").write_text(json.dumps(doc, indent=1) + "\n")


if __name__ == "__main__":
    main()
