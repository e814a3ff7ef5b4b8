//! Tests whose subject exists on the CPU alone.

use std::{cell::Cell, io::Write};

use candle_blocks::candle_core::Device;

use crate::device::name;

thread_local! {
    /// The harness runs each test in a thread of its own.
    static IS_SAID: Cell<bool> = const { Cell::new(false) };
}

/// Returns the CPU, for a test whose subject exists there alone. If another device is under test, prints the reason, once
/// for each test.
pub fn cpu_only(why: &str) -> Device {
    if name() != "cpu" && !IS_SAID.replace(true) {
        // Past the harness, which shows a passed test's output to nobody.
        let line = format!("ON THE CPU: {why}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    Device::Cpu
}
