//! The kernel tables: every kernel compiled once per instruction set, reachable only through a check of the CPU, with
//! lengths checked at this boundary.

use tensor::Encoding;
use tensor::op::RopeLayout;
use tensor::panels::{PANEL_ROWS, codes_offset, panel_bytes};

use crate::attention::packed::{self, MixedArgs, ScoreArgs, ValueArgs, WeighArgs};
use crate::attention::store::{self, PackArgs, RotateArgs};
use crate::attention::{self, FoldArgs, OutputArgs, QueryRow, TileArgs, state_len};
use crate::isa::Isa;
use crate::panel::float::{self, FloatArgs, FloatKernel};
use crate::panel::{self, IntArgs, IntKernel, XBlock, kinds};
use crate::rows::{self, FinishArgs, HalfArgs, NormArgs, QuantArgs, RopeArgs};

/// The kernels of one instruction set. Holding one proves that the CPU has it.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) isa: Isa,
    kernels: &'static Kernels,
}

/// Pointers to kernels; unsafe to call unless the CPU has the table's instructions and the arguments are valid.
struct Kernels {
    int: [IntKernel; 12],
    float: [FloatKernel; 3],
    norm: unsafe fn(NormArgs),
    quantise: unsafe fn(QuantArgs),
    rope: unsafe fn(RopeArgs),
    to_half: unsafe fn(HalfArgs),
    finish: unsafe fn(FinishArgs),
    tile: unsafe fn(TileArgs),
    fold: unsafe fn(FoldArgs),
    output: unsafe fn(OutputArgs),
    rotate: unsafe fn(RotateArgs),
    pack: unsafe fn(PackArgs),
    packed: packed::Kernels,
    #[cfg(test)]
    map: unsafe fn(MapArgs),
}

/// Applies a function of `math` to 16 numbers, for its tests.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct MapArgs {
    function: Function,
    x: *mut f32,
}

/// A function of `math`.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    Exp,
    Silu,
    GeluTanh,
    Tanh,
}

/// # Safety
/// 16 f32 at x.
#[cfg(test)]
#[inline(always)]
unsafe fn map<S: crate::lanes::Lanes>(a: MapArgs) {
    use crate::math;
    // SAFETY: the caller's contract.
    unsafe {
        let x = S::load(a.x);
        let y = match a.function {
            Function::Exp => math::exp::<S>(x),
            Function::Silu => math::silu::<S>(x),
            Function::GeluTanh => math::gelu_tanh::<S>(x),
            Function::Tanh => math::tanh::<S>(x),
        };
        S::store(a.x, y);
    }
}

