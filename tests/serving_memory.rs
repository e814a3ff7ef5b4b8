//! What calls leave behind while the thread pool does something else.
//!
//! Alone in its binary, because it counts what the whole process allocates.

mod small;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use candle_blocks::Precision;
use small::{WIDTH, numbers, stack};

/// The system's allocator, counting.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn calls_beside_a_busy_pool_leave_nothing_behind() {
    let packed = stack(&small::encoder()).pack(Precision::F32).unwrap();
    let x = numbers(&[1, 5, WIDTH], 1);
    let after_calls = |n: usize| {
        for _ in 0..n {
            packed.forward(&x).unwrap();
        }
        LIVE.load(SeqCst)
    };
    let (busy, release) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            rayon::broadcast(|_| {
                busy.fetch_add(1, SeqCst);
                while !release.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            });
        });
        while busy.load(SeqCst) < rayon::current_num_threads() {
            thread::yield_now();
        }
        let (before, after) = (after_calls(5_000), after_calls(5_000));
        release.store(true, SeqCst);
        (before, after)
    });
    let growth = after.saturating_sub(before);
    println!("{growth} bytes more after 5,000 further calls");
    assert!(growth < 64 << 10, "{growth} bytes");
}
