//! What a team is built of: the standard library's and rayon's threads, or in its model those of `shuttle`, which runs
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

/// Whether there is a pool to spawn in. Of one whose threads the system refuses rayon panics, or waits for ever.
#[cfg(not(shuttle))]
pub fn has_pool() -> bool {
    use std::{error::Error, sync::LazyLock};
    static HAS_GLOBAL: LazyLock<bool> = LazyLock::new(|| {
        let built = rayon::ThreadPoolBuilder::new().build_global();
        // An error without a cause is that there is one already.
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
