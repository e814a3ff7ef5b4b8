//! The program when Ctrl-C is pressed, or when it is told to end.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::said::assert_says;

/// Runs a command for a while, interrupts it, and demands that it ends as interrupted and names what it kept.
pub fn interrupted(command: &mut Command, after: Duration, kept: &str) {
    ended_by("INT", 130, command, after, kept);
}

/// As `interrupted`, with the name of the signal and the exit status that it asks for.
pub fn ended_by(signal: &str, status: i32, command: &mut Command, after: Duration, kept: &str) {
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(after);
    let kill = Command::new("kill")
        .args([&format!("-{signal}"), &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let done = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(status), "{stderr}");
    assert_says(&stderr, &["interrupted", kept]);
}
