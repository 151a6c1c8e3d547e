//! Any head of a `.plumb` file, behind a correct checksum; and any bytes as a whole file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensor::reservoir::{Reservoir, fuzz_head};

const HUGE: u64 = 2 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((numbers, table)) = bytes.split_first_chunk::<9>() else { return };
    let number = u64::from_le_bytes(*numbers.last_chunk().expect("nine bytes"));
    // Most heads should get past the first checks, so sizes are mostly plausible.
    let (data_offset, file_len) = match numbers[0] {
        0 => (number, number),
        _ => (HUGE, HUGE * (1 + number % 1024)),
    };
    if let Ok(table) = std::str::from_utf8(table) {
        fuzz_head(table, "{}", data_offset, file_len);
    }
    if numbers[0] == 1 {
        let _ = Reservoir::from_bytes("fuzz", table);
    }
});