/// One module per table: each kernel with the table's target features, then the list of them.
macro_rules! kernels {
    ($module:ident, $lanes:ty $(, $features:literal)?) => {
        mod $module {
            use super::*;
            use kinds::*;

            macro_rules! row {
                ($name:ident, $args:ty, $call:path) => {
                    $(#[target_feature(enable = $features)])?
                    unsafe fn $name(a: $args) {
                        // SAFETY: the table is handed out only where the CPU has these features; arguments are the
                        // caller's contract.
                        unsafe { $call(a) }
                    }
                };
            }
            row!(q4_0, IntArgs, panel::product::<$lanes, Q4_0>);
            row!(q4_1, IntArgs, panel::product::<$lanes, Q4_1>);
            row!(q5_0, IntArgs, panel::product::<$lanes, Q5_0>);
            row!(q5_1, IntArgs, panel::product::<$lanes, Q5_1>);
            row!(q8_0, IntArgs, panel::product::<$lanes, Q8_0>);
            row!(q2_k, IntArgs, panel::product::<$lanes, Q2_K>);
            row!(q3_k, IntArgs, panel::product::<$lanes, Q3_K>);
            row!(q4_k, IntArgs, panel::product::<$lanes, Q4_K>);
            row!(q5_k, IntArgs, panel::product::<$lanes, Q5_K>);
            row!(q6_k, IntArgs, panel::product::<$lanes, Q6_K>);
            row!(iq4_nl, IntArgs, panel::product::<$lanes, IQ4_NL>);
            row!(iq4_xs, IntArgs, panel::product::<$lanes, IQ4_XS>);
            row!(f32, FloatArgs, float::product::<$lanes, float::F32>);
            row!(f16, FloatArgs, float::product::<$lanes, float::F16>);
            row!(bf16, FloatArgs, float::product::<$lanes, float::BF16>);
            row!(norm, NormArgs, rows::norm::<$lanes>);
            row!(quantise, QuantArgs, rows::quantise::<$lanes>);
            row!(rope, RopeArgs, rows::rope::<$lanes>);
            row!(to_half, HalfArgs, rows::to_half::<$lanes>);
            row!(finish, FinishArgs, rows::finish::<$lanes>);
            row!(tile, TileArgs, attention::tile::<$lanes>);
            row!(fold, FoldArgs, attention::fold::<$lanes>);
            row!(output, OutputArgs, attention::output::<$lanes>);
            row!(rotate, RotateArgs, store::rotate::<$lanes>);
            row!(pack, PackArgs, store::pack::<$lanes>);
            row!(scores_f16, ScoreArgs, packed::scores::<$lanes, 0>);
            row!(scores_2, ScoreArgs, packed::scores::<$lanes, 2>);
            row!(scores_3, ScoreArgs, packed::scores::<$lanes, 3>);
            row!(scores_4, ScoreArgs, packed::scores::<$lanes, 4>);
            row!(scores_5, ScoreArgs, packed::scores::<$lanes, 5>);
            row!(scores_6, ScoreArgs, packed::scores::<$lanes, 6>);
            row!(scores_8, ScoreArgs, packed::scores::<$lanes, 8>);
            row!(sinks, ScoreArgs, packed::sink_scores::<$lanes>);
            row!(weigh, WeighArgs, packed::weigh::<$lanes>);
            row!(values_f16, ValueArgs, packed::values::<$lanes, 0>);
            row!(values_2, ValueArgs, packed::values::<$lanes, 2>);
            row!(values_3, ValueArgs, packed::values::<$lanes, 3>);
            row!(values_4, ValueArgs, packed::values::<$lanes, 4>);
            row!(values_5, ValueArgs, packed::values::<$lanes, 5>);
            row!(values_6, ValueArgs, packed::values::<$lanes, 6>);
            row!(values_8, ValueArgs, packed::values::<$lanes, 8>);
            row!(finish_packed, WeighArgs, packed::finish::<$lanes>);
            #[cfg(test)]
            row!(map, MapArgs, super::map::<$lanes>);

            pub(super) static KERNELS: Kernels = Kernels {
                // In the order of `int_index`.
                int: [q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs],
                float: [f32, f16, bf16],
                norm,
                quantise,
                rope,
                to_half,
                finish,
                tile,
                fold,
                output,
                rotate,
                pack,
                packed: packed::Kernels {
                    scores: [scores_f16, scores_2, scores_3, scores_4, scores_5, scores_6, scores_8],
                    sinks,
                    weigh,
                    values: [values_f16, values_2, values_3, values_4, values_5, values_6, values_8],
                    finish: finish_packed,
                },
                #[cfg(test)]
                map,
            };
        }
    };
}

kernels!(portable, crate::lanes::portable::Portable);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::lanes::avx2::Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, crate::lanes::avx512::Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl");
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512_vnni,
    crate::lanes::avx512::Avx512Vnni,
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
);

/// Row of an integer encoding in [`Kernels::int`].
fn int_index(e: Encoding) -> usize {
    use Encoding::*;
    match e {
        Q4_0 => 0,
        Q4_1 => 1,
        Q5_0 => 2,
        Q5_1 => 3,
        Q8_0 => 4,
        Q2_K => 5,
        Q3_K => 6,
        Q4_K => 7,
        Q5_K => 8,
        Q6_K => 9,
        IQ4_NL => 10,
        IQ4_XS => 11,
        F32 | F16 | BF16 => panic!("{e} has no integer product"),
    }
}

