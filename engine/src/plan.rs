//! From a spec to the list of operations a device runs: one builder for every architecture.
//!
//! It knows no family by name, and reads no file; weights are named and their shapes checked.

use std::collections::HashMap;

use tensor::kv::{KvLayout, KvSettings};
use tensor::op::{
    Buffer, BufferId, Epilogue, Kind, Norm, Op, Part, Plan, Rope, RopeId, Rows, Weight, WeightId,
};

use crate::spec::{ModelSpec, Needed};
use crate::{Error, Result};

/// Step buffers stay below this: of the 64 MiB that a process may hold beyond weights, cache and tokenizer, the rest
/// is for a device's own scratch, code and stacks.
const BUFFER_BYTES: usize = 40 << 20;
/// A step's logits stay below this where the batch allows.
const LOGIT_BYTES: usize = 8 << 20;
/// Beyond this many rows the products gain nothing.
const MOST_STEP_TOKENS: usize = 512;
/// A prompt chunk is never shorter, whatever the widths.
const LEAST_STEP_TOKENS: usize = 64;

/// Builds the plan of a model whose prepared tensors are `kind_of`, for steps of up to `batch` sequences over a cache
/// that stores as `kv` says.
///
/// The last layer's output projection and feed-forward run only on positions whose logits are asked for.
///
/// # Errors
/// A spec that is not sane; a tensor that is missing or of another shape than the spec asks for.
pub fn build(
    spec: &ModelSpec,
    kind_of: &dyn Fn(&str) -> Option<Kind>,
    batch: usize,
    kv: &KvSettings,
) -> Result<Plan> {
    spec.validate()?;
    kv.check()?;
    check_tensors(spec, kind_of)?;
    let mut b = Builder {
        kind_of,
        weights: Vec::new(),
        ids: HashMap::new(),
        buffers: Vec::new(),
        ops: Vec::new(),
        eps: spec.eps,
    };
    let heads_width = spec.heads * spec.head_dim;

    let x = b.buffer("residual", spec.hidden, Rows::Tokens);
    let qkv = b.buffer("qkv", spec.qkv_width(), Rows::Tokens);
    let attn = b.buffer("attention", heads_width, Rows::Tokens);
    let inner = Inner {
        x,
        attn,
        ffn: b.buffer("feed-forward", spec.ffn, Rows::Tokens),
        out: spec.post_norms.then(|| b.buffer("block output", spec.hidden, Rows::Tokens)),
    };
    let last = Inner {
        x: b.buffer("residual of logit rows", spec.hidden, Rows::Logits),
        attn: b.buffer("attention of logit rows", heads_width, Rows::Logits),
        ffn: b.buffer("feed-forward of logit rows", spec.ffn, Rows::Logits),
        out: spec.post_norms.then(|| b.buffer("block output of logit rows", spec.hidden, Rows::Logits)),
    };
    let logits = b.buffer("logits", spec.vocab, Rows::Logits);

    let table = b.weight("token_embd.weight")?;
    b.ops.push(Op::Embed { table, scale: spec.embed_scale, dst: x });
    let mut kv = KvLayout::new(*kv);
    let mut ropes: Vec<Rope> = Vec::new();
    for l in 0..spec.layers() {
        let rope = spec.rope_of(l).resolve(spec.context);
        let rope = ropes.iter().position(|r| *r == rope).unwrap_or_else(|| {
            ropes.push(rope);
            ropes.len() - 1
        });
        let window = spec.window(l);
        let layer = kv.push(spec.kv_heads, spec.head_dim, spec.head_dim, window);
        b.attention(spec, l, layer, RopeId(rope as u32), window, [x, qkv, attn])?;
        if l + 1 == spec.layers() {
            b.ops.push(Op::SelectLogitRows { src: x, dst: last.x });
            b.ops.push(Op::SelectLogitRows { src: attn, dst: last.attn });
            b.rest_of_layer(spec, l, &last)?;
        } else {
            b.rest_of_layer(spec, l, &inner)?;
        }
    }
    let head = if spec.tied_head { "token_embd" } else { "output" };
    let part = b.part(head, spec.head_bias && !spec.tied_head, 0)?;
    let norm = Some(b.norm("output_norm")?);
    let then = spec.logit_softcap.map_or(Epilogue::Store, Epilogue::SoftCap);
    b.ops.push(Op::Linear { src: last.x, norm, parts: vec![part], then, dst: logits });

    let width = |rows: Rows| b.buffers.iter().filter(|b| b.rows == rows).map(|b| b.width * 4).sum::<usize>();
    let max_logit_rows = (LOGIT_BYTES / width(Rows::Logits)).clamp(1, MOST_STEP_TOKENS).max(batch);
    let left = BUFFER_BYTES.saturating_sub(max_logit_rows * width(Rows::Logits));
    let whole_blocks = left / width(Rows::Tokens) / LEAST_STEP_TOKENS * LEAST_STEP_TOKENS;
    let max_step_tokens = whole_blocks.clamp(LEAST_STEP_TOKENS, MOST_STEP_TOKENS).max(batch);
    Ok(Plan {
        ops: b.ops,
        buffers: b.buffers,
        weights: b.weights,
        ropes,
        kv,
        logits,
        vocab: spec.vocab,
        max_step_tokens,
        max_logit_rows,
    })
}

