//! See `shale_faults::fuzz::staged`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_faults::fuzz::staged::run(data));
