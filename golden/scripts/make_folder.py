#!/usr/bin/env python3
"""A real GGUF model as a Hugging Face folder in float32, its weights decoded by the gguf package.

usage: make_folder.py MODEL.gguf OUT_DIR [--mlx ACCURACY_DIR [--tokens 256]]      needs numpy, gguf; --mlx: mlx[cpu], mlx-lm

For llama and qwen2 with byte-level BPE. The folder is four bytes a weight and not kept; it shows that an engine reads the two
containers alike. With --mlx it also runs mlx-lm over the first tokens of the accuracy text and compares with the oracle's goldens.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from make_models import ARCHITECTURES, unpermute

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("model", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--mlx", type=Path)
    ap.add_argument("--tokens", type=int, default=256)
    a = ap.parse_args()
    r = GGUFReader(a.model)

    def meta(key, default=None):
        f = r.fields.get(key)
        return default if f is None else f.contents()

    arch = meta("general.architecture")
    assert arch in ("llama", "qwen2"), arch
    heads, kv = meta(f"{arch}.attention.head_count"), meta(f"{arch}.attention.head_count_kv")
    tokens, kinds = meta("tokenizer.ggml.tokens"), meta("tokenizer.ggml.token_type")
    a.out.mkdir(parents=True, exist_ok=True)

    def hf_name(tensor):
        base, kind = tensor.rsplit(".", 1)
        if not base.startswith("blk."):
            return f"{TOP[base]}.{kind}"
        _, layer, part = base.split(".")
        return f"model.layers.{layer}.{NAMES[part]}.{kind}"

    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for t in r.tensors:
        n = int(t.n_elements) * 4
        header[hf_name(t.name)] = {"dtype": "F32", "shape": [int(x) for x in reversed(t.shape)], "data_offsets": [offset, offset + n]}
        offset += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(a.out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in r.tensors:
            x = dequantize(t.data, t.tensor_type)
            part = t.name.split(".")[-2]
            if arch == "llama" and part in ("attn_q", "attn_k"):
                x = unpermute(x, heads if part == "attn_q" else kv)
            f.write(np.ascontiguousarray(x, dtype="<f4").tobytes())
    architecture, model_type = ARCHITECTURES[arch]
    config = {
        "architectures": [architecture], "model_type": model_type, "hidden_act": "silu",
        "hidden_size": meta(f"{arch}.embedding_length"), "intermediate_size": meta(f"{arch}.feed_forward_length"),
        "num_hidden_layers": meta(f"{arch}.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv,
        "max_position_embeddings": meta(f"{arch}.context_length"), "rms_norm_eps": meta(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta(f"{arch}.rope.freq_base", 10000.0), "rope_scaling": None, "vocab_size": len(tokens),
        "tie_word_embeddings": all(t.name != "output.weight" for t in r.tensors), "torch_dtype": "float32",
        "bos_token_id": meta("tokenizer.ggml.bos_token_id"), "eos_token_id": meta("tokenizer.ggml.eos_token_id"),
    }
    (a.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": arch == "llama"}
    qwen = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    first = ({"type": "Digits", "individual_digits": True} if arch == "llama" else
             {"type": "Split", "pattern": {"Regex": qwen}, "behavior": "Isolated", "invert": False})
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": k == 3}
             for i, (t, k) in enumerate(zip(tokens, kinds)) if k != 1]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                 "normalizer": {"type": "NFC"} if arch == "qwen2" else None,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [first, level]}, "post_processor": level, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                           "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                           "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [m.split(" ") for m in meta("tokenizer.ggml.merges")]}}
    (a.out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")
    print(f"{a.out}: {offset} bytes of weights")
    if a.mlx:
        compare(a)


def compare(a):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    doc = json.loads((a.mlx / f"{a.model.stem}.json").read_text())
    blob = (a.mlx / doc["file"]).read_bytes()

    def array(name, kind):
        at, shape = doc["arrays"][name]
        return np.frombuffer(blob, kind, int(np.prod(shape)), at).reshape(shape)[: a.tokens]

    model, _ = load_model(a.out)
    z = np.array(model(mx.array([doc["ids"][: a.tokens]])).astype(mx.float32))[0].astype(np.float64)
    ids, want, lse = array("oracle.ids", "<u4"), array("oracle.logits", "<f4"), array("oracle.lse", "<f4")
    got = np.take_along_axis(z, ids.astype(np.int64), -1)
    lse_got = z.max(-1) + np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1))
    p = np.exp(want - lse[:, None])
    kl = (p * ((want - lse[:, None]) - (got - lse_got[:, None]))).sum(-1)
    print(f"mlx-lm against the oracle over {a.tokens} tokens: largest difference {np.abs(got - want).max():.2g} of the 64 best logits, "
          f"{np.abs(lse_got - lse).max():.2g} of the log-sum-exp, mean KL over the 64 best {kl.mean():.2g} nats, "
          f"same best token at {(z.argmax(-1) == ids[:, 0]).mean():.2%}")


if __name__ == "__main__":
    main()
