//! Linker settings of the library.

fn main() {
    // The constructor has to run before those of the program's other libraries: they may
    // open files and start threads.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
