//! Runs a workload on a volume of its own, and on a directory if one is given:
//! `workload varmail|million FILES [DIRECTORY]`.
#![forbid(unsafe_code)]

use shale_bench::scratch::ScratchOptions;
use shale_model::workload::million::{MillionOptions, million};
use shale_model::workload::varmail::{VarmailOptions, varmail};
use shale_model::workload::{DirectFiles, Directory, Files};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, files, rest @ ..] = arguments.as_slice() else {
        return Err("usage: workload varmail|million FILES [DIRECTORY]".into());
    };
    let count: u64 = files.parse()?;
    let mut places: Vec<Box<dyn Files>> = Vec::new();
    let options = ScratchOptions {
        nvm_bytes: (512 << 20) + count * 1_024,
        log_bytes: 0,
    };
    places.push(Box::new(DirectFiles::new("/dev/shm".as_ref(), options)?));
    for dir in rest {
        places.push(Box::new(Directory::new(dir, dir.as_ref())));
    }
    for place in &mut places {
        match what.as_str() {
            "varmail" => {
                let options = VarmailOptions {
                    files: count,
                    ..VarmailOptions::default()
                };
                println!("{}", varmail(place.as_mut(), &options)?);
            }
            _ => {
                // At the speed of the log, and with the digest of each window in its time.
                for flushed in [false, true] {
                    let options = MillionOptions {
                        files: count,
                        flushed,
                        ..MillionOptions::default()
                    };
                    println!("{}", million(place.as_mut(), &options)?);
                }
            }
        }
    }
    Ok(())
}
