#!/bin/bash
# Builds llama_logits against a built llama.cpp (its source in SRC, its build in BUILD), and, for it alone, a ggml CPU
# library whose GELU is computed in float32: stock ggml looks GELU up in a table of float16, which alone moves the logits
# of a gemma model by about a hundredth.
#
# usage: build_llama_logits.sh LLAMA_CPP_DIR OUT_DIR      (LLAMA_CPP_DIR holds src/ and build/)
#        then: LD_LIBRARY_PATH=OUT_DIR:LLAMA_CPP_DIR/build/bin OUT_DIR/llama_logits MODEL CONTEXT OUT < ids
set -euo pipefail
peer=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); here=$(dirname "$(realpath "$0")")
if [ ! -e "$out/libggml-cpu.so.0" ]; then
  rm -rf "$out/ggml"; mkdir -p "$out/ggml"
  cp -r "$peer/src" "$out/ggml/src"
  sed -i '/^#define GGML_GELU_FP16$/d' "$out/ggml/src/ggml/src/ggml-cpu/vec.h"
  cmake -S "$out/ggml/src" -B "$out/ggml/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >/dev/null
  ninja -j "${JOBS:-2}" -C "$out/ggml/build" ggml-cpu >&2
  cp -a "$out/ggml/build/bin"/libggml-cpu.so* "$out/"
  rm -rf "$out/ggml"
fi
c++ -O2 -std=c++17 -I"$peer/src/include" -I"$peer/src/ggml/include" "$here/llama_logits.cpp" -o "$out/llama_logits" \
  -L"$peer/build/bin" -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath-link,"$peer/build/bin"
echo "$out/llama_logits"
