//! The process's memory as reported by the system.

use std::{env, fs, process::Command};

use crate::counted::alone;

/// glibc keeps what was freed, up to the size of the largest block freed so far; with this set it gives
/// large blocks back at once, and what is measured is what is held. Read when a process starts.
const GIVE_BACK: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

/// Measures in another process, in which nothing else was before and only this test runs.
pub fn in_a_process_of_its_own(test: &str, measure: fn()) {
    let (key, value) = GIVE_BACK;
    if env::var(key).is_ok_and(|set| set == value) {
        return measure();
    }
    let _alone = alone();
    let mut again = Command::new(env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env(key, value);
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("running 1 test"), "no test is called {test}");
    assert!(output.status.success());
}

/// Returns a line in the process's own status, in bytes.
pub fn status(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Sets the peak back to what is resident, and returns that.
pub fn start_measuring() -> usize {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    status("VmRSS:")
}
