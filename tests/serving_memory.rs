//! What calls leave behind, while the thread pool does something else and in a cache that serves many batches.
//!
//! Alone in its binary, because it counts what the whole process allocates.

mod small;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
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

/// One test at a time, since all of them count what the process has.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn calls_beside_a_busy_pool_leave_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Bytes of the process that are in memory; mappings do not come from the allocator.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split_whitespace().nth(1).unwrap();
    resident.parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_is_reset_for_other_batches_gives_their_memory_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let packed = stack(&small::decoder()).pack(Precision::F32).unwrap();
    let context = candle_blocks::ForwardContext::evaluation();
    let mut cache = packed.new_cache();
    let mut after_batches = |n: usize| {
        for i in 0..n {
            let x = numbers(&[30 + i % 2, 100, WIDTH], 1);
            packed.forward_cached(&x, &context, &mut cache).unwrap();
            cache.reset();
        }
        resident()
    };
    let (before, after) = (after_batches(2), after_batches(60));
    let growth = after.saturating_sub(before);
    println!("{growth} bytes more after 60 further batches");
    assert!(growth < 16 << 20, "{growth} bytes");
}
