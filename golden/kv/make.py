#!/usr/bin/env python3
"""What packed groups of keys and values stand for, by NumPy in float32, from the definition in KIVI (arXiv 2402.02750) with
both levels rounded to half precision before the codes are taken.

usage: make.py      (pip install numpy); writes codec.json beside itself: a SHA-256 of every group's values

Inputs are made from SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), so that a test can
make them again.
"""
import hashlib
import json
from pathlib import Path

import numpy as np

MASK = (1 << 64) - 1
BLOCK, GROUP = 64, 32
F32 = np.float32


def splitmix64(seed, count):
    state, out = seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def inputs(pattern, seed, count, bits):
    """count halves."""
    u = [x >> 40 for x in splitmix64(seed, count)]
    x = np.array(u, dtype=np.float64) / 2**24 * 8 - 4
    if pattern == "outliers":
        x[3::17] *= 500
    elif pattern == "midpoints":  # half steps of a scale of 0.5
        x = np.array([v % (2 * (2**bits - 1) + 1) for v in u]) / 4
    elif pattern == "constant":
        x = np.full(count, 1.5)
    elif pattern == "tiny":
        return np.array([v & 0x83FF for v in u], dtype=np.uint16).view(np.float16)
    return x.astype(np.float16)


def quantise(members, bits):
    """Decoded values of one group."""
    x = members.astype(F32)
    low, high = x.min(), x.max()
    largest = F32(2**bits - 1)
    scale = np.float16(max(F32((high - low) / largest), F32(2**-24)))
    zero = np.float16(low)
    steps = np.rint(((x - F32(zero)) / F32(scale)).astype(F32))
    codes = np.clip(steps, 0, largest).astype(F32)
    return (codes * F32(scale)).astype(F32) + F32(zero)


def decode(kind, dim, bits, halves, half, sinks):
    """[dim][32] of keys, [32][dim] of values."""
    positions = slice(half * GROUP, (half + 1) * GROUP)
    if kind == "keys":
        keys = halves.reshape(dim, BLOCK)[:, positions].copy()
        if sinks >= GROUP:
            keys[:] = 0
        else:
            keys[:, :sinks] = keys[:, sinks : sinks + 1]
        return np.array([quantise(row, bits) for row in keys], dtype=F32)
    values = halves.reshape(BLOCK, dim)[positions]
    rows = [
        np.concatenate([quantise(row[c : c + GROUP], bits) for c in range(0, dim, GROUP)]) for row in values
    ]
    return np.array(rows, dtype=F32)


def main():
    cases, seed = [], 0
    for kind in ["keys", "values"]:
        for dim in [16, 64, 80, 96, 128, 256]:
            for bits in [2, 3, 4, 5, 6, 8]:
                for pattern in ["uniform", "outliers", "midpoints", "constant", "tiny"]:
                    seed += 1
                    half = seed % 2
                    sinks = [0, 4, 31, 32][seed % 4] if kind == "keys" and half == 0 else 0
                    halves = inputs(pattern, seed, dim * BLOCK, bits)
                    values = decode(kind, dim, bits, halves, half, sinks) + F32(0)
                    cases.append(
                        {
                            "kind": kind,
                            "dim": dim,
                            "bits": bits,
                            "pattern": pattern,
                            "seed": seed,
                            "half": half,
                            "sinks": sinks,
                            "sha256": hashlib.sha256(values.astype("<f4").tobytes()).hexdigest(),
                        }
                    )
    out = Path(__file__).with_name("codec.json")
    rows = ",\n".join(json.dumps(c) for c in cases)
    out.write_text(f'{{"numpy": "{np.__version__}", "cases": [\n{rows}\n]}}\n')


main()
