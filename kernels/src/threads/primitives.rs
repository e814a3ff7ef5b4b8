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

#[cfg(shuttle)]
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    thread::spawn(work);
}
