//! What a model file's metadata mean: defaults, refusals, and the plan that follows.

mod fake;

use engine::Error;
use engine::arch::{FAMILIES, HfModel, from_gguf, from_hf};
use engine::plan;
use engine::rope::RopeScaling;
use engine::spec::ModelSpec;
use fake::{Fake, flags, float, kinds, metadata, table, uint};
use tensor::files::Value;
use tensor::op::{Activation, Epilogue, Op, RopeLayout, Rows};

fn spec(arch: &str, more: &[(&str, Value)]) -> ModelSpec {
    from_gguf(&metadata(arch, more), &table()).unwrap()
}

fn refusal(arch: &str, more: &[(&str, Value)]) -> String {
    from_gguf(&metadata(arch, more), &table()).unwrap_err().to_string()
}

#[test]
fn gemma3_defaults_where_the_file_is_silent() {
    // The 270M file has a window but no second base, no pattern and no soft caps.
    let s = spec(
        "gemma3",
        &[("block_count", uint(18)), ("attention.sliding_window", uint(512)), ("rope.freq_base", float(1e6))],
    );
    let full: Vec<usize> = (0..18).filter(|&l| s.window(l).is_none()).collect();
    assert_eq!(full, [5, 11, 17]);
    assert_eq!(s.rope_of(5).base, 1e6);
    assert_eq!(s.rope_of(0).base, 1e4);
    assert_eq!((s.embed_scale, s.activation), (8.0, Activation::GeluTanh));
    assert!(s.qk_norms && s.post_norms && s.attention_softcap.is_none() && s.logit_softcap.is_none());
    assert_eq!(s.attention_scale, 0.25);
}

#[test]
fn gemma2_defaults_where_the_file_is_silent() {
    let s = spec("gemma2", &[("context_length", uint(8192))]);
    assert_eq!(s.windows, [Some(4096), None, Some(4096)]);
    assert_eq!((s.attention_softcap, s.logit_softcap), (Some(50.0), Some(30.0)));
    assert!(!s.qk_norms && s.local_rope.is_none());
}

#[test]
fn the_27b_gemmas_scale_scores_by_width_per_head() {
    let big = [("block_count", uint(46)), ("embedding_length", uint(64)), ("attention.key_length", uint(32))];
    assert_eq!(spec("gemma2", &big).attention_scale, 0.25); // 64 / 4 heads
    let small = [("block_count", uint(42)), ("attention.key_length", uint(64))];
    assert_eq!(spec("gemma2", &small).attention_scale, 0.125);
}

#[test]
fn only_llama_in_gguf_rotates_adjacent_channels() {
    for f in FAMILIES {
        let adjacent = spec(f.name, &[]).rope.layout == RopeLayout::Adjacent;
        assert_eq!(adjacent, f.name == "llama", "{}", f.name);
    }
}

#[test]
fn a_window_as_long_as_the_context_hides_nothing() {
    let s = spec("phi3", &[("attention.sliding_window", uint(1024))]);
    assert_eq!(s.window(0), None);
    let s = spec("phi3", &[("attention.sliding_window", uint(1023))]);
    assert_eq!(s.window(2), Some(1023));
}

#[test]
fn a_pattern_may_be_a_period_or_a_flag_per_layer() {
    let window = ("attention.sliding_window", uint(16));
    let by_flag = ("attention.sliding_window_pattern", flags(&[false, true, true]));
    assert_eq!(spec("gemma3", &[window.clone(), by_flag]).windows, [None, Some(16), Some(16)]);
    let by_period = ("attention.sliding_window_pattern", uint(2));
    assert_eq!(spec("gemma3", &[window.clone(), by_period]).windows, [Some(16), None, Some(16)]);
    let short = ("attention.sliding_window_pattern", flags(&[true]));
    assert!(refusal("gemma3", &[window, short]).contains("a flag for each of 3 layers"));
}

#[test]
fn an_unknown_architecture_is_named_with_the_known_ones() {
    let e = from_gguf(&metadata("mamba", &[]), &table()).unwrap_err();
    assert!(matches!(&e, Error::UnknownArchitecture { found, .. } if found == "mamba"));
    let text = e.to_string();
    for f in FAMILIES {
        assert!(text.contains(f.name), "{text}");
    }
}

