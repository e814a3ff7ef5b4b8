//! A feed-forward and its parts: PyTorch's results, the default width, new parameters.

use candle_blocks::{
    Activation, Checkpoint, FeedForward, FeedForwardConfig, Linear,
    candle_core::{DType, Module},
    candle_nn::{VarBuilder, VarMap},
};

use crate::{
    committed::present, cpu_only::cpu_only, device::device, reference::Reference, weights::weights,
};

#[test]
fn linear_equals_pytorch_on_vector_matrix_and_batch() {
    let reference = Reference::open("torch_parts");
    let [weight, bias] = ["linear.weight", "linear.bias"].map(|name| reference.get(name));
    let linear = Linear::from_parts(weight, Some(bias)).unwrap();
    for case in ["vector", "matrix", "batch"] {
        let x = reference.get(&format!("linear.{case}.x"));
        reference.check(
            &format!("linear.{case}.output"),
            &linear.forward(&x).unwrap(),
        );
    }
}

#[test]
fn relu_and_gelu_equal_pytorch() {
    let reference = Reference::open("torch_parts");
    for activation in [Activation::Relu, Activation::Gelu] {
        let x = reference.get(&format!("{activation}.x"));
        let y = activation.forward(&x).unwrap();
        reference.check(&format!("{activation}.output"), &y);
    }
}

#[test]
fn feed_forward_is_four_times_as_wide_by_default() {
    let config = FeedForwardConfig::new(6);
    assert_eq!((config.d_ff, config.activation), (24, Activation::Gelu));
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device());
    let layer = FeedForward::new(&config.with_dropout(0.5), vb).unwrap();
    assert_eq!(layer.up().shape(), (24, 6));
    assert_eq!(layer.down().shape(), (6, 24));
}

#[test]
fn fresh_parameters_have_the_requested_statistics() {
    let (d_model, d_ff) = (300, 700);
    let config = FeedForwardConfig::new(d_model).with_d_ff(d_ff);
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device());
    let layer = FeedForward::new(&config, vb).unwrap();
    let n = (d_model * d_ff) as f64;
    for (weight, deviation) in [
        (layer.up().weight().unwrap(), (2.0 / d_model as f64).sqrt()),
        (
            layer.down().weight().unwrap(),
            0.02 * (2.0 / (d_model + d_ff) as f64).sqrt(),
        ),
    ] {
        let values: Vec<f32> = weight.flatten_all().unwrap().to_vec1().unwrap();
        let moment = |k| {
            values
                .iter()
                .map(|&v| (f64::from(v) / deviation).powi(k))
                .sum::<f64>()
                / n
        };
        // Five standard errors of a normal sample's moments.
        assert!(moment(1).abs() < 5.0 / n.sqrt(), "mean {}", moment(1));
        assert!(
            (moment(2) - 1.0).abs() < 5.0 * (2.0 / n).sqrt(),
            "variance {}",
            moment(2)
        );
        assert!(
            (moment(4) - 3.0).abs() < 5.0 * (96.0 / n).sqrt(),
            "fourth moment {}",
            moment(4)
        );
    }
    for bias in [layer.up().bias(), layer.down().bias()] {
        let largest = bias.unwrap().abs().unwrap().max_all().unwrap();
        assert_eq!(largest.to_scalar::<f32>().unwrap(), 0.0);
    }
}

#[test]
fn the_committed_block_has_the_feed_forward_twice_as_large_as_its_attention() {
    cpu_only("sizes in a file are read");
    for name in present(["minilm-block0"], |&name| name) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let report = checkpoint.report();
        let count = |part: &str| -> usize {
            let of_part = report.used.iter().filter(|t| t.roles[0].contains(part));
            let info = of_part.map(|t| checkpoint.files().info(&t.name).unwrap());
            info.map(|info| info.shape.iter().product::<usize>()).sum()
        };
        let ratio = count(".feed_forward.") as f64 / count(".attention.") as f64;
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
    }
}
