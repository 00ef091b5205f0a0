//! Prints a report of single operations: `micro [quick] [MOUNTED_DIRECTORY]`; plots and
//! JSON go to `target/micro`. The `shale` program has the full command line.
#![forbid(unsafe_code)]

use shale_bench::micro::{self, MicroOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = MicroOptions::default();
    let out = std::path::PathBuf::from("target/micro");
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "quick" => options = MicroOptions::quick(),
            mount => options.mount = Some(mount.into()),
        }
    }
    options.plots = Some(out.clone());
    let report = micro::run_with_progress(&options, |what| eprintln!("{what}"))?;
    std::fs::write(out.join("report.json"), report.to_json())?;
    println!("{report}");
    Ok(())
}