#[test]
fn hostile_metadata_are_refused_with_the_field_named() {
    let cases: &[(&str, Value)] = &[
        ("attention.head_count", uint(0)),
        ("attention.head_count", uint(7)),
        ("attention.head_count", uint(u32::MAX as u64)),
        ("attention.head_count_kv", uint(0)),
        ("attention.head_count_kv", uint(3)),
        ("attention.head_count_kv", uint(8)),
        ("attention.key_length", uint(15)),
        ("attention.key_length", uint(0)),
        ("attention.value_length", uint(32)),
        ("block_count", uint(0)),
        ("block_count", uint(u32::MAX as u64)),
        ("embedding_length", uint(0)),
        ("feed_forward_length", uint(0)),
        ("feed_forward_length", uint(1 << 31)),
        ("context_length", uint(0)),
        ("context_length", uint(u32::MAX as u64)),
        ("rope.dimension_count", uint(18)),
        ("rope.dimension_count", uint(3)),
        ("rope.dimension_count", uint(0)),
        ("rope.freq_base", float(0.0)),
        ("rope.freq_base", float(f64::NAN)),
        ("rope.freq_base", Value::Str("big".into())),
        ("rope.scaling.type", Value::Str("spiral".into())),
        ("rope.scaling.factor", float(-2.0)),
        ("rope.scaling.factor", float(f64::INFINITY)),
        ("attention.layer_norm_rms_epsilon", float(-1.0)),
        ("attention.layer_norm_rms_epsilon", float(f64::NAN)),
        ("expert_count", uint(8)),
    ];
    for f in FAMILIES {
        for (key, value) in cases {
            let text = refusal(f.name, &[(key, value.clone())]);
            let word = key.rsplit('.').next().unwrap();
            let word = word.split('_').next().unwrap();
            assert!(text.contains(word) || text.contains("width"), "{} {key} {value:?}: {text}", f.name);
        }
    }
}

#[test]
fn more_tokens_than_embedding_rows_are_refused() {
    let tokens = Value::Array(tensor::files::Array::Str(vec![String::new(); 201]));
    assert!(refusal("llama", &[("tokenizer.ggml.tokens", tokens)]).contains("at most 200 tokens"));
}

#[test]
fn a_missing_tensor_and_a_wrong_shape_are_named() {
    let s = spec("llama", &[]);
    let mut have = kinds(&s);
    let wrong = have["blk.2.attn_k.weight"];
    have.insert("blk.1.attn_q.weight".into(), wrong);
    let e = plan::build(&s, &|n| have.get(n).copied(), 1, &tensor::kv::KvSettings::default()).unwrap_err();
    assert_eq!(e.to_string(), "blk.1.attn_q.weight: expected [64, 64], found [32, 64]");
    have.remove("blk.0.ffn_up.weight");
    let e = plan::build(&s, &|n| have.get(n).copied(), 1, &tensor::kv::KvSettings::default()).unwrap_err();
    assert_eq!(e.to_string(), "missing tensor blk.0.ffn_up.weight [96, 64]");
}

#[test]
fn a_step_reads_each_weight_once() {
    for f in FAMILIES {
        for tied in [true, false] {
            let s = ModelSpec { tied_head: tied, ..spec(f.name, &[]) };
            let have = kinds(&s);
            let p =
                plan::build(&s, &|n| have.get(n).copied(), 1, &tensor::kv::KvSettings::default()).unwrap();
            assert_eq!(p.weights.len(), have.len(), "{}: every tensor is used", f.name);
            let all: u64 = p.weights.iter().map(|w| w.kind.bytes()).sum();
            let table = have["token_embd.weight"].bytes();
            let row = 64 * 4;
            let head = if tied { table } else { have["output.weight"].bytes() };
            let rest = all - table - if tied { 0 } else { head };
            assert_eq!(p.work(1, 0, 1).bytes_read.weights, rest + row + head, "{}", f.name);
        }
    }
}

#[test]
fn the_last_layer_finishes_only_rows_that_are_asked_for() {
    let s = spec("gemma3", &[("attention.sliding_window", uint(16))]);
    let have = kinds(&s);
    let p = plan::build(&s, &|n| have.get(n).copied(), 4, &tensor::kv::KvSettings::default()).unwrap();
    let none = p.work(64, 0, 0);
    let one = p.work(64, 0, 1);
    let last: u64 = [
        "blk.2.attn_output.weight",
        "blk.2.ffn_gate.weight",
        "blk.2.ffn_up.weight",
        "blk.2.ffn_down.weight",
        "token_embd.weight",
    ]
    .iter()
    .map(|n| have[*n].bytes())
    .sum();
    assert!(one.bytes_read.weights - none.bytes_read.weights >= last);
    assert_eq!(p.buffer(p.logits).rows, Rows::Logits);
    assert!(matches!(p.ops.last(), Some(Op::Linear { then: Epilogue::Store, .. })));
}

