//! Ctrl-C: the first ends the work at the next good place, the second the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::{consts::SIGINT, flag};

/// What the program says of itself after Ctrl-C: 128 and the number of the signal, as shells have it.
pub const EXIT_STATUS: u8 = 130;

static WAS_PRESSED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let pressed = Arc::new(AtomicBool::new(false));
    // In this order: the first press finds that there was none before. Where there are no signals, Ctrl-C ends the program,
    // and no file is left half written either.
    let second = flag::register_conditional_shutdown(SIGINT, EXIT_STATUS.into(), pressed.clone());
    let _ = second.and_then(|_| flag::register(SIGINT, pressed.clone()));
    pressed
});

/// Whether Ctrl-C was pressed since this was first asked.
pub fn was_pressed() -> bool {
    WAS_PRESSED.load(Ordering::SeqCst)
}
