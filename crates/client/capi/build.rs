//! Linker settings of the library.

fn main() {
    // Programs ask for the library by this name: it changes when they would have to be built again.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshale.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
