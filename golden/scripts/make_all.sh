#!/bin/bash
# Makes every golden of this folder again: models, logits, accuracy. `cargo xtask golden` calls it.
#
# usage: make_all.sh LLAMA_CPP_DIR ORACLE.py MODELS_DIR [TOOLS_DIR]
#        LLAMA_CPP_DIR: a built llama.cpp (src/, build/bin/); ORACLE.py: the float64 oracle; MODELS_DIR: the four real models;
#        TOOLS_DIR: where the built helper is kept (default: a temporary folder)
# Needs python3 with numpy and gguf, cmake, ninja and a C++ compiler. Half an hour on two cores, most of it the real models.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
peer=$(realpath "$1"); oracle=$(realpath "$2"); real=$(realpath "$3"); tools=${4:-$(mktemp -d)}
scripts=$(dirname "$(realpath "$0")"); golden=$(dirname "$scripts")
"$scripts/build_llama_logits.sh" "$peer" "$tools"
export LD_LIBRARY_PATH="$tools:$peer/build/bin"
python3 "$scripts/make_models.py" "$golden/models" --ggml "$peer/build/bin/libggml-base.so"
python3 "$scripts/make_goldens.py" "$golden/models" "$golden/logits" --oracle "$oracle" --llama "$tools/llama_logits"
for name in smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
  python3 "$scripts/make_accuracy.py" "$real/$name.gguf" "$golden/accuracy" --oracle "$oracle" \
    --tokenize "$peer/build/bin/llama-tokenize"
done
