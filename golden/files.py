#!/usr/bin/env python3
"""Writes small weight files with the reference packages, and what is in them: golden/files/.

Made with gguf 0.19.0, safetensors 0.8.0 and numpy 2.4.6:
    pip install gguf==0.19.0 safetensors==0.8.0 numpy && python3 golden/files.py

small.bin is a GGUF with every value type and an alignment of 64, big_endian.bin the like in the other byte order;
small.json says what the `gguf` reader finds in small.bin. huggingface/ is a folder with two shards and
huggingface.json what the safetensors package put there.
"""
import hashlib
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import safetensors
from gguf import GGMLQuantizationType as T, GGUFEndian, GGUFReader, GGUFValueType as V, GGUFWriter

HERE = Path(__file__).with_suffix("")
shutil.rmtree(HERE, ignore_errors=True)
HERE.mkdir()
rng = np.random.default_rng(1)

SCALARS = {
    "test.u8": (V.UINT8, 255), "test.i8": (V.INT8, -128), "test.u16": (V.UINT16, 65535), "test.i16": (V.INT16, -32768),
    "test.u32": (V.UINT32, 2**32 - 1), "test.i32": (V.INT32, -2**31), "test.u64": (V.UINT64, 2**64 - 1),
    "test.i64": (V.INT64, -2**63), "test.f32": (V.FLOAT32, 0.1), "test.f64": (V.FLOAT64, 0.1),
    "test.yes": (V.BOOL, True), "test.no": (V.BOOL, False), "test.text": (V.STRING, "naïve 😀\n"),
    "test.empty": (V.STRING, ""),
}
ARRAYS = {
    "test.u8s": (V.UINT8, [0, 255]), "test.i8s": (V.INT8, [-1, 127]), "test.u16s": (V.UINT16, [1, 65535]),
    "test.i16s": (V.INT16, [-32768, 1]), "test.u32s": (V.UINT32, [0, 2**32 - 1]), "test.i32s": (V.INT32, [-1, 2]),
    "test.u64s": (V.UINT64, [2**64 - 1]), "test.i64s": (V.INT64, [-2**63, 0]), "test.f32s": (V.FLOAT32, [0.1, -1e30]),
    "test.f64s": (V.FLOAT64, [0.1, 1e300]), "test.bools": (V.BOOL, [True, False, True]),
    "test.texts": (V.STRING, ["a", "", "▁the", "😀"]),
}


def write(path: Path, endianess: GGUFEndian) -> None:
    w = GGUFWriter(path, "test", endianess=endianess)
    w.add_custom_alignment(64)
    for key, (kind, value) in SCALARS.items():
        w.add_key_value(key, value, kind)
    for key, (kind, values) in ARRAYS.items():
        w.add_key_value(key, values, V.ARRAY, sub_type=kind)
    w.add_tensor("matrix", rng.standard_normal((3, 5), dtype=np.float32))
    w.add_tensor("vector", rng.standard_normal(7, dtype=np.float32))
    w.add_tensor("cube", rng.standard_normal((2, 3, 4)).astype(np.float16))
    blocks = rng.integers(0, 256, (3, 2 * 34), dtype=np.uint8)
    w.add_tensor("blocks", blocks, raw_dtype=T.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


write(HERE / "small.bin", GGUFEndian.LITTLE)
write(HERE / "big_endian.bin", GGUFEndian.BIG)

reader = GGUFReader(HERE / "small.bin")
values = {}
for key, field in reader.fields.items():
    if not key.startswith("GGUF."):
        value = field.contents()
        # Integers beyond 2^53 and f32 values must survive JSON: all numbers are written as text.
        show = lambda v: v if isinstance(v, (str, bool)) else str(int(v)) if isinstance(v, (int, np.integer)) else repr(float(v))
        values[key] = [show(v) for v in value] if isinstance(value, list) else show(value)
tensors = [{"name": t.name, "encoding": t.tensor_type.name, "shape": [int(d) for d in reversed(t.shape)],
            "offset": int(t.data_offset), "sha256": hashlib.sha256(t.data.tobytes()).hexdigest()} for t in reader.tensors]
(HERE / "small.json").write_text(json.dumps({"values": values, "tensors": tensors}, indent=1, ensure_ascii=False) + "\n")

folder = HERE / "huggingface"
folder.mkdir()
DTYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}
found, weight_map = [], {}
for number, shard in enumerate([{"a.weight": ("F32", [3, 5]), "b.weight": ("F16", [2, 3, 4])},
                                {"c.weight": ("BF16", [4, 6]), "d.bias": ("F32", [7])}], 1):
    name = f"model-{number:05}-of-00002.safetensors"
    data, alive = {}, []
    for tensor, (dtype, shape) in shard.items():
        raw = rng.integers(0, 256, int(np.prod(shape)) * DTYPES[dtype][1], dtype=np.uint8)
        alive.append(raw)
        data[tensor] = safetensors.TensorSpec(
            dtype=DTYPES[dtype][0], shape=shape, data_ptr=raw.ctypes.data, data_len=raw.nbytes)
        weight_map[tensor] = name
        found.append({"name": tensor, "encoding": dtype, "shape": shape, "sha256": hashlib.sha256(raw.tobytes()).hexdigest()})
    (folder / name).write_bytes(bytes(safetensors.serialize(data, {"format": "pt"})))


def put(name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value, indent=1) + "\n")


put("model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": weight_map})
put("config.json", {"architectures": ["LlamaForCausalLM"], "hidden_size": 5})
put("generation_config.json", {"eos_token_id": [1, 2]})
put("tokenizer_config.json", {"bos_token": "<s>"})
put("tokenizer.json", {"version": "1.0"})
(folder / "chat_template.jinja").write_text("{{ messages }}\n")
(HERE / "huggingface.json").write_text(json.dumps(found, indent=1) + "\n")
