//! Handles Ctrl-C, and on Unix SIGTERM and SIGHUP: no temporary file is left. Work that watches for signals ends at the next safe point
//! after the first one; a second signal ends the program.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use signal_hook::consts::SIGINT;
#[cfg(unix)]
use signal_hook::consts::SIGTERM;

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
    in_background(move || signals.forever().for_each(receive));
}

/// Runs work in a thread with a small stack, or ends the program with the system's reason.
fn in_background(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    if let Err(error) = thread.spawn(work) {
        eprintln!(
            "error: no thread can be started: {error}; allow more memory (`ulimit -v`, `ulimit -d`)"
        );
        std::process::exit(2);
    }
}

/// Begins to watch for Ctrl-C. The C runtime reports it in a thread of its own, where a handler may only set a flag.
#[cfg(not(unix))]
pub fn watch() {
    use std::{sync::Arc, thread, time::Duration};
    let has_come = Arc::new(AtomicBool::new(false));
    // Without it Ctrl-C ends the program as it ends others.
    if signal_hook::flag::register(SIGINT, has_come.clone()).is_err() {
        return;
    }
    in_background(move || {
        loop {
            thread::sleep(Duration::from_millis(50));
            if has_come.swap(false, Ordering::SeqCst) {
                receive(SIGINT);
            }
        }
    });
}

fn receive(signal: i32) {
    use candle_blocks::checkpoint::write::remove_unfinished;
    LAST.store(signal, Ordering::SeqCst);
    let is_second = IS_PRESSED.swap(true, Ordering::SeqCst);
    if IS_ASKED.load(Ordering::SeqCst) && !is_second {
        return;
    }
    remove_unfinished();
    #[cfg(unix)]
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

/// Returns whether Ctrl-C alone was pressed, which then counts no more: it ended one step, and from now on the next one ends
/// the program.
pub fn forget_ctrl_c() -> bool {
    IS_ASKED.store(false, Ordering::SeqCst);
    let is_ctrl_c = LAST.load(Ordering::SeqCst) == SIGINT;
    is_ctrl_c && IS_PRESSED.swap(false, Ordering::SeqCst)
}

/// Returns the exit status after a signal: 128 plus the signal's number, as in shells.
pub fn exit_status() -> u8 {
    128 + LAST.load(Ordering::SeqCst) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other tests of signals send them from outside, which only Unix has a command for.
    #[test]
    #[cfg_attr(
        windows,
        ignore = "Wine calls the flag by which `signal-hook` asks for the former handler"
    )]
    fn a_signal_is_seen_by_work_that_watches_for_it() {
        assert!(!was_pressed());
        watch();
        signal_hook::low_level::raise(SIGINT).unwrap();
        let begin = std::time::Instant::now();
        while !was_pressed() && begin.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(was_pressed());
        assert_eq!(exit_status(), 130);
    }
}
