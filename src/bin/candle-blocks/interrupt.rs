//! Ctrl-C: the first ends the work at the next good place, the second the program.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_PRESSED: AtomicBool = AtomicBool::new(false);

/// From here on, Ctrl-C is noted.
pub fn watch() {
    // Where there are no signals, Ctrl-C ends the program, and no file is left half written either.
    let _ = ctrlc::set_handler(|| {
        if WAS_PRESSED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub fn was_pressed() -> bool {
    WAS_PRESSED.load(Ordering::SeqCst)
}