#[test]
fn layers_of_one_window_share_a_cache_group() {
    let s = spec("gemma3", &[("block_count", uint(18)), ("attention.sliding_window", uint(512))]);
    let have = kinds(&s);
    let p = plan::build(&s, &|n| have.get(n).copied(), 1, &tensor::kv::KvSettings::default()).unwrap();
    assert_eq!(p.kv.layers.len(), 18);
    let windows: Vec<_> = p.kv.groups.iter().map(|g| (g.window, g.block_bytes)).collect();
    let layer = 2 * (16 + 16) * 64 * 2;
    assert_eq!(windows, [(Some(512), 15 * layer), (None, 3 * layer)]);
    assert_eq!(p.ropes.len(), 1, "both bases are 10000 here");
}

#[test]
fn step_buffers_keep_to_the_memory_contract() {
    // Published shapes: smollm2-135m, gemma3-270m, qwen2.5-1.5b, llama-3.1-8b, and a 70B.
    let shapes = [
        (30, 576, 9, 3, 64, 1536, 49152),
        (18, 640, 4, 1, 256, 2048, 262144),
        (28, 1536, 12, 2, 128, 8960, 151936),
        (32, 4096, 32, 8, 128, 14336, 128256),
        (80, 8192, 64, 8, 128, 28672, 128256),
    ];
    for (layers, hidden, heads, kv_heads, head_dim, ffn, vocab) in shapes {
        let s = spec("llama", &[]);
        let s = ModelSpec { windows: vec![None; layers], hidden, heads, kv_heads, head_dim, ffn, vocab, ..s };
        let s = ModelSpec { rope: engine::rope::RopeSpec { dims: head_dim, ..s.rope.clone() }, ..s };
        let have = kinds(&s);
        let p = plan::build(&s, &|n| have.get(n).copied(), 1, &tensor::kv::KvSettings::default()).unwrap();
        assert!(p.buffer_bytes() <= 40 << 20, "{hidden}: {}", p.buffer_bytes());
        assert!((64..=512).contains(&p.max_step_tokens) && p.max_step_tokens.is_multiple_of(64), "{hidden}");
        assert!(p.max_logit_rows >= 1);
    }
}

#[test]
fn hugging_face_folders_give_the_same_spec_as_their_gguf() {
    let config = serde_json::json!({
        "model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "intermediate_size": 96, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
        "use_sliding_window": false, "sliding_window": 16
    });
    let folder = Fake::default().with("model.embed_tokens.weight", 200, 64).with(
        "model.layers.0.self_attn.q_proj.bias",
        1,
        64,
    );
    let HfModel { spec: hf, family, .. } = from_hf(&config, &folder).unwrap();
    assert_eq!(family.name, "qwen2");
    let gguf = from_gguf(&metadata("qwen2", &[]), &table().with("blk.0.attn_q.bias", 1, 64)).unwrap();
    assert_eq!(hf, gguf);
}

#[test]
fn the_text_model_inside_a_multimodal_gemma3_is_found() {
    let config = serde_json::json!({ "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "num_hidden_layers": 7, "intermediate_size": 96, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 32,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16,
        "rope_scaling": { "rope_type": "linear", "factor": 8.0 }
    }});
    let folder = Fake::default().with("language_model.model.embed_tokens.weight", 200, 64);
    let HfModel { spec: s, family, prefix } = from_hf(&config, &folder).unwrap();
    assert_eq!(prefix, "language_model.model.");
    assert_eq!((family.hf_norm_offset, s.attention_scale, s.tied_head), (1.0, 0.25, true));
    assert_eq!(s.rope_of(5).scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(s.rope_of(6).scaling, RopeScaling::None);
    assert_eq!(s.windows[4..], [Some(32), None, Some(32)]);
}

#[test]
fn a_spec_survives_the_header_of_a_prepared_file() {
    let freqs: Vec<f32> = (0..8).map(|i| 1.0 + i as f32 * 0.3).collect();
    let yarn = [("rope.scaling.type", Value::Str("yarn".into())), ("rope.scaling.factor", float(4.0))];
    let s = from_gguf(&metadata("llama", &yarn), &table().with_vector("rope_freqs.weight", &freqs)).unwrap();
    let text = serde_json::to_string(&s).unwrap();
    assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), s);
}

#[test]
fn longrope_is_chosen_by_the_file_alone() {
    let (short, long) = (vec![1.0f32; 8], vec![2.0f32; 8]);
    let of = |original: u64| {
        let more = [("rope.scaling.original_context_length", uint(original))];
        let file = table()
            .with_vector("rope_factors_short.weight", &short)
            .with_vector("rope_factors_long.weight", &long);
        from_gguf(&metadata("phi3", &more), &file).unwrap()
    };
    assert_eq!(of(1024).rope.resolve(1024).inv_freq[0], 1.0);
    let stretched = of(256).rope.resolve(1024);
    assert_eq!(stretched.inv_freq[0], 0.5);
    // sqrt(1 + ln 4 / ln 256)
    assert!((stretched.magnitude - 1.25f64.sqrt()).abs() < 1e-12);
}
