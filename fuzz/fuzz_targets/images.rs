//! See `shale_faults::fuzz::images`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_faults::fuzz::images::run(data));
