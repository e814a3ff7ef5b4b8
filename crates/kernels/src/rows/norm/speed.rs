//! Measures the speed of norms. Run on an idle machine:
//! `cargo test --release -p candle-blocks-kernels norm::speed -- --ignored --nocapture`

use std::hint::black_box;

use super::kind::*;
use crate::{reference::random, rows::source::RowNorm, timing::least, vectors::Isa};

#[test]
#[ignore = "a measurement: needs an idle machine"]
fn rows_in_the_l2_cache() {
    const ROWS: usize = 16;
    for statistic in [Statistic::Variance, Statistic::MeanSquare] {
        let norm = Norm {
            statistic,
            gain: Gain::Weight,
            eps: 1e-5,
        };
        for width in [64, 384, 768, 1024] {
            let numbers = |n, seed| random::<f32>(n, 0.3, 1.5, seed);
            let x = numbers(ROWS * width, 1);
            let norm = RowNorm::new(norm, &numbers(width, 2), Some(&numbers(width, 3)));
            let mut y = vec![0.0; x.len()];
            for isa in Isa::levels() {
                let seconds = least(2000, || {
                    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                        norm.row(isa, x, y);
                    }
                    black_box(&y);
                });
                let nanoseconds = 1e9 * seconds / (x.len() as f64 / 16.0);
                println!("{statistic:?} {width:4} {isa:12} {nanoseconds:5.2} ns for 16 elements");
            }
        }
    }
}
