//! Shows that every test in a program opens the device under test, or says that its subject is the CPU's.
//!
//! A test that does neither would pass on every device without computing anything there.

use std::process::Command;

use crate::{
    device::{ABSENT, DEVICE_VARIABLE},
    rehearsal,
    weights::is_present,
};

/// Runs this program's tests with an absent device, and asserts that each one fails for that reason. Leaves out the caller
/// and the tests in `except`, which have a reason beside their name.
#[track_caller]
pub fn assert_none_passes(caller: &str, except: &[(&str, &str)]) {
    // In the package, tests return early where it leaves out their weights.
    if rehearsal::rehearsed().is_some() || !is_present("families") {
        return;
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "--skip", caller]);
    for (name, _) in except {
        program.args(["--skip", name]);
    }
    let output = program
        .env(DEVICE_VARIABLE, "absent")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let ended = |how: &str| -> Vec<&str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("test "));
        lines.filter_map(|line| line.strip_suffix(how)).collect()
    };
    let (passed, failed) = (ended(" ... ok"), ended(" ... FAILED"));
    assert!(failed.len() > 20, "only {} tests: {text}", failed.len());
    let n_left_out = format!("; {} filtered out;", except.len() + 1);
    assert!(
        text.contains(&n_left_out),
        "expected \"{n_left_out}\": `except` names tests that do not exist"
    );
    assert!(
        passed.is_empty(),
        "{} tests pass without a device. A test of what runs on a device takes `device()` for layers and inputs. If its \
         subject exists on the CPU alone, it begins with `cpu_only(\"why\")`:\n{}",
        passed.len(),
        passed.join("\n")
    );
    let said = |name: &&&str| {
        let section = text.split_once(&format!("---- {name} stdout ----"));
        let section = section.map_or("", |(_, rest)| rest);
        let section = section.split("\n---- ").next().unwrap();
        !section.contains(ABSENT)
    };
    let others: Vec<&&str> = failed.iter().filter(said).collect();
    assert!(
        others.is_empty(),
        "these fail for another reason before they open the device: {others:?}\n{text}"
    );
}
