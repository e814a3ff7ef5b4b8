//! The team with its threads' accesses in many orders: `RUSTFLAGS="--cfg shuttle" cargo test -p
//! candle-blocks-kernels --lib model`.
//!
//! At every atomic access another thread may continue. All accesses are sequentially consistent, as in the team.

use std::sync::atomic::{AtomicBool as Flag, AtomicU32};

use shuttle::{check_pct, check_random};

use super::*;

const SCHEDULES: usize = 5_000;

/// Runs two steps in a team, and records when each ends. Each task runs once, and none after its step.
fn two_steps(threads: usize) {
    with_team(threads, || {
        for tasks in [3, 2] {
            // Leaked, so that a late helper is detected, and reads no freed memory.
            let counts: &[AtomicU32] = Box::leak((0..tasks).map(|_| AtomicU32::new(0)).collect());
            let is_over: &Flag = Box::leak(Box::new(Flag::new(false)));
            let work: &(dyn Fn(usize) + Sync) = Box::leak(Box::new(move |task: usize| {
                assert!(!is_over.load(SeqCst), "a task started after its step");
                counts[task].fetch_add(1, SeqCst);
                thread::yield_now();
                assert!(!is_over.load(SeqCst), "a step ended before its task");
            }));
            step(tasks, work);
            is_over.store(true, SeqCst);
            assert!(counts.iter().all(|count| count.load(SeqCst) == 1));
        }
    });
}

#[test]
fn in_any_order_each_task_is_done_once_and_within_its_step() {
    check_random(|| two_steps(2), SCHEDULES);
    check_random(|| two_steps(3), SCHEDULES);
    check_pct(|| two_steps(2), SCHEDULES, 3);
    check_pct(|| two_steps(3), SCHEDULES, 4);
}

#[test]
fn in_any_order_two_leaders_end() {
    check_random(
        || {
            let other = thread::spawn(|| two_steps(2));
            two_steps(2);
            other.join().unwrap();
        },
        SCHEDULES,
    );
}
