//! See `shale_faults::fuzz::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_faults::fuzz::messages::run(data));
