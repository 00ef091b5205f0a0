//! See `shale_harness::fuzz::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_harness::fuzz::messages::run(data));
