//! Compiles the one C file: JPEG through the libjpeg API of the libjpeg-turbo that `turbojpeg-sys` builds and links.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=src/decode/formats/jpeg.c");
    println!("cargo:rerun-if-changed=build.rs");
    // Exported by turbojpeg-sys (`links = "turbojpeg"`) to direct dependents only, which is why it is one.
    let include = env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys exports its include folder");
    cc::Build::new()
        .file("src/decode/formats/jpeg.c")
        .includes(include.split(','))
        .opt_level(2)
        .warnings(true)
        .compile("framecache_jpeg");
}
