//! See `shale_faults::fuzz::decoders`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_faults::fuzz::decoders::run(data));
