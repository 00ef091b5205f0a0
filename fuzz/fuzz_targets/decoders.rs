//! See `shale_harness::fuzz::decoders`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_harness::fuzz::decoders::run(data));
