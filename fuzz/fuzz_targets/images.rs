//! See `shale_harness::fuzz::images`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_harness::fuzz::images::run(data));
