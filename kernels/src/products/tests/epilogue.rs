//! What an epilogue makes of a product's totals.

use crate::products::{packed_matrix::Halves, tests::*};

#[test]
fn the_bias_is_added_once_and_last() {
    let (m, n, k) = (7, 45, 300);
    let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
        (random(m * k, 11), random(n * k, 12), random(n, 13));
    let (a, b) = (
        View::row_major(&a, m, k),
        View::row_major(&w, n, k).transposed(),
    );
    for isa in Isa::levels() {
        let sums = product(isa, a, b, 1).into_iter().enumerate();
        let expected: Vec<f32> = sums.map(|(at, sum)| sum + bias[at % n]).collect();
        let epilogue = Epilogue::bias(Some(&bias));
        let mut y = vec![9.0; m * n];
        multiply(isa, a, b, &epilogue, &mut y, 2);
        assert_same(&y, &expected, || "in place".to_string());
        y.fill(9.0);
        PackedMatrix::<f32>::new(isa, b, 2).multiply(a, &epilogue, &mut y, 2);
        assert_same(&y, &expected, || "packed".to_string());
    }
}

#[test]
fn an_epilogue_is_what_would_be_done_to_the_sums() {
    let square = |values: &mut [f32]| values.iter_mut().for_each(|v| *v = *v * *v);
    for (m, n, k) in [(1, 1, 1), (7, 45, 300), (33, 64, 129), (17, 5, 0)] {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 11), random(n * k, 12));
        let [bias, up_bias, factors]: [Vec<f32>; 3] = [13, 14, 15].map(|seed| random(n, seed));
        let (residual, up): (Vec<f32>, Vec<f32>) = (random(m * n, 16), random(n * k, 17));
        let a = View::row_major(&a, m, k);
        let weight = |w| View::row_major(w, n, k).transposed();
        for isa in Isa::levels() {
            let sums = product(isa, a, weight(&w), 1);
            let ups = product(isa, a, weight(&up), 1);
            for scale in [Scale::One, Scale::Constant(1.5), Scale::Columns(&factors)] {
                for (halves, with_residual) in [
                    (Halves::One, false),
                    (Halves::One, true),
                    (Halves::GateAndUp, false),
                    (Halves::GateAndUp, true),
                ] {
                    let expected: Vec<f32> = (0..m * n)
                        .map(|at| {
                            let column = at % n;
                            let mut y = (sums[at] + bias[column]) * (sums[at] + bias[column]);
                            if halves == Halves::GateAndUp {
                                y *= ups[at] + up_bias[column];
                            }
                            match scale {
                                Scale::One => {}
                                Scale::Constant(factor) => y *= factor,
                                Scale::Columns(factors) => y *= factors[column],
                            }
                            if with_residual { residual[at] + y } else { y }
                        })
                        .collect();
                    let epilogue = Epilogue {
                        bias: Some(&bias),
                        up_bias: Some(&up_bias),
                        activation: Some(&square),
                        scale,
                        residual: with_residual.then_some(&residual[..]),
                    };
                    let matrix: PackedMatrix<f32> = match halves {
                        Halves::One => PackedMatrix::new(isa, weight(&w), 2),
                        Halves::GateAndUp => PackedMatrix::gated_in(
                            Aligned::empty(),
                            isa,
                            weight(&w),
                            weight(&up),
                            2,
                        ),
                    };
                    let mut y = vec![9.0; m * n];
                    matrix.multiply(a, &epilogue, &mut y, 2);
                    assert_same(&y, &expected, || format!("{} {halves:?}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn rows_that_are_finished_later_have_the_bits_of_those_that_are_finished_at_once() {
    let (m, n, k) = (37, 45, 30);
    let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 18), random(n * k, 19));
    let (factors, residual): (Vec<f32>, Vec<f32>) = (random(n, 20), random(m * n, 21));
    let a = View::row_major(&a, m, k);
    let b = View::row_major(&w, n, k).transposed();
    for isa in Isa::levels() {
        let sums = product(isa, a, b, 1);
        for scale in [Scale::One, Scale::Constant(1.5), Scale::Columns(&factors)] {
            for residual in [None, Some(&residual[..])] {
                let epilogue = Epilogue {
                    scale,
                    residual,
                    ..Epilogue::NONE
                };
                let (mut at_once, mut later) = (vec![9.0; m * n], vec![9.0; m * n]);
                multiply(isa, a, b, &epilogue, &mut at_once, 2);
                epilogue.finish(&sums, n, &mut later);
                assert_same(&later, &at_once, || isa.name().to_string());
            }
        }
    }
}
