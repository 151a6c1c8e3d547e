// Token ids by llama.cpp, for make.py: loads a vocabulary and tokenizes every record of standard input.
//
//   llama_ids MODEL [KEY str|bool VALUE]... < records
//
// A record is a 32-bit little-endian length and that many bytes. Per record three lines: ids with markers as text, ids
// with markers as tokens, and the latter with what llama.cpp puts around a whole text. KEY overrides metadata. The first
// line gives the end-of-generation ids.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void ids(const struct llama_vocab * vocab, const char * text, int32_t len, bool whole, bool special) {
    static llama_token tokens[1 << 20];
    int32_t n = llama_tokenize(vocab, text, len, tokens, 1 << 20, whole, special);
    if (n < 0) {
        exit(3);
    }
    for (int32_t i = 0; i < n; i++) {
        printf(i ? " %d" : "%d", tokens[i]);
    }
    putchar('\n');
}

int main(int argc, char ** argv) {
    struct llama_model_kv_override overrides[8];
    memset(overrides, 0, sizeof overrides);
    struct llama_model_params params = llama_model_default_params();
    llama_log_set(quiet, NULL);
    params.vocab_only = true;
    for (int i = 0; i < 7 && 3 * i + 4 < argc; i++) {
        struct llama_model_kv_override * o = &overrides[i];
        snprintf(o->key, sizeof o->key, "%s", argv[3 * i + 2]);
        if (strcmp(argv[3 * i + 3], "bool") == 0) {
            o->tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
            o->val_bool = strcmp(argv[3 * i + 4], "true") == 0;
        } else {
            o->tag = LLAMA_KV_OVERRIDE_TYPE_STR;
            snprintf(o->val_str, sizeof o->val_str, "%s", argv[3 * i + 4]);
        }
        params.kv_overrides = overrides;
    }
    struct llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) {
        return 2;
    }
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    for (int32_t id = 0; id < llama_vocab_n_tokens(vocab); id++) {
        if (llama_vocab_is_eog(vocab, id)) {
            printf("%d ", id);
        }
    }
    putchar('\n');
    uint32_t len;
    while (fread(&len, 4, 1, stdin) == 1) {
        char * text = malloc(len + 1);
        if (len && fread(text, len, 1, stdin) != 1) {
            return 4;
        }
        text[len] = 0;
        ids(vocab, text, len, false, false);
        ids(vocab, text, len, false, true);
        ids(vocab, text, len, true, true);
        free(text);
    }
    return 0;
}