impl Table {
    /// The table, where this CPU can run it.
    pub(crate) fn of(isa: Isa) -> Option<Table> {
        if !isa.is_supported() {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        let kernels = match isa {
            Isa::Portable => &portable::KERNELS,
            Isa::Avx2 => &avx2::KERNELS,
            Isa::Avx512 => &avx512::KERNELS,
            Isa::Avx512Vnni => &avx512_vnni::KERNELS,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let kernels = &portable::KERNELS;
        Some(Table { isa, kernels })
    }

    /// acc `[columns][count][16]` += panels · x, for `count` adjoining panels of an integer encoding with rows of `cols`
    /// elements and x `[cols/32][columns]`.
    pub(crate) fn int_product(
        &self,
        e: Encoding,
        panels: &[u8],
        cols: usize,
        x: &[XBlock],
        columns: usize,
        acc: &mut [f32],
    ) {
        let count = panels.len() / panel_bytes(e, cols);
        assert!(count > 0 && panels.len() == count * panel_bytes(e, cols), "whole panels");
        self.int_product_of(e, [panels.as_ptr(), std::ptr::null()], count, cols, x, columns, acc);
    }

    /// The same for two panels that lie apart.
    pub(crate) fn int_product_pair(
        &self,
        e: Encoding,
        panels: [&[u8]; 2],
        cols: usize,
        x: &[XBlock],
        columns: usize,
        acc: &mut [f32],
    ) {
        assert!(panels.iter().all(|p| p.len() == panel_bytes(e, cols)), "one panel each");
        self.int_product_of(e, panels.map(<[u8]>::as_ptr), 2, cols, x, columns, acc);
    }

    #[allow(clippy::too_many_arguments)] // a product's operands
    fn int_product_of(
        &self,
        e: Encoding,
        panels: [*const u8; 2],
        count: usize,
        cols: usize,
        x: &[XBlock],
        columns: usize,
        acc: &mut [f32],
    ) {
        assert!(columns > 0 && x.len() == cols / 32 * columns, "activations");
        assert_eq!(acc.len(), columns * count * PANEL_ROWS, "accumulators");
        let args = IntArgs {
            panels,
            panel_bytes: panel_bytes(e, cols),
            count,
            blocks: cols / e.block_len(),
            codes_offset: codes_offset(e, cols),
            x: x.as_ptr(),
            columns,
            acc: acc.as_mut_ptr(),
        };
        // SAFETY: the CPU has the instructions, as `of` checked; the callers and this function checked the lengths.
        unsafe { (self.kernels.int[int_index(e)])(args) }
    }

    /// out `[columns][count][16]` = panels · x, for `count` adjoining panels of a float encoding and x
    /// `[columns][cols]`.
    pub(crate) fn float_product(&self, e: Encoding, panels: &[u8], cols: usize, x: &[f32], out: &mut [f32]) {
        let bytes = panel_bytes(e, cols);
        let (count, columns) = (panels.len() / bytes, x.len() / cols);
        assert!(panels.len() == count * bytes && x.len() == columns * cols, "whole panels and columns");
        assert_eq!(out.len(), columns * count * PANEL_ROWS, "outputs");
        let kernel = match e {
            Encoding::F32 => self.kernels.float[0],
            Encoding::F16 => self.kernels.float[1],
            Encoding::BF16 => self.kernels.float[2],
            other => panic!("{other} has no float product"),
        };
        let args = FloatArgs {
            panels: panels.as_ptr(),
            panel_bytes: bytes,
            count,
            cols,
            x: x.as_ptr(),
            columns,
            out: out.as_mut_ptr(),
        };
        // SAFETY: the CPU has the instructions; the lengths were checked above.
        unsafe { kernel(args) }
    }

    /// out = x / rms(x) · weight.
    pub(crate) fn norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == out.len(), "norm lengths");
        let args = NormArgs {
            x: x.as_ptr(),
            weight: weight.as_ptr(),
            out: out.as_mut_ptr(),
            len: x.len(),
            eps,
            add: false,
        };
        // SAFETY: as above.
        unsafe { (self.kernels.norm)(args) }
    }

    /// x = x / rms(x) · weight.
    pub(crate) fn norm_in_place(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        assert_eq!(x.len(), weight.len(), "norm lengths");
        let p = x.as_mut_ptr();
        let args = NormArgs { x: p, weight: weight.as_ptr(), out: p, len: x.len(), eps, add: false };
        // SAFETY: as above; the kernel allows out to be x.
        unsafe { (self.kernels.norm)(args) }
    }

