//! Falsehoods of where the bytes are, and of work that is not done.

use super::{Field, Sprung, gb_per_s, median_of, sum, timed, words};
use crate::Result;
use crate::guards;

/// Bytes that surely lie outside the last cache, within reason.
fn beyond_cache(field: &Field<'_>) -> usize {
    let cache = if field.last_cache_bytes == 0 { 64 << 20 } else { field.last_cache_bytes };
    (2 * cache).clamp(128 << 20, 1 << 30) as usize
}

const SMALL: usize = 128 << 10;

/// GB/s of reading `data` in pieces of SMALL, another piece each time.
fn rotating(field: &Field<'_>, data: &[u64]) -> f64 {
    let pieces: Vec<&[u64]> = data.chunks_exact(SMALL / 8).collect();
    let ns = median_of(field.clock, 3, || {
        for piece in &pieces {
            std::hint::black_box(sum(piece));
        }
    });
    gb_per_s(pieces.len() * SMALL, ns)
}

pub(super) fn same_input(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(beyond_cache(field));
    let piece = &data[..SMALL / 8];
    let best = (0..400).map(|_| timed(field.clock, || sum(piece))).fold(f64::INFINITY, f64::min);
    let truth = rotating(field, &data);
    Sprung::new(
        format!("{:.1} GB/s, best of 400 on the same 128 KiB", gb_per_s(SMALL, best)),
        format!("{truth:.1} GB/s, median over inputs that rotate through {:.0} MB", data.len() as f64 * 8e-6),
        guards::rotated(SMALL as u64, field.last_cache_bytes.max(1 << 20)),
    )
}

pub(super) fn dropped_work(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(beyond_cache(field));
    let bytes = data.len() * 8;
    let start = field.clock.now_ns();
    for _ in 0..10 {
        // Nobody looks at the result, so the compiler need not make it.
        let mut total = 0u64;
        for &word in &data {
            total = total.wrapping_add(word);
        }
        let _ = total;
    }
    let dropped = (field.clock.now_ns() - start).max(1);
    let used = median_of(field.clock, 3, || {
        std::hint::black_box(sum(&data));
    });
    let ceiling = gb_per_s(bytes, used) * 1e9;
    Sprung::new(
        format!("{:.1} GB/s", 10.0 * bytes as f64 / dropped as f64),
        format!("{:.1} GB/s, when the sum is used", ceiling / 1e9),
        guards::below_ceiling(10 * bytes as u64, dropped, ceiling),
    )
}

pub(super) fn cache_resident(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(beyond_cache(field));
    let memory = gb_per_s(
        data.len() * 8,
        median_of(field.clock, 3, || {
            std::hint::black_box(sum(&data));
        }),
    );
    let piece = &data[..SMALL / 8];
    let warm = gb_per_s(
        SMALL * 200,
        median_of(field.clock, 5, || {
            for _ in 0..200 {
                std::hint::black_box(sum(std::hint::black_box(piece)));
            }
        }),
    );
    let rotated = rotating(field, &data);
    let cache = field.last_cache_bytes.max(1 << 20);
    let residency = guards::residency(SMALL as u64, cache, Some(warm / rotated));
    Sprung::new(
        format!("a gap of {:.2} to the memory floor: it runs faster than it can", memory / warm),
        format!(
            "its 128 KiB lie in a cache at {warm:.1} GB/s; rotated through memory they come at {rotated:.1} GB/s"
        ),
        guards::from_memory(residency, SMALL as u64, cache),
    )
}
