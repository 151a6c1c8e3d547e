//! Loads of known work by which a machine is measured: reading memory, barriers, empty jobs, and arithmetic in registers,
//! for every kernel table. Each checks what it computed.
//!
//! It does not know what the times mean nor how often a load is repeated; that is the laboratory's.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use memmap2::MmapMut;
use tensor::device::Device;
use tensor::probe::{Load, Pages, Probes};
use tensor::{Error, Result};

use crate::device::{CpuDevice, default_threads};
use crate::isa::Isa;
use crate::lanes::Lanes;
use crate::pool::{Pool, Worker};

/// Bytes that one round of the reading loop takes.
const READ_BYTES: usize = 512;
/// Rounds of one unit of arithmetic.
const ROUNDS: usize = 4096;
/// Blocks of 32 activations that the integer load multiplies: 2 KiB, well within a first-level cache.
const BLOCKS: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The loads of this machine's CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuProbes;

impl Probes for CpuProbes {
    fn kernels(&self) -> Vec<String> {
        Isa::supported().into_iter().map(|isa| isa.name().to_owned()).collect()
    }

    fn threads(&self) -> usize {
        default_threads()
    }

    fn read(&self, kernels: &str, threads: usize, bytes: usize, pages: Pages) -> Result<Box<dyn Load>> {
        let kernel = Kernels::named(kernels)?.read;
        Ok(Box::new(Read::new(kernel, pool(threads)?, bytes, pages)?))
    }

    fn barrier(&self, threads: usize) -> Result<Box<dyn Load>> {
        Ok(Box::new(Barriers(pool(threads)?)))
    }

    fn dispatch(&self, threads: usize) -> Result<Box<dyn Load>> {
        Ok(Box::new(Jobs(pool(threads)?)))
    }

    fn float_peak(&self, kernels: &str, threads: usize) -> Result<Box<dyn Load>> {
        let kernel = Kernels::named(kernels)?;
        Ok(Box::new(Floats { kernel, pool: pool(threads)?, threads }))
    }

    fn integer_peak(&self, kernels: &str, threads: usize) -> Result<Box<dyn Load>> {
        let kernel = Kernels::named(kernels)?;
        Ok(Box::new(Integers::new(kernel, pool(threads)?, threads)))
    }

    fn device(&self, kernels: &str, threads: usize) -> Result<Box<dyn Device>> {
        Ok(Box::new(CpuDevice::new(named(kernels)?, threads)?))
    }
}

/// The table of exactly this name.
fn named(kernels: &str) -> Result<Isa> {
    let isa = Isa::supported().into_iter().find(|isa| isa.name() == kernels);
    isa.ok_or_else(|| Error::unsupported(format!("the {kernels} kernel table"), "this CPU does not run it"))
}

fn pool(threads: usize) -> Result<Pool> {
    if threads == 0 {
        return Err(Error::malformed("threads", "at least 1", "0"));
    }
    Pool::new(threads).map_err(|e| Error::io("a thread of the pool", e))
}

