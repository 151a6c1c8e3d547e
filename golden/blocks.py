#!/usr/bin/env python3
"""Writes golden/blocks.bin: what the `gguf` package decodes from adversarial and random blocks of every encoding.

Made with gguf 0.19.0 and numpy 2.4.6:  pip install gguf==0.19.0 numpy && python3 golden/blocks.py

Layout, per encoding: u8 name length, name; u32 number of stored blocks; their bytes; their decoded f32 values; then
SHA-256 over the decoded values of RANDOM blocks whose bytes are a SplitMix64 stream (seed 0, 8 bytes per draw, little
endian). All numbers are little endian. Every NaN is written as 0x7fc00000, in the values and under the hash.
"""
import hashlib
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

ENCODINGS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
             "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
# Where each encoding keeps its f16 scales: byte offsets inside the block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
# One, minus zero, the least and greatest subnormals, the greatest finite, both infinities, quiet and signalling NaNs.
HALVES = [0x3c00, 0x8000, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x7c01]
RANDOM = 2048


def splitmix64(draws: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = np.arange(1, draws + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def decode(name: str, data: bytes) -> bytes:
    with np.errstate(all="ignore"):
        values = dequantize(np.frombuffer(data, dtype=np.uint8).copy(), T[name]).astype(np.float32)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits.astype("<u4").tobytes()


def stored_blocks(name: str, size: int, stream: np.ndarray) -> bytes:
    if size <= 4:  # floats: a block is one value
        specials = {"F32": [0, 1, 0x80000000, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001],
                    "F16": HALVES, "BF16": [0, 1, 0x8000, 0x007F, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81]}[name]
        return b"".join(v.to_bytes(size, "little") for v in specials)
    blocks = [bytes(size), b"\xff" * size, b"\x80" * size, b"\x7f" * size]
    source = stream.tobytes()[::-1]
    for i in range(0, len(HALVES)):
        block = bytearray(source[i * size:(i + 1) * size])
        for j, at in enumerate(SCALES[name]):
            block[at:at + 2] = struct.pack("<H", HALVES[(i + 2 * j) % len(HALVES)])
        blocks.append(bytes(block))
    return b"".join(blocks)


out = bytearray()
for name in ENCODINGS:
    size = GGML_QUANT_SIZES[T[name]][1]
    stream = splitmix64((RANDOM * size + 7) // 8)
    stored = stored_blocks(name, size, stream)
    out += bytes([len(name)]) + name.encode() + struct.pack("<I", len(stored) // size)
    out += stored + decode(name, stored)
    out += hashlib.sha256(decode(name, stream.astype("<u8").tobytes()[:RANDOM * size])).digest()
Path(__file__).with_suffix(".bin").write_bytes(out)
