//! The program exists. Cargo builds a package's programs for that package's own tests alone; the tests of the whole, in a package
//! of their own, run the one that is built for this file.

use std::process::Command;

/// Promise: the program says its name and version.
#[test]
fn it_runs() {
    let output = Command::new(env!("CARGO_BIN_EXE_framecache-node")).arg("--version").output().expect("run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim() == concat!("framecache-node ", env!("CARGO_PKG_VERSION")), "{said}");
}
