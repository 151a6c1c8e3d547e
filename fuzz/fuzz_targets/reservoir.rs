//! Any head of a `.plumb` file, behind a correct checksum; and any bytes as a whole file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensor::reservoir::{Reservoir, fuzz_head};

const HUGE: u64 = 2 << 20;

fuzz_target!(|input: (u8, u64, &str, &str)| {
    let (pages, file_len, table, model) = input;
    // Most heads should get past the first checks, so sizes are mostly plausible.
    let (data_offset, file_len) = match pages % 4 {
        0 => (file_len, file_len),
        _ => (HUGE, HUGE * (1 + file_len % 1024)),
    };
    fuzz_head(table, model, data_offset, file_len);
    let _ = Reservoir::from_bytes("fuzz", table.as_bytes());
});
