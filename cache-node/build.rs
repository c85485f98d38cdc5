//! Compiles the one C file: JPEG through the libjpeg API of the libjpeg-turbo that `turbojpeg-sys` builds and links. And keeps what is
//! linked into this crate's programs to themselves.

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
    // FFmpeg is the system's and brings a dav1d of its own; libavif brings another, linked in. A program that shows the latter's
    // functions would have the former's callers run into them.
    println!("cargo:rustc-link-arg=-Wl,--exclude-libs,ALL");
}
