//! Threading primitives for a team: the standard library and rayon, or for model checking `shuttle`, which runs
//! threads in many orders, one after the other (`team/model.rs`).

#[cfg(shuttle)]
use shuttle as platform;
#[cfg(not(shuttle))]
use std as platform;

pub use platform::{
    hint,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread, thread_local,
};

#[cfg(not(shuttle))]
pub use rayon::spawn;

/// Returns whether there is a pool to spawn in. Rayon panics, or waits forever, if the system refuses threads.
#[cfg(not(shuttle))]
pub fn has_pool() -> bool {
    use std::{error::Error, sync::LazyLock, thread::available_parallelism};
    static HAS_GLOBAL: LazyLock<bool> = LazyLock::new(|| {
        // Without threads, such as in WebAssembly, rayon makes a pool of the calling thread when candle first asks for one, but
        // not after this request.
        if available_parallelism().is_err() {
            return false;
        }
        let built = rayon::ThreadPoolBuilder::new().build_global();
        // An error without a cause means that a pool exists already.
        built.err().is_none_or(|error| error.source().is_none())
    });
    rayon::current_thread_index().is_some() || *HAS_GLOBAL
}

#[cfg(shuttle)]
pub fn has_pool() -> bool {
    true
}

#[cfg(shuttle)]
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    thread::spawn(work);
}