/// Runs `work` on all threads of the pool at once and gives the nanoseconds between the barriers around it.
fn timed(pool: &mut Pool, work: &(dyn Fn(&Worker<'_>) + Sync)) -> u64 {
    let elapsed = AtomicU64::new(0);
    pool.run(&|w| {
        w.barrier();
        let start = Instant::now();
        work(w);
        w.barrier();
        if w.id == 0 {
            elapsed.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    });
    elapsed.into_inner()
}

fn wrong(what: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
    Error::malformed(format!("the result of {what}"), expected.to_string(), found.to_string())
}

/// Kernels of one table; unsafe to call unless the CPU has its instructions and the pointers are valid.
#[derive(Clone, Copy)]
struct Kernels {
    /// Sum of all 32-bit words of so many bytes, a multiple of [`READ_BYTES`].
    read: unsafe fn(*const u8, usize) -> i32,
    /// [`ROUNDS`] rounds of x = x·a + a from 0 in every chain, and the sum of all chains' lanes.
    float: unsafe fn(f32) -> f32,
    /// Products of 512 codes with [`BLOCKS`] blocks, `rounds` times, summed.
    integer: unsafe fn(*const u8, *const i8, usize) -> i32,
    /// Multiply-adds of one call of `float`.
    float_fmas: usize,
}

impl Kernels {
    /// The kernels of a table that this CPU runs.
    fn named(name: &str) -> Result<Kernels> {
        Ok(match named(name)? {
            Isa::Portable => portable(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => avx512_vnni(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable(),
        })
    }
}

/// A table's kernels, compiled with its target features.
macro_rules! kernels {
    ($name:ident, $lanes:ty, $chains:literal $(, $features:literal)?) => {
        fn $name() -> Kernels {
            $(#[target_feature(enable = $features)])?
            unsafe fn read(p: *const u8, bytes: usize) -> i32 {
                // SAFETY: reached only where the CPU has the features; the pointer is the caller's contract.
                unsafe { sum_words::<$lanes>(p, bytes) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn float(a: f32) -> f32 {
                // SAFETY: as above.
                unsafe { chains::<$lanes, $chains>(a) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn integer(w: *const u8, x: *const i8, rounds: usize) -> i32 {
                // SAFETY: as above.
                unsafe { dots::<$lanes>(w, x, rounds) }
            }
            Kernels { read, float, integer, float_fmas: ROUNDS * $chains * 16 }
        }
    };
}

// A fused multiply-add takes four cycles and two start in each, so eight registers must be on their way: more than that
// where there are 32 of them, and six pairs where there are 16.
kernels!(portable, crate::lanes::portable::Portable, 6);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::lanes::avx2::Avx2, 6, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, crate::lanes::avx512::Avx512, 12, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl");
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512_vnni,
    crate::lanes::avx512::Avx512Vnni,
    12,
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
);

/// # Safety
/// `bytes` readable bytes at p, a multiple of [`READ_BYTES`].
#[inline(always)]
unsafe fn sum_words<S: Lanes>(p: *const u8, bytes: usize) -> i32 {
    // SAFETY: all loads lie within the bytes that the caller vouches for.
    unsafe {
        let mut acc = [S::splat_int(0); 4];
        let mut at = 0;
        while at < bytes {
            for i in 0..READ_BYTES / 64 {
                acc[i % 4] = S::add_int(acc[i % 4], S::load_int(p.add(at + 64 * i)));
            }
            at += READ_BYTES;
        }
        total::<S>(acc)
    }
}

/// # Safety
/// The CPU has the instructions.
#[inline(always)]
unsafe fn total<S: Lanes>(acc: [S::I; 4]) -> i32 {
    let mut lanes = [0i32; 16];
    // SAFETY: sixteen lanes have room.
    unsafe {
        let sum = S::add_int(S::add_int(acc[0], acc[1]), S::add_int(acc[2], acc[3]));
        S::store_int(lanes.as_mut_ptr(), sum);
    }
    lanes.into_iter().fold(0, i32::wrapping_add)
}

/// # Safety
/// The CPU has the instructions.
#[inline(always)]
unsafe fn chains<S: Lanes, const N: usize>(a: f32) -> f32 {
    let mut sum = 0.0;
    // SAFETY: the caller's contract; `lanes` has room for one store.
    unsafe {
        let a = S::splat(a);
        let mut x = [S::splat(0.0); N];
        for _ in 0..ROUNDS {
            for x in &mut x {
                *x = S::fma(*x, a, a);
            }
        }
        for x in x {
            let mut lanes = [0f32; 16];
            S::store(lanes.as_mut_ptr(), x);
            sum += lanes.iter().sum::<f32>();
        }
    }
    sum
}

/// # Safety
/// 512 codes of at most 15 at w, 32·[`BLOCKS`] bytes within ±127 at x.
#[inline(always)]
unsafe fn dots<S: Lanes>(w: *const u8, x: *const i8, rounds: usize) -> i32 {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        let w: [S::I; 8] = std::array::from_fn(|g| S::load_int(w.add(64 * g)));
        let mut acc = [S::splat_int(0); 4];
        for _ in 0..rounds {
            // Opaque, or the products of one round could be kept for all.
            let x = std::hint::black_box(x);
            for block in (0..BLOCKS).step_by(4) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::dot::<15>(&w, x.add(32 * (block + i)), *acc);
                }
            }
        }
        total::<S>(acc)
    }
}

/// Memory that is read over and over.
struct Read {
    kernel: unsafe fn(*const u8, usize) -> i32,
    pool: Pool,
    map: MmapMut,
    /// From the mapping's start to the first byte read.
    offset: usize,
    /// Bytes of each thread.
    part: usize,
    /// Sum of all words of each thread's part.
    expected: Vec<i32>,
}

impl Read {
    fn new(
        kernel: unsafe fn(*const u8, usize) -> i32,
        mut pool: Pool,
        bytes: usize,
        pages: Pages,
    ) -> Result<Read> {
        let threads = pool.threads();
        let part = (bytes / threads).next_multiple_of(READ_BYTES).max(READ_BYTES);
        let refused = |_| Error::OutOfMemory {
            what: "memory to read".into(),
            needed_bytes: bytes as u64,
            available_bytes: 0,
        };
        let mut map = MmapMut::map_anon(part * threads + HUGE_PAGE_BYTES).map_err(refused)?;
        #[cfg(target_os = "linux")]
        {
            // Only advice: what was got is not part of any result.
            let _ = map.advise(match pages {
                Pages::Small => memmap2::Advice::NoHugePage,
                Pages::Huge => memmap2::Advice::HugePage,
            });
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        let offset = (map.as_ptr() as usize).next_multiple_of(HUGE_PAGE_BYTES) - map.as_ptr() as usize;
        let base = SendPtr(map[offset..].as_mut_ptr());
        let sums: Vec<AtomicI32> = (0..threads).map(|_| AtomicI32::new(0)).collect();
        // Each thread touches its own part first, so that it lies near it.
        pool.run(&|w| {
            // SAFETY: the part lies within the mapping and is this thread's alone.
            let words =
                unsafe { std::slice::from_raw_parts_mut(base.at(w.id * part).cast::<i32>(), part / 4) };
            let mut state = w.id as u32 + 1;
            let mut sum = 0i32;
            for word in words {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *word = state as i32;
                sum = sum.wrapping_add(*word);
            }
            sums[w.id].store(sum, Ordering::Relaxed);
        });
        let expected = sums.into_iter().map(AtomicI32::into_inner).collect();
        Ok(Read { kernel, pool, map, offset, part, expected })
    }
}

/// A pointer that threads share; each uses its own part of what lies behind it.
#[derive(Clone, Copy)]
struct SendPtr(*mut u8);

// SAFETY: a plain address; the users keep their parts apart.
unsafe impl Send for SendPtr {}
// SAFETY: as above.
unsafe impl Sync for SendPtr {}

impl SendPtr {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

impl Load for Read {
    fn per_unit(&self) -> f64 {
        (self.part * self.expected.len()) as f64
    }

    fn run(&mut self, units: u64) -> Result<u64> {
        let base = SendPtr(self.map[self.offset..].as_mut_ptr());
        let (kernel, part) = (self.kernel, self.part);
        let sums: Vec<AtomicI32> = self.expected.iter().map(|_| AtomicI32::new(0)).collect();
        let elapsed = timed(&mut self.pool, &|w| {
            let mut sum = 0i32;
            for _ in 0..units {
                // SAFETY: the table was checked when the load was made; the part lies within the mapping.
                sum = sum.wrapping_add(unsafe { kernel(base.at(w.id * part), part) });
            }
            sums[w.id].store(sum, Ordering::Relaxed);
        });
        for (expected, found) in self.expected.iter().zip(sums) {
            let (expected, found) = (expected.wrapping_mul(units as i32), found.into_inner());
            if expected != found {
                return Err(wrong("reading memory", expected, found));
            }
        }
        Ok(elapsed)
    }
}

struct Barriers(Pool);

impl Load for Barriers {
    fn per_unit(&self) -> f64 {
        1.0
    }

    fn run(&mut self, units: u64) -> Result<u64> {
        Ok(timed(&mut self.0, &|w| (0..units).for_each(|_| w.barrier())))
    }
}

struct Jobs(Pool);

impl Load for Jobs {
    fn per_unit(&self) -> f64 {
        1.0
    }

    fn run(&mut self, units: u64) -> Result<u64> {
        let start = Instant::now();
        for _ in 0..units {
            self.0.run(&|_| ());
        }
        Ok(start.elapsed().as_nanos() as u64)
    }
}

struct Floats {
    kernel: Kernels,
    pool: Pool,
    threads: usize,
}

impl Load for Floats {
    fn per_unit(&self) -> f64 {
        (2 * self.kernel.float_fmas * self.threads) as f64
    }

    fn run(&mut self, units: u64) -> Result<u64> {
        let kernel = self.kernel;
        // From 0, x·½ + ½ reaches 1 long before a unit ends.
        let expected = (kernel.float_fmas / ROUNDS) as f32;
        let wrong_units = AtomicU64::new(0);
        let elapsed = timed(&mut self.pool, &|_| {
            for _ in 0..units {
                // SAFETY: the table was checked when the load was made.
                let sum = unsafe { (kernel.float)(std::hint::black_box(0.5)) };
                wrong_units.fetch_add(u64::from(sum != expected), Ordering::Relaxed);
            }
        });
        match wrong_units.into_inner() {
            0 => Ok(elapsed),
            n => Err(wrong("multiply-adds", format!("{expected} from every unit"), format!("{n} others"))),
        }
    }
}

struct Integers {
    kernel: unsafe fn(*const u8, *const i8, usize) -> i32,
    pool: Pool,
    threads: usize,
    codes: Vec<u8>,
    x: Vec<i8>,
    /// Of one round.
    expected: i32,
}

impl Integers {
    fn new(kernel: Kernels, pool: Pool, threads: usize) -> Integers {
        let codes: Vec<u8> = (0..512).map(|i| (i * 7 % 16) as u8).collect();
        let x: Vec<i8> = (0..32 * BLOCKS).map(|i| (i * 37 % 255) as i32 - 127).map(|v| v as i8).collect();
        let mut expected = 0i32;
        for block in x.chunks_exact(32) {
            // Byte 4·row + i of group g meets element 4g + i.
            for (at, &code) in codes.iter().enumerate() {
                let (g, i) = (at / 64, at % 4);
                expected = expected.wrapping_add(i32::from(code) * i32::from(block[4 * g + i]));
            }
        }
        Integers { kernel: kernel.integer, pool, threads, codes, x, expected }
    }
}

impl Load for Integers {
    fn per_unit(&self) -> f64 {
        (2 * 512 * BLOCKS * self.threads) as f64
    }

    fn run(&mut self, units: u64) -> Result<u64> {
        let (kernel, codes, x) = (self.kernel, &self.codes, &self.x);
        let expected = self.expected.wrapping_mul(units as i32);
        let found = AtomicI32::new(expected);
        let elapsed = timed(&mut self.pool, &|_| {
            // SAFETY: the table was checked when the load was made; both vectors have the lengths that it reads.
            let sum = unsafe { kernel(codes.as_ptr(), x.as_ptr(), units as usize) };
            if sum != expected {
                found.store(sum, Ordering::Relaxed);
            }
        });
        match found.into_inner() {
            found if found == expected => Ok(elapsed),
            found => Err(wrong("integer products", expected, found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loads check themselves, so that running them is the test; every table and more threads than one.
    #[test]
    fn every_table_does_the_work_that_it_is_timed_for() {
        let probes = CpuProbes;
        for table in probes.kernels() {
            for threads in [1, 2] {
                for pages in [Pages::Small, Pages::Huge] {
                    let mut read = probes.read(&table, threads, 10_000, pages).unwrap();
                    assert!(read.per_unit() >= 10_000.0);
                    for units in [1, 2, 7] {
                        read.run(units).unwrap();
                    }
                }
                probes.float_peak(&table, threads).unwrap().run(2).unwrap();
                probes.integer_peak(&table, threads).unwrap().run(5).unwrap();
                assert_eq!(probes.device(&table, threads).unwrap().info().kernels, table);
            }
        }
        probes.barrier(2).unwrap().run(100).unwrap();
        probes.dispatch(2).unwrap().run(100).unwrap();
    }

    #[test]
    fn a_table_that_is_not_there_is_named() {
        let error = CpuProbes.float_peak("abacus", 1).err().unwrap().to_string();
        assert!(error.contains("abacus"), "{error}");
    }
}
