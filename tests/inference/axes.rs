//! Positions by time, row and column with a cache.

use candle_blocks::{
    Checkpoint, ForwardContext, Precision, Weights,
    candle_core::{DType, Device, Tensor},
};

use crate::{device::device, double::has_f64, weights::is_present, weights::weights};

const FAMILIES: [&str; 3] = ["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"];
const SEQ: usize = 6;

/// Two text tokens, an image with 2 x 2 patches or, in the second sequence, 1 x 4, and another text token.
fn positions() -> Tensor {
    let times = [[0u32, 1, 2, 2, 2, 2], [0, 1, 2, 2, 2, 2]];
    let rows = [[0u32, 1, 2, 2, 3, 3], [0, 1, 2, 2, 2, 2]];
    let columns = [[0u32, 1, 2, 3, 2, 3], [0, 1, 2, 3, 4, 5]];
    Tensor::new(&[times, rows, columns], &device()).unwrap()
}

fn input(dtype: DType, width: usize) -> Tensor {
    let values = (0..2 * SEQ * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0);
    let values = Tensor::from_iter(values, &device()).unwrap();
    let shape = (2, SEQ, width);
    values.reshape(shape).unwrap().to_dtype(dtype).unwrap()
}

fn context(positions: &Tensor) -> ForwardContext {
    let plain = ForwardContext::evaluation();
    plain.with_position_ids(positions).unwrap()
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let largest = (a - b).unwrap().abs().unwrap().max_all().unwrap();
    let largest = largest.to_dtype(DType::F64).unwrap();
    largest.to_scalar().unwrap()
}

/// Returns the outputs for chunks with two, one and three positions.
fn in_pieces(x: &Tensor, mut run: impl FnMut(&Tensor, &ForwardContext) -> Tensor) -> Tensor {
    let piece = |(at, n): (usize, usize)| {
        let own = positions().narrow(2, at, n).unwrap();
        run(&x.narrow(1, at, n).unwrap(), &context(&own))
    };
    let outputs: Vec<Tensor> = [(0, 2), (2, 1), (3, 3)].into_iter().map(piece).collect();
    Tensor::cat(&outputs, 1).unwrap()
}

#[test]
fn time_row_and_column_rotate_the_same_with_a_cache_and_differ_from_counting() {
    if !is_present("families") || !has_f64("positions of three numbers in f64") {
        return;
    }
    for family in FAMILIES {
        let checkpoint = Checkpoint::open(weights(&format!("families/{family}"))).unwrap();
        let width = checkpoint.config().blocks[0].d_model();

        let stack = checkpoint
            .load(Weights::Dense(DType::F64, &device()))
            .stack()
            .unwrap();
        let x = input(DType::F64, width);
        let full = stack.forward_with(&x, &context(&positions())).unwrap();
        let mut cache = stack.new_cache();
        let ours = in_pieces(&x, |x, context| {
            stack.forward_cached(x, context, &mut cache).unwrap()
        });
        let away = difference(&ours, &full);
        assert!(away < 1e-11, "{family}: {away:e}");
        let counted = stack.forward_with(&x, &ForwardContext::evaluation());
        assert!(difference(&counted.unwrap(), &full) > 1e-2, "{family}");

        let stack = checkpoint
            .load(Weights::Packed(Precision::F32))
            .stack()
            .unwrap();
        let on_cpu = |of: Tensor| of.to_device(&Device::Cpu).unwrap();
        let x = on_cpu(input(DType::F32, width));
        let full = on_cpu(full).to_dtype(DType::F32).unwrap();
        let away = difference(
            &stack.forward_with(&x, &context(&positions())).unwrap(),
            &full,
        );
        assert!(away < 1e-5, "{family} packed: {away:e}");
        let mut cache = stack.new_cache();
        let ours = in_pieces(&x, |x, context| {
            stack.forward_cached(x, context, &mut cache).unwrap()
        });
        let away = difference(&ours, &full);
        assert!(away < 1e-5, "{family} packed after a cache: {away:e}");
    }
}

#[test]
fn three_equal_positions_rotate_as_one_and_one_row_applies_to_every_sequence() {
    if !is_present("families") {
        return;
    }
    for family in FAMILIES {
        let checkpoint = Checkpoint::open(weights(&format!("families/{family}"))).unwrap();
        let stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let x = input(DType::F32, checkpoint.config().blocks[0].d_model());
        let of = |positions: &Tensor| stack.forward_with(&x, &context(positions)).unwrap();
        let one = Tensor::new(&[[3u32, 4, 6, 9, 10, 11]], &device()).unwrap();
        let equal = one.unsqueeze(0).unwrap().repeat((3, 1, 1)).unwrap();
        assert_eq!(difference(&of(&one), &of(&equal)), 0.0, "{family}");
        let both = equal.repeat((1, 2, 1)).unwrap();
        assert_eq!(difference(&of(&one), &of(&both)), 0.0, "{family}");
    }
}
