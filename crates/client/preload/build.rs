//! Linker settings of the library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    // The constructor has to run before those of the program's other libraries: they may
    // open files and start threads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
    if has_static_unwinder() {
        link_unwinder_in(&PathBuf::from(
            env::var_os("OUT_DIR").expect("cargo sets it"),
        ));
    }
}

/// Whether the compiler brings GCC's unwinder as a static library.
fn has_static_unwinder() -> bool {
    let found = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let path = found.map(|found| String::from_utf8_lossy(&found.stdout).into_owned());
    path.is_ok_and(|path| Path::new(path.trim()).is_absolute())
}

/// Has the unwinder of Rust's panics linked into the library (GPL with the runtime library exception): the shared one would be
/// mapped, bound and initialised at the start of each program, which takes as long as all else that this library does then.
/// Rust asks for the shared one by name; a file of that name, found first, says what is linked in its place.
fn link_unwinder_in(dir: &Path) {
    let written = fs::write(dir.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n");
    written.expect("the directory for build scripts is writable");
    println!("cargo:rustc-cdylib-link-arg=-L{}", dir.display());
}
