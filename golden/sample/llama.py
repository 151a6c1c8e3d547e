"""Writes llama.json: what llama.cpp's own samplers leave, for the steps whose published descriptions are silent on details.

Calls libllama through ctypes (build 0.5.0, ggml 0.25.3); llama_sampler_init_dry_testing is its own test's entry, C++.

    python llama.py FOLDER_OF_LIBLLAMA
"""

import ctypes as c
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent


class Data(c.Structure):
    _fields_ = [("id", c.c_int32), ("logit", c.c_float), ("p", c.c_float)]


class Array(c.Structure):
    _fields_ = [("data", c.POINTER(Data)), ("size", c.c_size_t), ("selected", c.c_int64), ("sorted", c.c_bool)]


class Vector(c.Structure):
    """std::vector as libstdc++ lays it out."""

    _fields_ = [("begin", c.c_void_p), ("end", c.c_void_p), ("room", c.c_void_p)]


def vector(buffer):
    start = c.addressof(buffer)
    return Vector(start, start + c.sizeof(buffer), start + c.sizeof(buffer))


folder = pathlib.Path(sys.argv[1])
for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
    c.CDLL(folder / name, mode=c.RTLD_GLOBAL)
lib = c.CDLL(folder / "libllama.so")
DRY = "_Z29llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
DRY = DRY if hasattr(lib, DRY) else "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
F, I, Z, U = c.c_float, c.c_int32, c.c_size_t, c.c_uint32
MAKERS = {
    "top_k": ("llama_sampler_init_top_k", [I]),
    "top_p": ("llama_sampler_init_top_p", [F, Z]),
    "min_p": ("llama_sampler_init_min_p", [F, Z]),
    "typical": ("llama_sampler_init_typical", [F, Z]),
    "xtc": ("llama_sampler_init_xtc", [F, F, Z, U]),
    "top_n_sigma": ("llama_sampler_init_top_n_sigma", [F]),
    "penalties": ("llama_sampler_init_penalties", [I, I, F, F, F]),
}
for symbol, arguments in MAKERS.values():
    getattr(lib, symbol).argtypes, getattr(lib, symbol).restype = arguments, c.c_void_p
getattr(lib, DRY).argtypes, getattr(lib, DRY).restype = [F, F, I, I, c.POINTER(Vector)], c.c_void_p
lib.llama_sampler_accept.argtypes = [c.c_void_p, I]
lib.llama_sampler_apply.argtypes = [c.c_void_p, c.POINTER(Array)]
lib.llama_sampler_free.argtypes = [c.c_void_p]


def make(kind, *arguments):
    if kind != "dry":
        arguments = (1000, *arguments) if kind == "penalties" else arguments  # the vocabulary's size
        return getattr(lib, MAKERS[kind][0])(*arguments), None
    *numbers, breakers = arguments
    inner = [(I * 1)(b) for b in breakers]
    outer = (Vector * max(len(inner), 1))(*[vector(b) for b in inner])
    all_of_them = vector(outer) if inner else Vector(None, None, None)
    return getattr(lib, DRY)(*numbers, c.byref(all_of_them)), (inner, outer)


def run(logits, history, chain):
    data = (Data * len(logits))(*[Data(t, l, 0.0) for t, l in enumerate(logits)])
    array = Array(data, len(logits), -1, False)
    for step in chain:
        sampler, _alive = make(*step)
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        lib.llama_sampler_apply(sampler, c.byref(array))
        lib.llama_sampler_free(sampler)
    left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    return sorted((t, float(f"{l:.7g}")) for t, l in left.items() if l > -np.inf)


def main():
    rng = np.random.default_rng(8)
    cases = []
    chains = [
        ([("penalties", 64, 1.3, 0.0, 0.0)], dict(repetition_penalty=1.3, penalty_last_n=64)),
        ([("penalties", 9, 1.1, 0.3, 0.7)], dict(repetition_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.7, penalty_last_n=9)),
        ([("dry", 0.8, 1.75, 2, 64, [])], dict(dry_multiplier=0.8, dry_last_n=64)),
        ([("dry", 0.8, 1.75, 2, 64, [5])], dict(dry_multiplier=0.8, dry_last_n=64, dry_sequence_breakers=[5])),
        ([("dry", 1.5, 1.2, 1, 12, [9, 3])], dict(dry_multiplier=1.5, dry_base=1.2, dry_allowed_length=1, dry_last_n=12, dry_sequence_breakers=[9, 3])),
        ([("dry", 0.5, 1.0, 4, 64, [0])], dict(dry_multiplier=0.5, dry_base=1.0, dry_allowed_length=4, dry_last_n=64, dry_sequence_breakers=[0])),
        ([("top_n_sigma", 1.2)], dict(top_n_sigma=1.2)),
        ([("top_k", 7)], dict(top_k=7)),
        ([("typical", 0.7, 0)], dict(typical_p=0.7)),
        ([("typical", 0.25, 0)], dict(typical_p=0.25)),
        ([("top_p", 0.8, 0)], dict(top_p=0.8)),
        ([("min_p", 0.08, 0)], dict(min_p=0.08)),
        ([("xtc", 1.0, 0.08, 0, 1)], dict(xtc_probability=1.0, xtc_threshold=0.08)),
        (
            [("top_k", 20), ("typical", 0.9, 0), ("top_p", 0.9, 0), ("min_p", 0.03, 0), ("xtc", 1.0, 0.1, 0, 1)],
            dict(top_k=20, typical_p=0.9, top_p=0.9, min_p=0.03, xtc_probability=1.0, xtc_threshold=0.1),
        ),
    ]  # fmt: skip
    for chain, config in chains:
        for repeat in range(8):
            n = int(rng.integers(12, 60))
            logits = [float(f"{x:.6g}") for x in rng.normal(0, 2, n).astype(np.float32)]
            history = [int(t) for t in rng.integers(0, 10 if repeat % 2 else 4, 40)]
            cases.append(dict(config=config, logits=logits, history=history, left=run(logits, history, chain)))
    (HERE / "llama.json").write_text("[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in cases) + "\n]\n")


main()
