//! Ctrl-C, SIGTERM and SIGHUP: the first ends the work at the next good place, the second the program.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The signals that came since they were first asked for.
struct Signals {
    any: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
}

static SIGNALS: LazyLock<Signals> = LazyLock::new(|| {
    let signals = Signals {
        any: Arc::default(),
        last: Arc::new(AtomicUsize::new(SIGINT as usize)),
    };
    for signal in [Some(SIGINT), Some(SIGTERM), hangup()]
        .into_iter()
        .flatten()
    {
        // In this order: the first signal finds that there was none before. Where there are no signals, Ctrl-C ends the
        // program, and no file is left half written either.
        let second = flag::register_conditional_shutdown(signal, 128 + signal, signals.any.clone());
        let _ = second
            .and_then(|_| flag::register_usize(signal, signals.last.clone(), signal as usize))
            .and_then(|_| flag::register(signal, signals.any.clone()));
    }
    signals
});

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

/// No signal: whether `nohup` had SIGHUP ignored is not known here.
#[cfg(not(target_os = "linux"))]
fn hangup() -> Option<i32> {
    None
}

/// Whether Ctrl-C was pressed, or another of the signals came, since this was first asked.
pub fn was_pressed() -> bool {
    SIGNALS.any.load(Ordering::SeqCst)
}

/// The program's exit status after a signal: 128 and the number of the signal, as shells have it.
pub fn exit_status() -> u8 {
    128 + SIGNALS.last.load(Ordering::SeqCst) as u8
}
