//! Dropout draws what NumPy draws, at its rate, in training only, and stands where it should.

use candle_blocks::{
    Activation, Dropout, DropoutSource, FeedForward, Linear, Sublayer, SublayerNorm,
    candle_core::{DType, ModuleT, Tensor},
};

use crate::{
    cpu_only::cpu_only, device::device, double::has_f64, numbers::bits, reference::Reference,
};

/// x + Dropout(W2·ReLU(W1·x + b1) + b2).
fn residual_block(parts: [&Tensor; 4], dropout: Dropout) -> Sublayer<FeedForward> {
    let [w1, b1, w2, b2] = parts.map(Clone::clone);
    let up = Linear::from_parts(w1, Some(b1)).unwrap();
    let down = Linear::from_parts(w2, Some(b2)).unwrap();
    let inner = FeedForward::from_parts(None, up, down, Activation::Relu).unwrap();
    Sublayer::new(inner, SublayerNorm::None).with_dropout(dropout)
}

#[test]
fn residual_block_without_dropout_is_exact() {
    if !has_f64("the residual block in f64") {
        return;
    }
    let device = device();
    let vector = |v: &[f64]| Tensor::new(v, &device).unwrap();
    let matrix = |rows: &[&[f64]]| {
        let rows: Vec<Vec<f64>> = rows.iter().map(|r| r.to_vec()).collect();
        Tensor::new(rows, &device).unwrap()
    };
    let cases = [
        (
            vector(&[1., -1.]),
            [matrix(&[&[1., 2.], &[3., 4.]]), vector(&[0.5, -0.5])],
            [matrix(&[&[2., 1.], &[0.5, 1.]]), vector(&[0., 0.5])],
            vec![1., -0.5],
        ),
        (
            vector(&[1., 2.]),
            [matrix(&[&[1., 0.], &[0., 1.]]), vector(&[0., 0.])],
            [matrix(&[&[1., 0.], &[0., 1.]]), vector(&[0., 0.])],
            vec![2., 4.],
        ),
        (
            vector(&[0.5; 3]),
            [matrix(&[&[1., 1., 1.] as &[f64]; 3]), vector(&[0.; 3])],
            [
                matrix(&[&[0.5, 0.5, 0.5] as &[f64]; 3]),
                vector(&[0.1, 0.2, 0.3]),
            ],
            vec![2.85, 2.95, 3.05],
        ),
    ];
    for (x, [w1, b1], [w2, b2], expected) in cases {
        let block = residual_block([&w1, &b1, &w2, &b2], Dropout::none());
        let y = block.forward_t(&x, true).unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(y, expected);
    }
}

#[test]
fn seeded_dropout_equals_numpy_bit_for_bit() {
    if !has_f64("dropout's bits in f64") {
        return;
    }
    let reference = Reference::open("dropout");
    let mut n_cases = 0;
    for name in reference.names() {
        let Some(case) = name.strip_suffix(".out") else {
            continue;
        };
        let (size, rest) = case.split_once(".seed").unwrap();
        let (seed, p) = rest.split_once(".p").unwrap();
        let (seed, p): (u32, f64) = (seed.parse().unwrap(), p.parse().unwrap());
        let parts = ["W1", "b1", "W2", "b2"].map(|part| reference.get(&format!("{size}.{part}")));
        let dropout = Dropout::new(p, DropoutSource::numpy(seed)).unwrap();
        let block = residual_block([&parts[0], &parts[1], &parts[2], &parts[3]], dropout);
        let y = block
            .forward_t(&reference.get(&format!("{size}.x")), true)
            .unwrap();
        assert_eq!(bits(&y), bits(&reference.get(&name)), "{name}");
        n_cases += 1;
    }
    assert!(n_cases >= 100, "only {n_cases} cases");
}

#[test]
fn dropout_draws_in_training_only_and_its_rate_is_p() {
    if !has_f64("dropout's rate in f64") {
        return;
    }
    let x = Tensor::ones((100, 100), DType::F64, &device()).unwrap();
    let dropout = Dropout::new(0.3, DropoutSource::seeded(7)).unwrap();
    assert_eq!(bits(&dropout.forward_t(&x, false).unwrap()), bits(&x));
    let y = dropout.forward_t(&x, true).unwrap();
    let values: Vec<f64> = y.flatten_all().unwrap().to_vec1().unwrap();
    let dropped = values.iter().filter(|&&v| v == 0.0).count() as f64;
    assert!(values.iter().all(|&v| v == 0.0 || v == 1.0 / (1.0 - 0.3)));
    // Five standard deviations of a binomial.
    assert!(
        (dropped - 3000.0).abs() < 5.0 * (10_000.0 * 0.3 * 0.7f64).sqrt(),
        "{dropped}"
    );
    let again = Dropout::new(0.3, DropoutSource::seeded(7)).unwrap();
    assert_eq!(bits(&again.forward_t(&x, true).unwrap()), bits(&y));
    assert_ne!(
        bits(&again.forward_t(&x, true).unwrap()),
        bits(&y),
        "the stream goes on"
    );
}

#[test]
fn dropout_refuses_a_probability_outside_zero_to_one() {
    cpu_only("a probability is checked without a tensor");
    for p in [-0.1, 1.0, 1.5, f64::NAN] {
        assert!(Dropout::new(p, DropoutSource::candle()).is_err(), "{p}");
    }
}

#[test]
fn dropout_of_one_half_doubles_what_it_keeps() {
    if !has_f64("dropout in f64") {
        return;
    }
    let x = Tensor::new(&[1f64, -2., 3., -4., 5., -6.], &device()).unwrap();
    let dropout = Dropout::new(0.5, DropoutSource::numpy(1)).unwrap();
    let y: Vec<f64> = dropout.forward_t(&x, true).unwrap().to_vec1().unwrap();
    let mut kept = 0;
    for (y, x) in y.iter().zip(x.to_vec1::<f64>().unwrap()) {
        assert!(*y == 0.0 || *y == 2.0 * x, "{y} of {x}");
        kept += usize::from(*y != 0.0);
    }
    assert!(kept > 0 && kept < 6, "{kept} of 6 kept");
}

#[test]
fn dropout_follows_the_activation() {
    if !has_f64("a feed-forward with dropout in f64") {
        return;
    }
    let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F64, &device()).unwrap();
    let linear = |shape| Linear::from_parts(ones(shape), None).unwrap();
    let dropout = Dropout::new(0.5, DropoutSource::numpy(3)).unwrap();
    let layer = FeedForward::from_parts(None, linear((4, 1)), linear((1, 4)), Activation::Relu);
    let layer = layer.unwrap().with_dropout(dropout);
    // np.random.seed(3); np.random.rand(4) -> .551, .708, .291, .511: three are kept and doubled.
    let y = layer
        .forward_t(&Tensor::new(&[1f64], &device()).unwrap(), true)
        .unwrap();
    assert_eq!(y.to_vec1::<f64>().unwrap(), [6.0]);
}
