//! On the CPU a row has the same bits whatever else is computed with it.

use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, Weights,
    candle_core::{DType, Tensor},
};

use crate::{cpu_only::cpu_only, numbers::bits, weights::weights};

#[test]
fn a_row_has_the_same_bits_alone_in_a_batch_and_before_padding() {
    let cpu = cpu_only("bits that no other row changes");
    for name in ["tiny-bert", "tiny-gpt2"] {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let width = checkpoint.config().blocks[0].d_model();
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let stack = checkpoint
                .load(Weights::Dense(dtype, &cpu))
                .stack()
                .unwrap();
            let x = Tensor::randn(0f32, 1., (9, 40, width), &cpu).unwrap();
            let x = x.to_dtype(dtype).unwrap();
            let whole = stack.forward(&x).unwrap();
            for row in [0, 4, 8] {
                let alone = x.narrow(0, row, 1).unwrap();
                let expected = bits(&whole.narrow(0, row, 1).unwrap());
                assert_eq!(
                    bits(&stack.forward(&alone).unwrap()),
                    expected,
                    "{name} {dtype:?}"
                );
                // The same tokens with seven padding tokens after them.
                let padding = Tensor::ones((1, 7, width), dtype, &cpu).unwrap();
                let padded = Tensor::cat(&[&alone, &padding], 1).unwrap();
                let keep: Vec<u8> = (0..47).map(|at| u8::from(at < 40)).collect();
                let mask = Tensor::from_vec(keep, (1, 47), &cpu).unwrap();
                let mask = AttentionMask::padding(&mask).unwrap();
                let context = ForwardContext::evaluation().with_mask(mask);
                let kept = stack.forward_with(&padded, &context).unwrap();
                let kept = kept.narrow(1, 0, 40).unwrap();
                assert_eq!(bits(&kept), expected, "{name} {dtype:?}, padded");
            }
        }
    }
}
