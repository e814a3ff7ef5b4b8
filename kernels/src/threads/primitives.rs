//! What a team is built of: the standard library's and rayon's threads, or in its model those of `shuttle`, which runs
//! threads in many orders, one after the other (`team/model.rs`).

#[cfg(not(shuttle))]
mod chosen {
    pub use rayon::spawn;
    pub use std::{
        hint,
        sync::{
            Mutex,
            atomic::{AtomicBool, AtomicUsize},
        },
        thread, thread_local,
    };
}

#[cfg(shuttle)]
mod chosen {
    pub use shuttle::{
        hint,
        sync::{
            Mutex,
            atomic::{AtomicBool, AtomicUsize},
        },
        thread, thread_local,
    };

    pub fn spawn(work: impl FnOnce() + Send + 'static) {
        thread::spawn(work);
    }
}

pub use chosen::*;
