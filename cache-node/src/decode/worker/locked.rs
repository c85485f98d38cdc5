//! Video within the sandbox: a process of its own is locked in, and does there what a worker does.

use std::process::Command;

use super::sandbox;
use crate::decode::video;
use crate::decode::video::tests::Trial;

/// Says to the test that it is the process to be locked in.
const LOCKED: &str = "FRAMECACHE_TEST_LOCKED";

/// What one worker may take in addresses.
const MEMORY: u64 = 2 << 30;

/// Promise: clips are indexed and decoded in a process that can open nothing and start nothing, and give what they give outside.
#[test]
fn clips_are_decoded_in_the_sandbox() {
    if std::env::var_os(LOCKED).is_some() {
        return locked();
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let output = child
        .args(["--exact", "decode::worker::locked::clips_are_decoded_in_the_sandbox", "--nocapture", "--test-threads=1"])
        .env(LOCKED, "1")
        .output()
        .expect("start");
    let outside = Trial::prepare().run();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said} {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("frames {outside}\n")), "{outside} outside, inside {said}");
}

fn locked() {
    let trial = Trial::prepare();
    video::warm_up();
    sandbox::lock(MEMORY).expect("the sandbox");
    let frames = trial.run();
    println!("frames {frames}");
    // The harness would look around.
    std::process::exit(0);
}
