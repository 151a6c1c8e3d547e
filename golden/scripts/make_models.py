#!/usr/bin/env python3
"""Random small models of every architecture, as GGUF files and as Hugging Face folders, for tests of the engine.

usage: make_models.py OUT_DIR [--ggml LIBGGML_BASE.so]      needs numpy, gguf, safetensors (tokenizers to check)

Every matrix value is an integer of at most 7 bits times a power of two and every norm weight is n/128, so each is exact in
float32, float16 and bfloat16: one set of goldens serves all the containers of a model, and the files compress well.
The values are drawn by NumPy's PCG64 from a seed made of the model's name. Models whose specification says `encode`
hold quantised tensors, written by ggml's own quantiser (ctypes on libggml-base, option --ggml).
Nothing here knows plumb. make_goldens.py writes the logits beside the models.
"""
import argparse
import ctypes
import json
import math
import shutil
import struct
import zlib
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

LEGACY = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"]
KQUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]

# name -> specification. d: head size, kv: key/value heads, v: vocabulary. Metadata beyond the shape is in `meta`
# (keys without the architecture's prefix); what is not there is left out of the file.
SPECS = {
    "llama-64": dict(arch="llama", layers=2, h=48, heads=3, kv=1, d=64, ffn=80, v=288),
    "mistral-80": dict(arch="llama", layers=2, h=40, heads=2, kv=2, d=80, ffn=72, v=261, untied=True,
                       meta={"rope.freq_base": 1000000.0}),
    "llama-odd-96": dict(arch="llama", layers=3, h=44, heads=2, kv=1, d=96, ffn=70, v=301),
    "llama-128": dict(arch="llama", layers=4, h=32, heads=2, kv=1, d=128, ffn=56, v=272, untied=True),
    "llama-linear": dict(arch="llama", layers=2, h=32, heads=2, kv=1, d=64, ffn=48, v=272,
                         meta={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-yarn": dict(arch="llama", layers=2, h=32, heads=2, kv=1, d=64, ffn=48, v=272,
                       meta={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                             "rope.scaling.original_context_length": 128}),
    "llama-llama3": dict(arch="llama", layers=2, h=32, heads=2, kv=1, d=64, ffn=48, v=272,
                         meta={"rope.freq_base": 500000.0},
                         llama3=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=128)),
    "qwen2-64": dict(arch="qwen2", layers=2, h=128, heads=2, kv=1, d=64, ffn=40, v=264,
                     meta={"rope.freq_base": 1000000.0}),
    "qwen3-128": dict(arch="qwen3", layers=2, h=48, heads=2, kv=1, d=128, ffn=72, v=280,
                      meta={"rope.freq_base": 1000000.0}),
    "qwen3-yarn": dict(arch="qwen3", layers=2, h=32, heads=4, kv=2, d=64, ffn=48, v=272, untied=True,
                       meta={"rope.freq_base": 1000000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                             "rope.scaling.original_context_length": 96}),
    "gemma2-256": dict(arch="gemma2", layers=2, h=32, heads=2, kv=1, d=256, ffn=64, v=288,
                       meta={"attention.sliding_window": 16, "attn_logit_softcapping": 2.5,
                             "final_logit_softcapping": 4.0}),
    "gemma2-defaults": dict(arch="gemma2", layers=3, h=40, heads=2, kv=1, d=64, ffn=48, v=272),
    "gemma3-256": dict(arch="gemma3", layers=2, h=32, heads=2, kv=1, d=256, ffn=40, v=272,
                       meta={"attention.sliding_window": 24}),
    "gemma3-7": dict(arch="gemma3", layers=7, h=32, heads=2, kv=1, d=64, ffn=40, v=272,
                     meta={"attention.sliding_window": 20, "rope.freq_base": 1000000.0,
                           "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "phi3-64": dict(arch="phi3", layers=2, h=128, heads=2, kv=1, d=64, ffn=40, v=264, rotary=48),
    "phi3-window": dict(arch="phi3", layers=2, h=96, heads=1, kv=1, d=96, ffn=40, v=264, untied=True,
                        meta={"attention.sliding_window": 48}),
    "phi3-longrope": dict(arch="phi3", layers=2, h=96, heads=1, kv=1, d=96, ffn=40, v=264, untied=True,
                          meta={"rope.scaling.original_context_length": 256,
                                "rope.scaling.attn_factor": 1.118033988749895},
                          longrope=True),
    "llama-legacy": dict(arch="llama", layers=2, h=96, heads=2, kv=1, d=64, ffn=160, v=272, encode=LEGACY),
    "qwen3-k": dict(arch="qwen3", layers=2, h=256, heads=2, kv=1, d=64, ffn=256, v=264, encode=KQUANTS,
                    meta={"rope.freq_base": 1000000.0}),
    # The same weights as llama-64, its matrices in F16 and BF16 by turns.
    "llama-64-half": dict(arch="llama", layers=2, h=48, heads=3, kv=1, d=64, ffn=80, v=288, seed="llama-64",
                          encode=["F16", "BF16"]),
}

# Folder -> (model, dtype, shards, style of config.json: transformers 4 or 5)
FOLDERS = {
    "llama-64-f32": ("llama-64", "F32", 1, 4),
    "llama-64-f16": ("llama-64", "F16", 1, 4),
    "llama-64-bf16-sharded": ("llama-64", "BF16", 3, 5),
    "llama-llama3": ("llama-llama3", "BF16", 1, 4),
    "qwen2-64": ("qwen2-64", "BF16", 1, 4),
    "qwen3-yarn": ("qwen3-yarn", "BF16", 1, 4),
    "gemma2-256": ("gemma2-256", "BF16", 1, 4),
    "gemma3-256": ("gemma3-256", "F16", 1, 4),
    "gemma3-7": ("gemma3-7", "BF16", 1, 5),
    "phi3-longrope": ("phi3-longrope", "BF16", 1, 4),
}

CONTEXT = 1024
EPS = 1e-6


class Draw:
    """Values that are exact in 8 significant bits."""

    def __init__(self, name):
        self.r = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))

    def matrix(self, rows, cols, std):
        k = np.clip(np.rint(self.r.standard_normal((rows, cols)) * 12), -127, 127)
        return (k * 2.0 ** round(math.log2(std / 12))).astype(np.float32)

    def norm(self, n):
        return (1 + np.clip(np.rint(self.r.standard_normal(n) * 20), -60, 60) / 128).astype(np.float32)

    def bias(self, n):
        return self.matrix(1, n, 0.4)[0]


