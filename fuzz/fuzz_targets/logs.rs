//! See `shale_faults::fuzz::logs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| shale_faults::fuzz::logs::run(data));
