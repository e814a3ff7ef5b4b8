//! The memory that calls leave allocated, while the thread pool does other work and in a cache that serves many batches.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use candle_blocks::config::{
    AlibiConfig, AlibiRounding, AlibiSlopes, DisentangledConfig, RelativeBiasConfig,
    RelativeEmbeddingsConfig,
};
use candle_blocks::{Position, Precision, StackConfig};

use crate::{
    counted::{LIVE, PEAK, alone},
    small::{self, HEADS, WIDTH, numbers, stack},
};

#[test]
fn calls_beside_a_busy_pool_leave_no_memory() {
    let _alone = alone();
    let stacks = [small::encoder(), small::decoder()];
    let stacks = stacks.map(|config| stack(&config).pack(Precision::F32).unwrap());
    let x = numbers(&[1, 5, WIDTH], 1);
    let after_calls = |n: usize| {
        for packed in stacks.iter().cycle().take(n) {
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

#[test]
fn scores_by_distance_take_no_memory_for_pairs_of_positions() {
    let _alone = alone();
    let mut learned = small::encoder();
    learned.relative_bias = Some(RelativeBiasConfig::new(8, 16, HEADS));
    let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::None);
    let position = Position::Alibi(alibi.with_both_sides(true));
    let block = small::block(small::attention().with_position(position));
    let span = 16;
    let position = Position::Disentangled(DisentangledConfig::new(span));
    let disentangled = small::block(small::attention().with_position(position));
    let disentangled = StackConfig::uniform(disentangled, 2, None)
        .with_relative_embeddings(RelativeEmbeddingsConfig::new(2 * span, None));
    let (seq, threads) = (2048, thread::available_parallelism().map_or(1, usize::from));
    let of_pairs = size_of::<f32>() * HEADS * seq * seq;
    let x = numbers(&[1, seq, WIDTH], 1);
    let check = |most: usize, work: &dyn Fn()| {
        let before = LIVE.load(SeqCst);
        PEAK.store(before, SeqCst);
        work();
        let peak = PEAK.load(SeqCst) - before;
        println!("{peak} bytes; a number for every pair takes {of_pairs}");
        assert!(peak < most, "{peak} bytes");
    };
    for config in [learned, StackConfig::uniform(block, 2, None)] {
        let packed = stack(&config).pack(Precision::F32).unwrap();
        check(of_pairs / 8, &|| drop(packed.forward(&x).unwrap()));
    }
    // Each thread has one head's products of contents and relative embeddings at a time, twice in the backward pass, and a tile's
    // scores.
    let in_threads = threads * size_of::<f32>() * seq * (2 * 2 * 2 * span + 4 * 128);
    let unpacked = stack(&disentangled);
    let packed = unpacked.pack(Precision::F32).unwrap();
    let most = of_pairs / 8 + in_threads;
    check(most, &|| drop(packed.forward(&x).unwrap()));
    check(most, &|| {
        let loss = unpacked.forward(&x).unwrap().sqr().unwrap().mean_all();
        loss.unwrap().backward().unwrap();
    });
}

/// Returns the process's resident bytes; mappings do not come from the allocator.
#[cfg(target_os = "linux")]
pub fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split_whitespace().nth(1).unwrap();
    resident.parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_is_reset_for_other_batches_gives_their_memory_back() {
    let _alone = alone();
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
