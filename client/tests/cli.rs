//! The command line as users meet it: arguments, messages, exit codes. Without a node; what needs one is tested from Python.

#![cfg(feature = "cli")]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use framecache::cli::Arguments;

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("run")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_framecache"));
    for name in ["FRAMECACHE_ADDR", "FRAMECACHE_CA", "FRAMECACHE_TOKEN"] {
        command.env_remove(name);
    }
    // No CA of a node that may run on this machine.
    command.env("XDG_STATE_HOME", "/nonexistent").args(arguments);
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Promise: the definition of the arguments is consistent.
#[test]
fn arguments_are_sound() {
    Arguments::command().debug_assert();
}

/// Promise: each documented form is understood, global options in any place.
#[test]
fn documented_forms_parse() {
    for line in [
        "framecache status",
        "framecache status --json --addr a:1,b:2",
        "framecache ls -l s3://abc/x --limit 5",
        "framecache --timeout 0.5 get s3://abc/x -o -",
        "framecache get s3://abc/x --range 0-16 -o x",
        "framecache get s3://abc/x --spec image?short=256&crop=224 --format npy",
        "framecache get s3://abc/ --contact-sheet s.png --limit 5 --columns 2 --spec image?short=64",
        "framecache get s3://abc/x --spec video?fps=2&from=1.5&to=4&short=256 --contact-sheet s.png",
        "framecache get video?uniform=8 s3://abc/x --contact-sheet s.png",
        "framecache explain s3://abc/x --spec image --json",
    ] {
        Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// Promise: what makes no sense is refused as usage, before anything is asked of a cluster.
#[test]
fn nonsense_is_usage() {
    for line in [
        "get",
        "get http://x/y -o -",
        "get s3://abc/x --range 5-2",
        "get s3://abc/x --range 0-2 --spec image",
        "get s3://abc/x --spec image?nope=1",
        "get s3://abc/x --format png",
        "get s3://abc/x --spec video?uniform=0",
        "get s3://abc/x --columns 3",
        "get s3://abc/x s3://abc/y -o -",
        "get s3://abc/prefix/ -o -",
        "explain abc",
        "ls s3://abc/ -l --json",
        "status --timeout 0",
        "nope",
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&output), Some(2), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line}");
    }
}

/// Promise: wrong trust is a configuration fault, no answer is not; each says what to do. No file is left behind.
#[test]
fn failures_have_codes_and_hints() {
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let output = run(&["status", "--addr", "127.0.0.1:9"]);
    assert!(code(&output) == Some(2) && text(&output).contains("framecache-node dev"), "{}", text(&output));

    let folder = tempfile::tempdir().expect("folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, CA).expect("write");
    let file = folder.path().join("x");
    let (ca, file) = (ca.display().to_string(), file.display().to_string());
    let output = run(&["get", "s3://abc/x", "-o", &file, "--ca", &ca, "--addr", "127.0.0.1:9", "--timeout", "0.3"]);
    assert!(code(&output) == Some(3) && text(&output).contains("hint: "), "{}", text(&output));
    assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
}

/// Promise: an interrupted command ends by its signal, at once, and leaves no part of a file.
#[test]
fn interrupts_leave_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let (ca, file) = (folder.path().join("ca.pem"), folder.path().join("x"));
    std::fs::write(&ca, CA).expect("write");
    let (ca, file) = (ca.display().to_string(), file.display().to_string());
    let files = || std::fs::read_dir(folder.path()).expect("list").count();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut get = command(&["get", "s3://abc/x", "-o", &file, "--ca", &ca, "--addr", "127.0.0.1:9"]);
        // Whoever runs the tests may ignore signals (`nohup`, a shell's `&`), which a child inherits and this command respects.
        // SAFETY: between fork and exec, a plain call that is safe there.
        unsafe {
            get.pre_exec(move || match libc::signal(signal, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut child = get.spawn().expect("start");
        let deadline = Instant::now() + Duration::from_secs(20);
        while files() < 2 {
            assert!(Instant::now() < deadline && child.try_wait().expect("wait").is_none(), "no part of a file appears");
            std::thread::yield_now();
        }
        // SAFETY: a signal to our own child, which is not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let ended = child.wait().expect("wait");
        assert_eq!((ended.signal(), files()), (Some(signal), 1), "{ended}");
    }
}

/// Promise: help names the exit codes and shows examples.
#[test]
fn help_is_complete() {
    let text = String::from_utf8(run(&["--help"]).stdout).expect("text");
    assert!(["Exit codes:", "Examples:", "FRAMECACHE_ADDR", "127.0.0.1:4433"].iter().all(|part| text.contains(part)), "{text}");
    for command in ["get", "ls", "status", "explain"] {
        let text = String::from_utf8(run(&[command, "--help"]).stdout).expect("text");
        assert!(text.contains("Examples:"), "{command}: {text}");
    }
}

/// A CA that signed nothing.
const CA: &str = include_str!("ca.pem");
