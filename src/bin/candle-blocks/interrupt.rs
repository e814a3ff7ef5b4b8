//! Handles Ctrl-C, SIGTERM and SIGHUP: no temporary file is left. Work that watches for signals ends at the next safe point
//! after the first one; a second signal ends the program.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Set while the work in progress watches for signals.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static IS_PRESSED: AtomicBool = AtomicBool::new(false);
static LAST: AtomicI32 = AtomicI32::new(SIGINT);

/// Begins to watch for signals.
#[cfg(unix)]
pub fn watch() {
    let signals = [Some(SIGINT), Some(SIGTERM), hangup()];
    let signals = signal_hook::iterator::Signals::new(signals.into_iter().flatten());
    // Without them a signal ends the program as it ends others.
    let Ok(mut signals) = signals else { return };
    std::thread::spawn(move || signals.forever().for_each(receive));
}

#[cfg(not(unix))]
pub fn watch() {}

#[cfg(unix)]
fn receive(signal: i32) {
    use candle_blocks::checkpoint::write::remove_unfinished;
    LAST.store(signal, Ordering::SeqCst);
    let is_second = IS_PRESSED.swap(true, Ordering::SeqCst);
    if IS_ASKED.load(Ordering::SeqCst) && !is_second {
        return;
    }
    remove_unfinished();
    if !is_second {
        // As if the program did not watch: a shell then sees by which signal it ended.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    signal_hook::low_level::exit(128 + signal);
}

/// SIGHUP, unless `nohup` had it ignored: then the work goes on after the terminal is closed.
#[cfg(target_os = "linux")]
fn hangup() -> Option<i32> {
    use signal_hook::consts::SIGHUP;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    let ignored = u64::from_str_radix(ignored.trim(), 16).ok()?;
    (ignored >> (SIGHUP - 1) & 1 == 0).then_some(SIGHUP)
}

/// No signal, since this system cannot tell if `nohup` ignores SIGHUP.
#[cfg(all(unix, not(target_os = "linux")))]
fn hangup() -> Option<i32> {
    None
}

/// Returns whether Ctrl-C was pressed or another signal came. From the first call on, a signal no longer ends the program
/// at once.
pub fn was_pressed() -> bool {
    IS_ASKED.store(true, Ordering::SeqCst);
    IS_PRESSED.load(Ordering::SeqCst)
}

/// Returns the exit status after a signal: 128 plus the signal's number, as in shells.
pub fn exit_status() -> u8 {
    128 + LAST.load(Ordering::SeqCst) as u8
}
