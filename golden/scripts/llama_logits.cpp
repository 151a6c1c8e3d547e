// The logits of a GGUF model by the llama.cpp library, at every position, as raw little-endian float32.
//
// usage: llama_logits MODEL.gguf CONTEXT OUT.bin < ids      (ids: decimal, separated by white space)
//        OUT.bin holds [tokens, vocabulary]. The context is printed as the library rounded it.
//
// Key and value cache in float32, no flash attention, no repacked weights, two threads: the library's most exact path.
// It knows nothing of plumb. build_llama_logits.sh compiles it.
#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: llama_logits MODEL.gguf CONTEXT OUT.bin < ids\n");
        return 2;
    }
    std::vector<llama_token> ids;
    for (int id; scanf("%d", &id) == 1;) ids.push_back(id);

    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 1;

    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t) atoi(argv[2]);
    cp.n_batch = cp.n_ubatch = 256;
    cp.n_threads = cp.n_threads_batch = 2;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.swa_full = true;
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;
    if (ids.empty() || ids.size() > llama_n_ctx(ctx)) {
        fprintf(stderr, "%zu ids, a context of %u\n", ids.size(), llama_n_ctx(ctx));
        return 1;
    }
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE * out = fopen(argv[3], "wb");
    if (!out) { perror(argv[3]); return 1; }

    const int total = (int) ids.size(), chunk = 256;
    llama_batch batch = llama_batch_init(chunk, 0, 1);
    for (int start = 0; start < total; start += chunk) {
        batch.n_tokens = std::min(chunk, total - start);
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = ids[start + i];
            batch.pos[i] = start + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(ctx, batch) != 0) { fprintf(stderr, "llama_decode failed\n"); return 1; }
        for (int i = 0; i < batch.n_tokens; i++) {
            const float * z = llama_get_logits_ith(ctx, i);
            if (fwrite(z, sizeof(float), vocab, out) != (size_t) vocab) { perror(argv[3]); return 1; }
        }
    }
    if (fclose(out) != 0) { perror(argv[3]); return 1; }
    printf("context %u vocabulary %d tokens %d\n", llama_n_ctx(ctx), vocab, total);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
}
