#!/usr/bin/env python3
"""Token ids that are not ours, for engine/tests/tokenizer.rs.

    make.py MODELS LLAMA_CPP_SOURCE LLAMA_CPP_BUILD

MODELS holds the four development models; the llama.cpp folders are those that its Python package's source builds.
Writes, beside this script: corpus.json, MODEL.json (ids by llama.cpp of the real vocabularies), crossing.gguf and
spaced.gguf (small vocabularies trained here on the corpus), pre.json (ids of crossing.gguf under every pre-tokenizer name), spaced.json,
*.tokenizer.json with tokenizer_json.json (their ids by the tokenizers package), and versions.json. See README.md.
"""
import collections
import importlib.metadata
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from corpus import SPECIAL, texts

HERE = pathlib.Path(__file__).parent
MODELS = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]


def build(source, lib):
    exe = pathlib.Path(tempfile.mkdtemp()) / "llama_ids"
    subprocess.run(
        ["cc", "-O1", "-o", exe, HERE / "llama_ids.c", f"-I{source}/include", f"-I{source}/ggml/include",
         f"-L{lib}/bin", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{lib}/bin"], check=True)
    return exe


def llama_ids(exe, model, strings, **overrides):
    records = b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))
    args = [x for k, v in overrides.items() for x in (
        k.replace("__", "."), "bool" if isinstance(v, bool) else "str", str(v).lower() if isinstance(v, bool) else v)]
    out = subprocess.run([exe, model, *args], input=records, check=True, stdout=subprocess.PIPE).stdout
    lines = [[int(x) for x in line.split()] for line in out.decode().split("\n")[:-1]]
    ends, rows = lines[0], lines[1:]
    assert len(rows) == 3 * len(strings), (model, overrides, len(rows))
    return {"end_of_generation": ends, "as_text": rows[0::3], "as_tokens": rows[1::3], "whole": rows[2::3]}


def compact(ids):
    """as_tokens and whole only where they differ: null means the same as the row before."""
    return {
        "end_of_generation": ids["end_of_generation"],
        "as_text": ids["as_text"],
        "as_tokens": [b if b != a else None for a, b in zip(ids["as_text"], ids["as_tokens"])],
        "whole": [c if c != b else None for b, c in zip(ids["as_tokens"], ids["whole"])],
    }


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / name).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf8")


def writer(path, model, name):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(name)
    for add in (w.add_context_length, w.add_embedding_length, w.add_block_count, w.add_feed_forward_length,
                w.add_head_count):
        add(8)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model(model)
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


# Markers of the small vocabularies.
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<bos>", "<eos>", "<|end|>"]
DEFINED = ["<tool_call>", "</tool_call>"]


