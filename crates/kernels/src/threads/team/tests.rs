use std::{sync::atomic::AtomicU32, time::Instant};

use crate::threads::{
    parallel::{for_tasks, for_tasks_in_order},
    team::*,
};

/// Returns how often `for_tasks` runs each of `tasks` tasks.
fn counts(threads: usize, tasks: usize) -> Vec<u32> {
    let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
    for_tasks(threads, tasks, |task| {
        counts[task].fetch_add(1, SeqCst);
    });
    counts.into_iter().map(AtomicU32::into_inner).collect()
}

#[test]
fn each_task_is_done_once_in_every_step() {
    for threads in [1, 2, 3, 8] {
        with_team(threads, || {
            for tasks in [0, 1, 2, 3, 17, 100] {
                for _ in 0..50 {
                    assert_eq!(counts(threads, tasks), vec![1; tasks]);
                }
            }
        });
        assert!(!is_here());
    }
}

#[test]
fn a_task_in_order_begins_before_fewer_earlier_ones_end_than_there_are_threads() {
    const TASKS: usize = 200;
    for threads in [1, 2, 3, 8] {
        let done: Vec<AtomicBool> = (0..TASKS).map(|_| AtomicBool::new(false)).collect();
        let most = AtomicUsize::new(0);
        for_tasks_in_order(threads, TASKS, |task| {
            let earlier = done[..task].iter().filter(|done| !done.load(SeqCst));
            most.fetch_max(earlier.count(), SeqCst);
            thread::yield_now();
            assert!(!done[task].swap(true, SeqCst), "task {task} twice");
        });
        assert!(done.iter().all(|done| done.load(SeqCst)));
        let most = most.into_inner();
        assert!(most < threads, "{most} earlier tasks, {threads} threads");
    }
}

#[test]
fn a_nested_step_runs_on_the_thread_that_starts_it() {
    let sum = AtomicUsize::new(0);
    with_team(2, || {
        for_tasks(2, 10, |_| {
            let outer = thread::current().id();
            for_tasks(2, 10, |task| {
                assert_eq!(thread::current().id(), outer);
                sum.fetch_add(task, SeqCst);
            });
        });
    });
    assert_eq!(sum.into_inner(), 450);
    assert!(!IN_STEP.get());
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no threads")]
fn teams_of_many_threads_at_once_do_not_wait_for_each_other() {
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..50 {
                    with_team(4, || assert_eq!(counts(4, 20), vec![1; 20]));
                }
            });
        }
    });
    // Every worker in the pool leads a separate team.
    rayon::broadcast(|_| {
        with_team(4, || assert_eq!(counts(4, 20), vec![1; 20]));
    });
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no threads")]
fn a_pass_ends_although_the_pool_is_busy() {
    let release = AtomicBool::new(false);
    thread::scope(|scope| {
        // All workers are busy until the pass is over.
        scope.spawn(|| {
            rayon::broadcast(|_| {
                while !release.load(SeqCst) {
                    thread::yield_now();
                }
            });
        });
        with_team(4, || assert_eq!(counts(4, 20), vec![1; 20]));
        release.store(true, SeqCst);
    });
}

#[test]
#[cfg_attr(
    target_family = "wasm",
    ignore = "a panic ends the program in WebAssembly"
)]
fn a_panic_in_a_step_reaches_the_leader_and_ends_the_team() {
    for panicking in [0, 7, 19] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            with_team(2, || {
                for_tasks(2, 20, |task| assert_ne!(task, panicking, "a planted panic"));
            })
        }));
        assert!(result.is_err());
        assert!(!is_here());
    }
    assert_eq!(counts(2, 20), vec![1; 20]);
}

#[test]
#[cfg_attr(
    target_family = "wasm",
    ignore = "a panic ends the program in WebAssembly"
)]
fn simultaneous_panics_in_leader_and_helper_do_not_affect_a_later_step() {
    with_team(2, || {
        for _ in 0..20 {
            let arrived = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                for_tasks(2, 2, |_| {
                    arrived.fetch_add(1, SeqCst);
                    // Both panic, if the helper arrives at all.
                    let start = Instant::now();
                    while arrived.load(SeqCst) < 2 && start.elapsed().as_millis() < 100 {
                        thread::yield_now();
                    }
                    panic!("a planted panic");
                });
            }));
            assert!(caught.is_err());
            assert_eq!(counts(2, 20), vec![1; 20]);
        }
    });
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no threads")]
fn a_leader_that_waits_for_another_pool_does_not_become_a_helper() {
    let pool = |threads| {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        builder.build().unwrap()
    };
    let (ours, other) = (pool(1), pool(1));
    // Our only worker leads. While it waits, it runs the remaining job in its own pool: its helper.
    let answer = ours.install(|| with_team(2, || other.install(|| 42)));
    assert_eq!(answer, 42);
}
