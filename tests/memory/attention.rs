//! Attention outside packed layers holds the scores of a tile in each thread, forward and backward.

use std::thread::available_parallelism;

use candle_blocks::{
    Attention, AttentionConfig,
    candle_core::{DType, Device, Tensor},
    candle_nn::{VarBuilder, VarMap},
};

use crate::resident::{in_a_process_of_its_own, start_measuring, status};

/// 8 query heads share a key head. A matrix of their scores would take 537 MB.
#[test]
fn no_thread_holds_the_scores_of_a_sequence() {
    in_a_process_of_its_own(
        "attention::no_thread_holds_the_scores_of_a_sequence",
        || {
            let (seq, heads) = (4096, 8);
            let variables = VarMap::new();
            let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
            let config = AttentionConfig::new(64, heads).unwrap();
            let config = config.with_kv_heads(1).causal();
            let attention = Attention::new(&config, vb).unwrap();
            let x = Tensor::randn(0f32, 1.0, (1, seq, 64), &Device::Cpu).unwrap();
            let before = start_measuring();
            let y = attention.forward(&x).unwrap();
            y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
            let held = status("VmHWM:") - before;
            let threads = available_parallelism().map_or(1, usize::from);
            // Rows of inputs and gradients, and for each thread three matrices of 128 rows.
            let most = (40 << 20) + threads * (4 * 128 * seq * 4 + (4 << 20));
            println!("{} MiB of at most {}", held >> 20, most >> 20);
            assert!(held < most, "{held} bytes, more than {most}");
        },
    );
}
