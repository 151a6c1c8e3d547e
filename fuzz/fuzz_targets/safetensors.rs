//! Any bytes as a safetensors file: an error or a file whose every tensor can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensor::files::WeightFile;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = WeightFile::from_safetensors_bytes("fuzz", bytes.to_vec()) {
        for info in file.tensors() {
            assert_eq!(file.bytes(info).len(), info.rows * info.row_bytes());
            assert_eq!(file.tensor(&info.name), Some(info));
        }
    }
});