def weights(name, s):
    """GGUF tensor name -> float32 array [rows, columns] or [n]."""
    draw = Draw(s.get("seed", name))
    a, h, f = s["arch"], s["h"], s["ffn"]
    q, kv = s["heads"] * s["d"], s["kv"] * s["d"]
    gemma = a.startswith("gemma")
    t = {"token_embd.weight": draw.matrix(s["v"], h, (1.3 if gemma else 2.2) / math.sqrt(h))}
    for l in range(s["layers"]):
        p = f"blk.{l}."
        inner, sharp = 1 / math.sqrt(h), 1.6 / math.sqrt(h)
        t[p + "attn_norm.weight"] = draw.norm(h)
        wq, wk, wv = draw.matrix(q, h, sharp), draw.matrix(kv, h, sharp), draw.matrix(kv, h, inner)
        if a == "phi3":
            t[p + "attn_qkv.weight"] = np.concatenate([wq, wk, wv])
        else:
            t[p + "attn_q.weight"], t[p + "attn_k.weight"], t[p + "attn_v.weight"] = wq, wk, wv
        if a == "qwen2":
            for i, n in (("q", q), ("k", kv), ("v", kv)):
                t[p + f"attn_{i}.bias"] = draw.bias(n)
        if a in ("qwen3", "gemma3"):
            t[p + "attn_q_norm.weight"], t[p + "attn_k_norm.weight"] = draw.norm(s["d"]), draw.norm(s["d"])
        t[p + "attn_output.weight"] = draw.matrix(h, q, 1 / math.sqrt(q))
        t[p + "ffn_norm.weight"] = draw.norm(h)
        gate, up = draw.matrix(f, h, inner), draw.matrix(f, h, inner)
        if a == "phi3":
            t[p + "ffn_up.weight"] = np.concatenate([gate, up])
        else:
            t[p + "ffn_gate.weight"], t[p + "ffn_up.weight"] = gate, up
        t[p + "ffn_down.weight"] = draw.matrix(h, f, 1.5 / math.sqrt(f))
        if gemma:
            t[p + "post_attention_norm.weight"], t[p + "post_ffw_norm.weight"] = draw.norm(h), draw.norm(h)
    t["output_norm.weight"] = draw.norm(h)
    if s.get("untied"):
        t["output.weight"] = draw.matrix(s["v"], h, 1.5 / math.sqrt(h))
    if "llama3" in s:
        t["rope_freqs.weight"] = llama3_factors(s)
    if "longrope" in s:
        i = np.arange(s["d"] // 2)
        t["rope_factors_short.weight"] = (1 + i / 128).astype(np.float32)
        t["rope_factors_long.weight"] = (1 + i * i / 64).astype(np.float32)
    return t


def llama3_factors(s):
    # As the published configuration of Llama 3.1 defines its scaling: divisors of the plain frequencies.
    c = s["llama3"]
    freq = s["meta"]["rope.freq_base"] ** -(np.arange(0, s["d"], 2) / s["d"])
    wave = 2 * math.pi / freq
    old = c["original_max_position_embeddings"]
    smooth = (old / wave - c["low_freq_factor"]) / (c["high_freq_factor"] - c["low_freq_factor"])
    mid = 1 / ((1 - smooth) / c["factor"] + smooth)
    out = np.where(wave < old / c["high_freq_factor"], 1.0, np.where(wave > old / c["low_freq_factor"], c["factor"], mid))
    return out.astype(np.float32)


# ---- vocabularies: the smallest that each loader takes ----

def spm_vocabulary(n, gemma):
    """Control tokens, 256 bytes, single characters, then pairs."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if gemma else ["<unk>", "<s>", "</s>"]
    tokens = [(t, -1000.0, 2 if t == "<unk>" else 3) for t in special]
    tokens += [(f"<0x{b:02X}>", -1000.0, 6) for b in range(256)]
    pieces = ["▁"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces += ["▁t", "he", "in", "▁a", "er", "on", "an", "re", "▁s", "at", "en", "or", "es", "is", "it"]
    tokens += [(p, -float(i), 1) for i, p in enumerate(pieces)]
    assert n <= len(tokens), n
    ids = dict(bos=2, eos=1, unk=3, pad=0) if gemma else dict(bos=1, eos=2, unk=0)
    return tokens[:n], ids


def byte_characters():
    """The printable stand-ins for bytes that byte-level BPE uses."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [table[b] for b in range(256)]


def bpe_vocabulary(n):
    tokens = [(c, 1) for c in byte_characters()]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["t h", "h e", "i n", "e r", "Ġ t", "a n", "Ġ a", "o n", "r e", "Ġ s", "a t", "e n", "o r",
              "e s", "i s", "i t", "o u", "e d", "Ġ w", "Ġ o", "a l"]
    merges = merges[: n - len(tokens) - len(special)]
    tokens += [(m.replace(" ", ""), 1) for m in merges] + [(t, 3) for t in special]
    assert len(tokens) == n, (len(tokens), n)
    return tokens, merges, dict(bos=n - 3, eos=n - 1, pad=n - 3)


def add_tokenizer(w, s):
    if s["arch"].startswith("qwen"):
        tokens, merges, ids = bpe_vocabulary(s["v"])
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("qwen2")
        w.add_token_list([t for t, _ in tokens])
        w.add_token_types([k for _, k in tokens])
        w.add_token_merges(merges)
        w.add_add_bos_token(False)
    else:
        tokens, ids = spm_vocabulary(s["v"], s["arch"].startswith("gemma"))
        w.add_tokenizer_model("llama")
        w.add_tokenizer_pre("default")
        w.add_token_list([t for t, _, _ in tokens])
        w.add_token_scores([x for _, x, _ in tokens])
        w.add_token_types([k for _, _, k in tokens])
        w.add_unk_token_id(ids["unk"])
        w.add_add_bos_token(True)
    w.add_bos_token_id(ids["bos"])
    w.add_eos_token_id(ids["eos"])


# ---- GGUF ----

class Quantizer:
    """ggml's own encoder for the block formats."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                                 ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def encode(self, x, kind):
        x = np.ascontiguousarray(x, dtype=np.float32)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.empty((x.shape[0], x.shape[1] // block * size), dtype=np.uint8)
        n = self.lib.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
        assert n == out.nbytes, (kind, n, out.nbytes)
        return out


def encode(x, kinds, index, quantizer):
    """A matrix in the index-th of the encodings; in Q5_0 when its rows do not fill that one's blocks."""
    kind = T[kinds[index % len(kinds)]]
    if kind in (T.F16, T.BF16):
        return gguf.quants.quantize(x, kind), kind
    if x.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = T.Q5_0
    return quantizer.encode(x, kind), kind


def write_gguf(path, name, s, quantizer):
    w = gguf.GGUFWriter(path, s["arch"])
    a = s["arch"]
    w.add_name("random weights")
    w.add_context_length(CONTEXT)
    w.add_block_count(s["layers"])
    w.add_embedding_length(s["h"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"])
    w.add_layer_norm_rms_eps(EPS)
    if s["d"] * s["heads"] != s["h"]:
        w.add_key_length(s["d"])
        w.add_value_length(s["d"])
    if a in ("llama", "phi3"):
        w.add_rope_dimension_count(s.get("rotary", s["d"]))
    for key, value in s.get("meta", {}).items():
        key = f"{a}.{key}"
        if isinstance(value, str):
            w.add_string(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        else:
            w.add_float32(key, value)
    add_tokenizer(w, s)
    index = 0
    for tensor, x in weights(name, s).items():
        if x.ndim == 2 and "encode" in s:
            if tensor == "token_embd.weight":
                kinds = {"LEGACY": ["Q8_0"], "KQUANTS": ["Q6_K"]}.get(
                    "LEGACY" if s["encode"] is LEGACY else "KQUANTS" if s["encode"] is KQUANTS else "", ["F16"])
                data, kind = encode(x, kinds, 0, quantizer)
            else:
                data, kind = encode(x, s["encode"], index, quantizer)
                index += 1
            if kind == T.F16:
                w.add_tensor(tensor, data)
            else:
                w.add_tensor(tensor, data, raw_dtype=kind)
        else:
            w.add_tensor(tensor, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- Hugging Face folders ----

def unpermute(w, heads):
    """The converters interleave the two halves of each head of llama's q and k; this undoes it."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def hf_tensors(name, s):
    a, out = s["arch"], {}
    gemma = a.startswith("gemma")
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "attn_qkv": "self_attn.qkv_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if gemma:
        names |= {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
                  "post_ffw_norm": "post_feedforward_layernorm"}
    if a == "phi3":
        names |= {"ffn_up": "mlp.gate_up_proj"}
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for tensor, x in weights(name, s).items():
        base, kind = tensor.rsplit(".", 1)
        if base.startswith("rope_"):
            continue  # lives in config.json
        if gemma and base.endswith("norm"):
            x = x - 1
        if base.startswith("blk."):
            _, l, part = base.split(".")
            if a == "llama" and part in ("attn_q", "attn_k"):
                x = unpermute(x, s["heads"] if part == "attn_q" else s["kv"])
            out[f"model.layers.{l}.{names[part]}.{kind}"] = x
        else:
            out[f"{top[base]}.{kind}"] = x
    return out


ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama"), "qwen2": ("Qwen2ForCausalLM", "qwen2"),
                 "qwen3": ("Qwen3ForCausalLM", "qwen3"), "gemma2": ("Gemma2ForCausalLM", "gemma2"),
                 "gemma3": ("Gemma3ForCausalLM", "gemma3_text"), "phi3": ("Phi3ForCausalLM", "phi3")}


def hf_config(name, s, dtype, style):
    a, m = s["arch"], s.get("meta", {})
    gemma = a.startswith("gemma")
    architecture, model_type = ARCHITECTURES[a]
    ids = (bpe_vocabulary(s["v"])[2] if a.startswith("qwen") else spm_vocabulary(s["v"], gemma)[1])
    c = {
        "architectures": [architecture], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": ids["bos"], "eos_token_id": ids["eos"],
        "head_dim": s["d"], "hidden_size": s["h"], "initializer_range": 0.02, "intermediate_size": s["ffn"],
        "max_position_embeddings": CONTEXT, "model_type": model_type, "num_attention_heads": s["heads"],
        "num_hidden_layers": s["layers"], "num_key_value_heads": s["kv"], "rms_norm_eps": EPS,
        "tie_word_embeddings": not s.get("untied", False), "use_cache": True, "vocab_size": s["v"],
    }
    c["dtype" if style == 5 else "torch_dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]
    c["transformers_version"] = "5.0.0" if style == 5 else "4.51.3"
    if gemma:
        c |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": s["d"],
              "sliding_window": m["attention.sliding_window"], "pad_token_id": ids["pad"],
              "attn_logit_softcapping": m.get("attn_logit_softcapping"),
              "final_logit_softcapping": m.get("final_logit_softcapping")}
        del c["tie_word_embeddings"]  # transformers leaves out a default: tied
    else:
        c["hidden_act"] = "silu"
    if a == "llama":
        c |= {"mlp_bias": False, "pretraining_tp": 1}
    if a == "qwen2":
        c |= {"use_sliding_window": False, "sliding_window": CONTEXT, "max_window_layers": s["layers"]}
        del c["attention_bias"], c["head_dim"]
    if a == "qwen3":
        c |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": s["layers"]}
    if a == "phi3":
        c |= {"sliding_window": m.get("attention.sliding_window"), "partial_rotary_factor": s.get("rotary", s["d"]) / s["d"],
              "original_max_position_embeddings": m.get("rope.scaling.original_context_length", CONTEXT),
              "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        del c["head_dim"]
    theta, scaling = m.get("rope.freq_base", 10000.0), None
    if "llama3" in s:
        scaling = {"rope_type": "llama3", **s["llama3"]}
    elif m.get("rope.scaling.type") == "yarn":
        scaling = {"rope_type": "yarn", "factor": m["rope.scaling.factor"],
                   "original_max_position_embeddings": m["rope.scaling.original_context_length"]}
    elif m.get("rope.scaling.type") == "linear":
        scaling = {"rope_type": "linear", "factor": m["rope.scaling.factor"]}
    elif "longrope" in s:
        w = weights(name, s)
        scaling = {"type": "longrope", "short_factor": w["rope_factors_short.weight"].tolist(),
                   "long_factor": w["rope_factors_long.weight"].tolist()}
    if style == 4:
        c["rope_theta"], c["rope_scaling"] = theta, scaling
        if a == "gemma3":
            c |= {"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}
    elif a == "gemma3":
        kinds = ["full_attention" if (l + 1) % 6 == 0 else "sliding_attention" for l in range(s["layers"])]
        c |= {"layer_types": kinds,
              "rope_parameters": {"full_attention": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    else:
        c["rope_parameters"] = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    return dict(sorted(c.items()))


def hf_tokenizer(s):
    """tokenizer.json, written out by hand as the library serialises it."""
    if s["arch"].startswith("qwen"):
        tokens, merges, _ = bpe_vocabulary(s["v"])
        special = [(i, t) for i, (t, k) in enumerate(tokens) if k == 3]
        pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                   r"|\s+(?!\S)|\s+")
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                 "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": {t: i for i, (t, k) in enumerate(tokens) if k == 1}, "merges": [m.split(" ") for m in merges]}
        parts = {"normalizer": {"type": "NFC"},
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                     {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                     {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
                 "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                                    "use_regex": False},
                 "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}}
    else:
        tokens, ids = spm_vocabulary(s["v"], s["arch"].startswith("gemma"))
        special = [(i, t) for i, (t, _, k) in enumerate(tokens) if k in (2, 3)]
        names = {t for t, _, _ in tokens}
        merges = [[t[0], t[1:]] for t, _, k in tokens if k == 1 and len(t) == 2 and t[0] in names and t[1:] in names]
        model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                 "vocab": {t: i for i, (t, _, _) in enumerate(tokens)}, "merges": merges}
        bos = tokens[ids["bos"]][0]
        gemma = s["arch"].startswith("gemma")
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        parts = {"normalizer": replace if gemma else
                 {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]},
                 "pre_tokenizer": None,
                 "post_processor": {"type": "TemplateProcessing",
                                    "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                    "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                             {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
                                    "special_tokens": {bos: {"id": bos, "ids": [ids["bos"]], "tokens": [bos]}}},
                 "decoder": {"type": "Sequence", "decoders": [
                     {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                     {"type": "Fuse"}] + ([] if gemma else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])}}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, t in special]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts, "model": model}


def raw(x, dtype):
    if dtype == "BF16":
        return gguf.quants.quantize(x, T.BF16).tobytes()
    return x.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_safetensors(path, tensors, dtype):
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, x in tensors.items():
        b = raw(x, dtype)
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + len(b)]}
        offset += len(b)
        blobs.append(b)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return offset


def write_folder(folder, name, dtype, shards, style):
    s = SPECS[name]
    folder.mkdir(parents=True)
    tensors = hf_tensors(name, s)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
    else:
        names = list(tensors)
        index, total = {}, 0
        for i in range(shards):
            part = names[len(names) * i // shards : len(names) * (i + 1) // shards]
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            total += write_safetensors(folder / file, {n: tensors[n] for n in part}, dtype)
            index |= {n: file for n in part}
        text = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(text, indent=2) + "\n")
    config = hf_config(name, s, dtype, style)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(hf_tokenizer(s), ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out", type=Path)
    ap.add_argument("--ggml", help="path of libggml-base.so, whose quantiser writes the quantised models")
    a = ap.parse_args()
    quantizer = Quantizer(a.ggml) if a.ggml else None
    a.out.mkdir(parents=True, exist_ok=True)
    for name, s in SPECS.items():
        if s.get("encode") in (LEGACY, KQUANTS) and quantizer is None:
            print(f"{name}: left out (no --ggml)")
            continue
        write_gguf(a.out / f"{name}.gguf", name, s, quantizer)
    for folder, spec in FOLDERS.items():
        shutil.rmtree(a.out / "hf" / folder, ignore_errors=True)
        write_folder(a.out / "hf" / folder, *spec)


if __name__ == "__main__":
    main()