def crossing(strings):
    """A byte-level BPE trained without cutting text into words: where a pre-tokenizer cuts shows in the ids."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = [s for s in strings if not any(m in s for m in CONTROL + DEFINED)]
    tok.train_from_iterator(words, trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    model = json.loads(tok.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(m) for m in model["merges"]]
    w = writer(HERE / "crossing.gguf", "gpt2", "crossing")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens + CONTROL + DEFINED)
    w.add_token_types([1] * len(tokens) + [3] * len(CONTROL) + [4] * len(DEFINED))
    w.add_token_merges(merges)
    w.add_bos_token_id(len(tokens) + CONTROL.index("<s>"))
    w.add_eos_token_id(len(tokens) + CONTROL.index("<eos>"))
    finish(w)
    return tokens, merges, model


def rust(name):
    """An expression of pre.rs (the published list of letters is long)."""
    source = (HERE / "../../engine/src/tokenizer/pre.rs").read_text(encoding="utf8")
    literals = "".join(re.findall(r'r"([^"]*)"', source[source.index(f"const {name}:"):].split(";")[0]))
    return re.sub(r"\\u\{([0-9A-F]+)\}", lambda m: chr(int(m[1], 16)), literals)


# Published expressions of families for which llama.cpp has approximations (it knows no \\p{Lu}, and sees no U+3000 in a
# class of ideographs): their ids come from the tokenizers package.
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(c)s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(c)s"
         r"|%(n)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
PUBLISHED = {
    "tekken": [CASED % {"c": "", "n": r"\p{N}"}],
    "gpt-4o": [CASED % {"c": CONTRACTIONS, "n": r"\p{N}{1,3}"}],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek-llm": [r"[\r\n]", rust("DEEPSEEK_LETTERS"), rust("DEEPSEEK_MARKS"), r"\s+$", DEEPSEEK_CJK, r"\p{N}+"],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", CASED % {"c": CONTRACTIONS, "n": r"\p{N}{1,3}"}],
}
SAME_AS = {name: "gpt-4o" for name in ("llama4", "kanana2", "talkie", "minimax-m2")} | {"cohere2moe": "tiny_aya"}


def published_ids(name, model, strings):
    tok = Tokenizer(models.BPE(
        vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], ignore_merges=name == "tekken"))
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in PUBLISHED[name]]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.add_tokens(CONTROL + DEFINED)  # gives the ids of crossing.gguf
    tok.add_special_tokens(CONTROL)
    tok.encode_special_tokens = True
    return [tok.encode(s).ids for s in strings]


def pre_names():
    """The names that engine/src/tokenizer/pre.rs knows."""
    source = (HERE / "../../engine/src/tokenizer/pre.rs").read_text(encoding="utf8")
    table = source[source.index("static TABLE"):source.index("/// A pre-tokenizer, compiled.")]
    return sorted(set(re.findall(r'"([a-z0-9_.-]+)"', table)))


def pre(exe, model, strings):
    groups = {}
    for name in pre_names():
        ids = llama_ids(exe, HERE / "crossing.gguf", strings, tokenizer__ggml__pre=name)
        adds_bos = ids["whole"][1] != ids["as_tokens"][1]
        family = SAME_AS.get(name, name)
        reference = "llama.cpp"
        if family in PUBLISHED:
            reference, ids["as_text"] = "tokenizers", published_ids(family, model, strings)
        key = (reference, adds_bos, json.dumps(ids["as_text"]))
        groups.setdefault(key, []).append(name)
    write("pre.json", [
        {"names": names, "reference": reference, "adds_bos": adds_bos, "ids": json.loads(ids)}
        for (reference, adds_bos, ids), names in groups.items()])


def spaced(exe, strings):
    """A SentencePiece BPE with byte fallback, as GGUF; ids by llama.cpp, which must be SentencePiece's own."""
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "corpus.txt"
        counts = collections.Counter("".join(strings))  # rare characters are left to the byte tokens
        kept = ("".join(c for c in s if counts[c] >= 6 and c >= " ") for s in strings if s not in SPECIAL)
        lines.write_text("\n".join(kept) + "\n", encoding="utf8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=f"{folder}/m", model_type="bpe", vocab_size=2000, byte_fallback=True,
            character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=True, split_by_unicode_script=False, split_by_number=False, split_by_whitespace=True,
            allow_whitespace_only_pieces=True, max_sentencepiece_length=12,
            control_symbols=["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|end|>"], user_defined_symbols=DEFINED, unk_id=0, bos_id=1, eos_id=2, minloglevel=2)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(pathlib.Path(f"{folder}/m.model").read_bytes())
    sp = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    proto.normalizer_spec.add_dummy_prefix = False
    without = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    n = sp.get_piece_size()
    kind = lambda i: (2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i)
                      else 4 if sp.id_to_piece(i) in DEFINED else 1)
    w = writer(HERE / "spaced.gguf", "llama", "spaced")
    w.add_token_list([sp.id_to_piece(i) for i in range(n)])
    w.add_token_scores([sp.get_score(i) for i in range(n)])
    w.add_token_types([kind(i) for i in range(n)])
    finish(w)
    path = HERE / "spaced.gguf"
    cases = {
        "prefix": llama_ids(exe, path, strings),
        "no_prefix": llama_ids(exe, path, strings, tokenizer__ggml__add_space_prefix=False),
        "phi3": llama_ids(exe, path, strings, general__name="Phi-3 like")}
    for name, ids in cases.items():
        own = [(without if name == "no_prefix" else sp).encode(s) for s in strings]
        differ = [i for i, row in enumerate(own) if row != ids["as_text"][i]]
        # llama.cpp lets plain text merge into a control token, which SentencePiece never does.
        merged = [i for i in differ if any(kind(t) == 3 for t in ids["as_text"][i])]
        for i in merged:
            ids["as_text"][i] = own[i]
        left = [strings[i] for i in differ if i not in merged]
        print(f"spaced, {name}: {len(merged)} by SentencePiece, which also differs from llama.cpp on {left}")
    write("spaced.json", {name: compact(ids) for name, ids in cases.items()})
    return sp


def tokenizer_json(model, sp, strings):
    """Two tokenizer.json files and their ids by the tokenizers package."""
    files = {}
    tok = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+(?!\S)"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(CONTROL)
    tok.add_tokens(DEFINED)
    bos = tok.token_to_id("<s>")
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    files["bytelevel"] = tok
    vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    score = {p: sp.get_score(i) for p, i in vocab.items()}
    plain = {p for p, i in vocab.items() if not (sp.is_control(i) or sp.is_unknown(i) or sp.is_byte(i) or p in DEFINED)}
    merges = [(p[:k], p[k:]) for p in sorted(plain, key=lambda p: -score[p]) for k in range(1, len(p))
              if p[:k] in plain and p[k:] in plain]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>"])
    tok.add_tokens(DEFINED)
    files["spaced"] = tok
    out = {}
    for name, tok in files.items():
        tok.save(str(HERE / f"{name}.tokenizer.json"), pretty=False)
        rows = {"whole": [tok.encode(s).ids for s in strings]}
        rows["as_tokens"] = [tok.encode(s, add_special_tokens=False).ids for s in strings]
        rows["decoded"] = [tok.decode(ids, skip_special_tokens=False) for ids in rows["as_tokens"]]
        tok.encode_special_tokens = True
        rows["as_text"] = [tok.encode(s, add_special_tokens=False).ids for s in strings]
        out[name] = {
            "as_text": rows["as_text"],
            "as_tokens": [b if b != a else None for a, b in zip(rows["as_text"], rows["as_tokens"])],
            "whole": [c if c != b else None for b, c in zip(rows["as_tokens"], rows["whole"])],
            "decoded": [d if d != s else None for s, d in zip(strings, rows["decoded"])]}
    write("tokenizer_json.json", out)


def main():
    folder, source, lib = map(pathlib.Path, sys.argv[1:4])
    exe = build(source, lib)
    strings = texts()
    (HERE / "corpus.json").write_text(
        json.dumps(strings, ensure_ascii=True, indent=0) + "\n", encoding="utf8")
    for model in MODELS:
        write(f"{model}.json", compact(llama_ids(exe, folder / f"{model}.gguf", strings)))
    _, _, model = crossing(strings)
    pre(exe, model, strings)
    sp = spaced(exe, strings)
    tokenizer_json(model, sp, strings)
    versions = {p: importlib.metadata.version(p) for p in ("gguf", "tokenizers", "sentencepiece")}
    versions["llama.cpp"] = [p.name for p in lib.glob("bin/libllama.so.*.*")]
    write("versions.json", versions)


if __name__ == "__main__":
    main()