    /// out += x / rms(x) · weight.
    pub(crate) fn norm_add(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == weight.len() && x.len() == out.len(), "norm lengths");
        let args = NormArgs {
            x: x.as_ptr(),
            weight: weight.as_ptr(),
            out: out.as_mut_ptr(),
            len: x.len(),
            eps,
            add: true,
        };
        // SAFETY: as above.
        unsafe { (self.kernels.norm)(args) }
    }

    /// Quantises x (whole blocks of 32) to every `stride`-th block from `out` on.
    ///
    /// # Safety
    /// `out` is valid for `stride·(blocks − 1) + 1` blocks that no other thread touches at those indices.
    pub(crate) unsafe fn quantise(&self, x: &[f32], out: *mut XBlock, stride: usize) {
        assert!(x.len().is_multiple_of(32), "whole blocks");
        let args = QuantArgs { x: x.as_ptr(), blocks: x.len() / 32, out, stride };
        // SAFETY: the CPU has the instructions; `out` is the caller's contract.
        unsafe { (self.kernels.quantise)(args) }
    }

    /// Turns the first `table.len()` channels of a head.
    pub(crate) fn rope(&self, x: &mut [f32], table: &[f32], layout: RopeLayout) {
        assert!(x.len() >= table.len() && table.len().is_multiple_of(2), "rotary lengths");
        let args = RopeArgs { x: x.as_mut_ptr(), table: table.as_ptr(), pairs: table.len() / 2, layout };
        // SAFETY: as above.
        unsafe { (self.kernels.rope)(args) }
    }

    /// out = x as f16.
    pub(crate) fn store_half(&self, x: &[f32], out: &mut [u16]) {
        assert!(x.len() == out.len() && x.len().is_multiple_of(16), "multiples of 16");
        let args = HalfArgs { x: x.as_ptr(), out: out.as_mut_ptr(), len: x.len() };
        // SAFETY: as above.
        unsafe { (self.kernels.to_half)(args) }
    }

    /// What follows a product.
    ///
    /// # Safety
    /// The pointers are valid for what [`FinishArgs`] says, and no other thread touches those outputs.
    pub(crate) unsafe fn finish(&self, args: FinishArgs) {
        // SAFETY: the CPU has the instructions; the rest is the caller's contract.
        unsafe { (self.kernels.finish)(args) }
    }

    /// Attends one tile.
    ///
    /// # Safety
    /// The pointers are valid for what [`TileArgs`] says, and no other thread touches the rows' states.
    pub(crate) unsafe fn tile(&self, rows: &[QueryRow], args: TileArgs) {
        let args = TileArgs { rows: rows.as_ptr(), count: rows.len(), ..args };
        // SAFETY: the CPU has the instructions; the rest is the caller's contract.
        unsafe { (self.kernels.tile)(args) }
    }

    /// Attends one tile of which a half is packed.
    ///
    /// # Safety
    /// The pointers are valid for what [`MixedArgs`] says, and no other thread touches the rows' states.
    pub(crate) unsafe fn mixed_tile(&self, rows: &[QueryRow], args: MixedArgs) {
        let args = MixedArgs { rows: rows.as_ptr(), count: rows.len(), ..args };
        // SAFETY: the CPU has the instructions; the rest is the caller's contract.
        unsafe { packed::mixed_tile(&self.kernels.packed, args) }
    }

    /// state = state ⊕ tile.
    pub(crate) fn fold(&self, state: &mut [f32], tile: &[f32]) {
        assert!(state.len() == tile.len() && state.len() >= state_len(0), "state lengths");
        let v_dim = state.len() - state_len(0);
        assert!(v_dim.is_multiple_of(16), "multiples of 16");
        // SAFETY: as above.
        unsafe { (self.kernels.fold)(FoldArgs { state: state.as_mut_ptr(), tile: tile.as_ptr(), v_dim }) }
    }

    /// out = the state's output, normalised.
    pub(crate) fn output(&self, state: &[f32], out: &mut [f32]) {
        assert!(state.len() == state_len(out.len()) && out.len().is_multiple_of(16), "state lengths");
        let args = OutputArgs { state: state.as_ptr(), v_dim: out.len(), out: out.as_mut_ptr() };
        // SAFETY: as above.
        unsafe { (self.kernels.output)(args) }
    }

    /// Rotates a head in place before it is packed, or back.
    pub(crate) fn rotate(&self, x: &mut [f32], signs: &[f32], back: bool) {
        assert_eq!(x.len(), signs.len(), "a sign per channel");
        let args = RotateArgs { x: x.as_mut_ptr(), signs: signs.as_ptr(), dim: x.len(), back };
        // SAFETY: as above.
        unsafe { (self.kernels.rotate)(args) }
    }

    /// Packs a group.
    ///
    /// # Safety
    /// The pointers are valid for what [`PackArgs`] says, and no other thread touches the output.
    pub(crate) unsafe fn pack(&self, args: PackArgs) {
        assert!(args.side.dim.is_multiple_of(16), "multiples of 16");
        // SAFETY: the CPU has the instructions; the rest is the caller's contract.
        unsafe { (self.kernels.pack)(args) }
    }

    /// A function of `math` over 16 numbers.
    #[cfg(test)]
    pub(crate) fn map(&self, function: Function, x: &mut [f32; 16]) {
        // SAFETY: as above.
        unsafe { (self.kernels.map)(MapArgs { function, x: x.as_mut_ptr() }) }
    }
}