/// Checks that every tensor a spec needs is there in the shape it needs.
///
/// # Errors
/// The first that is missing or differs.
pub fn check_tensors(spec: &ModelSpec, kind_of: &dyn Fn(&str) -> Option<Kind>) -> Result<()> {
    for Needed { name, shape } in spec.needed() {
        let Some(kind) = kind_of(&name) else {
            return Err(tensor::Error::Missing { what: format!("tensor {name} {shape}") }.into());
        };
        if !shape.fits(&kind) {
            let found = match kind {
                Kind::Panels { rows, cols, .. } => format!("[{rows}, {cols}]"),
                Kind::Vector { len } | Kind::Bytes { len } => format!("[{len}]"),
            };
            return Err(tensor::Error::malformed(name, shape.to_string(), found).into());
        }
    }
    Ok(())
}

/// The buffers of a layer after its attention.
struct Inner {
    x: BufferId,
    attn: BufferId,
    ffn: BufferId,
    /// Where a block's output waits for its norm.
    out: Option<BufferId>,
}

struct Builder<'a> {
    kind_of: &'a dyn Fn(&str) -> Option<Kind>,
    weights: Vec<Weight>,
    ids: HashMap<String, WeightId>,
    buffers: Vec<Buffer>,
    ops: Vec<Op>,
    eps: f32,
}

impl Builder<'_> {
    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        self.buffers.push(Buffer { name, width, rows });
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn weight(&mut self, name: &str) -> Result<WeightId> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        let missing = || Error::from(tensor::Error::Missing { what: format!("tensor {name}") });
        let kind = (self.kind_of)(name).ok_or_else(missing)?;
        let id = WeightId(self.weights.len() as u32);
        self.weights.push(Weight { name: name.to_owned(), kind });
        self.ids.insert(name.to_owned(), id);
        Ok(id)
    }

    fn norm(&mut self, name: &str) -> Result<Norm> {
        Ok(Norm { weight: self.weight(&format!("{name}.weight"))?, eps: self.eps })
    }

    fn part(&mut self, name: &str, bias: bool, dst_col: usize) -> Result<Part> {
        let weight = self.weight(&format!("{name}.weight"))?;
        let bias = if bias { Some(self.weight(&format!("{name}.bias"))?) } else { None };
        Ok(Part { weight, bias, dst_col })
    }

    /// q, k, v, their rotation and storing, and the attention itself.
    fn attention(
        &mut self,
        spec: &ModelSpec,
        l: usize,
        layer: usize,
        rope: RopeId,
        window: Option<usize>,
        [x, qkv, attn]: [BufferId; 3],
    ) -> Result<()> {
        let name = |part: &str| format!("blk.{l}.{part}");
        let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let parts = if spec.fused_qkv {
            vec![self.part(&name("attn_qkv"), spec.qkv_bias, 0)?]
        } else {
            vec![
                self.part(&name("attn_q"), spec.qkv_bias, 0)?,
                self.part(&name("attn_k"), spec.qkv_bias, q)?,
                self.part(&name("attn_v"), spec.qkv_bias, q + kv)?,
            ]
        };
        let norm = Some(self.norm(&name("attn_norm"))?);
        self.ops.push(Op::Linear { src: x, norm, parts, then: Epilogue::Store, dst: qkv });
        let (q_norm, k_norm) = if spec.qk_norms {
            (Some(self.norm(&name("attn_q_norm"))?), Some(self.norm(&name("attn_k_norm"))?))
        } else {
            (None, None)
        };
        self.ops.push(Op::RopeStore { qkv, layer, heads: spec.heads, q_norm, k_norm, rope });
        self.ops.push(Op::Attention {
            qkv,
            dst: attn,
            layer,
            heads: spec.heads,
            scale: spec.attention_scale,
            softcap: spec.attention_softcap,
            window,
        });
        Ok(())
    }

    /// From the attention's output to the layer's.
    fn rest_of_layer(&mut self, spec: &ModelSpec, l: usize, on: &Inner) -> Result<()> {
        let name = |part: &str| format!("blk.{l}.{part}");
        let output = self.part(&name("attn_output"), spec.output_bias, 0)?;
        self.add_block(on, on.attn, output, &name("post_attention_norm"))?;
        let gate = self.part(&name("ffn_gate"), spec.ffn_bias, 0)?;
        let up = self.part(&name("ffn_up"), spec.ffn_bias, 0)?;
        let norm = Some(self.norm(&name("ffn_norm"))?);
        let then = Epilogue::Glu(spec.activation);
        self.ops.push(Op::Linear { src: on.x, norm, parts: vec![gate, up], then, dst: on.ffn });
        let down = self.part(&name("ffn_down"), spec.ffn_bias, 0)?;
        self.add_block(on, on.ffn, down, &name("post_ffw_norm"))
    }

    /// Adds a block's output to the residual stream, through its norm where the spec has one.
    fn add_block(&mut self, on: &Inner, src: BufferId, part: Part, post_norm: &str) -> Result<()> {
        let linear = |then, dst| Op::Linear { src, norm: None, parts: vec![part], then, dst };
        match on.out {
            None => self.ops.push(linear(Epilogue::Add, on.x)),
            Some(out) => {
                self.ops.push(linear(Epilogue::Store, out));
                let norm = self.norm(post_norm)?;
                self.ops.push(Op::NormAdd { src: out, norm, dst: on.x });
            }
        }
        Ok(())
    }
}
