//! Packed stacks in a server: many concurrent callers, beside other work in the same thread pool.

use std::{
    sync::{Barrier, mpsc},
    thread,
    time::Duration,
};

use candle_blocks::{ForwardContext, Precision, candle_core::Result};

use crate::cpu_only::cpu_only;
use crate::small::{self, WIDTH, numbers, stack};

/// A time limit far above this test's duration, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn observers_of_several_callers_may_wait_for_the_thread_pool() {
    cpu_only("packed weights");
    let packed = stack(&small::encoder()).pack(Precision::F32).unwrap();
    let x = numbers(&[8, 64, WIDTH], 1);
    let expected = packed.forward(&x).unwrap();
    // One caller for each thread, so that the helper tasks of all calls would fill the pool.
    let n_callers = rayon::current_num_threads().max(2);
    let (done, all_done) = mpsc::channel();
    let observe = move || -> Result<()> {
        let barrier = Barrier::new(n_callers);
        thread::scope(|scope| {
            for _ in 0..n_callers {
                scope.spawn(|| {
                    let context = ForwardContext::evaluation();
                    let y = packed.observe(&x, &context, |_, _| {
                        barrier.wait();
                        // Time for helpers to arrive.
                        thread::sleep(Duration::from_millis(50));
                        rayon::join(|| (), || ());
                        Ok(())
                    });
                    let difference = (y.unwrap() - &expected).unwrap().abs().unwrap();
                    let largest: f32 = difference.max_all().unwrap().to_scalar().unwrap();
                    assert_eq!(largest, 0.0);
                });
            }
        });
        Ok(())
    };
    thread::spawn(move || done.send(observe()));
    all_done
        .recv_timeout(PATIENCE)
        .expect("the observers wait for each other's helpers")
        .unwrap();
}
