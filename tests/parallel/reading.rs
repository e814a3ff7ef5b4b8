//! The part of a file that a rank reads.

#![cfg(target_os = "linux")]

use candle_blocks::{Checkpoint, Precision, Weights, checkpoint::TensorParallel};

use crate::{committed::present, ranks::of_ranks, weights::weights};

/// The bytes that this thread has read so far.
fn bytes_read() -> usize {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

/// Weights as `[d_out, d_in]`, fused and transposed; norms and the biases after sums are whole.
#[test]
fn a_rank_reads_its_part_of_the_file_alone() {
    let mut n = 0;
    for name in present(["minilm-block0", "tiny-gpt2"], |&name| name) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        // Data that a process reads once, about its cores and memory, is read before counting.
        checkpoint
            .load(Weights::Packed(Precision::F32))
            .stack()
            .unwrap();
        let of_blocks = checkpoint.report().used;
        let names = of_blocks.iter().map(|used| used.name.as_str());
        let mut names: Vec<&str> = names.filter(|name| !name.contains("embed")).collect();
        names.dedup();
        let size = |name: &&str| checkpoint.files().info(name).unwrap().n_bytes;
        let whole: usize = names.iter().map(size).sum();
        for size in [2, 3, 4] {
            let n_heads = checkpoint.config().blocks[0].attention().unwrap().n_heads;
            if n_heads < size {
                continue;
            }
            let read = of_ranks(size, |rank| {
                let loader = checkpoint.load(Weights::Packed(Precision::F32));
                let parallel = TensorParallel::new(loader, rank).unwrap();
                let before = bytes_read();
                parallel.stack().unwrap();
                bytes_read() - before
            });
            let most = whole as f64 * (1.0 / size as f64 + 0.1);
            println!("{name}: {read:?} of {whole}");
            assert!(
                read.iter().all(|&read| (read as f64) < most),
                "{name}: {read:?} of {whole}"
            );
            n += 1;
        }
    }
    assert!(n >= 2, "only {n} divisions");
}
