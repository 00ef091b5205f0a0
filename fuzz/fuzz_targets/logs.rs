//! See `shale_harness::fuzz::logs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_harness::fuzz::logs::run(data));
