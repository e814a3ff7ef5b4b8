//! Epilogues of products.

use super::*;
use crate::products::GateClamp;

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
        multiply(on(isa, 2), a, b, &epilogue, &mut y);
        assert_same(&y, &expected, "in place");
        y.fill(9.0);
        let packed = PackedMatrix::<f32>::new(on(isa, 2), b);
        multiply_columns(on(isa, 2), Columns::Packed(&packed), a, &epilogue, &mut y);
        assert_same(&y, &expected, "packed");
    }
}

#[test]
fn an_epilogue_gives_the_results_of_separate_passes() {
    for (m, n, k) in [(1, 1, 1), (7, 45, 300), (33, 64, 129), (17, 5, 0)] {
        let (a, w): (Vec<f32>, Vec<f32>) = (random(m * k, 11), random(n * k, 12));
        let [bias, up_bias, factors]: [Vec<f32>; 3] = [13, 14, 15].map(|seed| random(n, seed));
        let (residual, up): (Vec<f32>, Vec<f32>) = (random(m * n, 16), random(n * k, 17));
        let a = View::row_major(&a, m, k);
        let clamp = GateClamp {
            limit: 0.75,
            offset: 1.0,
        };
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
                    // The clamp and the factor apply to gated matrices only.
                    let clamp = (halves == Halves::GateAndUp && with_residual).then_some(clamp);
                    let gate_factor = clamp.map(|_| 0.75);
                    let expected: Vec<f32> = (0..m * n)
                        .map(|at| {
                            let column = at % n;
                            let mut gate = sums[at] + bias[column];
                            let mut up = ups[at] + up_bias[column];
                            if let Some(factor) = gate_factor {
                                gate *= factor;
                            }
                            if let Some(GateClamp { limit, offset }) = clamp {
                                gate = gate.min(limit);
                                up = up.clamp(-limit, limit) + offset;
                            }
                            let mut y = gate.max(0.0) * gate.max(0.0);
                            if halves == Halves::GateAndUp {
                                y *= up;
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
                        activation: ActivationFunction::Relu2,
                        gate_factor,
                        clamp,
                        scale,
                        residual: with_residual.then_some(&residual[..]),
                    };
                    let cpu = on(isa, 2);
                    let matrix: PackedMatrix<f32> = match halves {
                        Halves::One => PackedMatrix::new(cpu, weight(&w)),
                        Halves::GateAndUp => PackedMatrix::gated_in(
                            Aligned::empty(),
                            cpu,
                            (),
                            weight(&w),
                            weight(&up),
                        ),
                    };
                    let mut y = vec![9.0; m * n];
                    multiply_columns(cpu, Columns::Packed(&matrix), a, &epilogue, &mut y);
                    assert_same(&y, &expected, format_args!("{isa} {halves:?}"));
                }
            }
        }
    }
}

#[test]
fn an_epilogue_applied_later_has_the_same_bits() {
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
                multiply(on(isa, 2), a, b, &epilogue, &mut at_once);
                epilogue.finish(on(isa, 2), &sums, n, &mut later);
                assert_same(&later, &at_once, isa);
            }
        }
    }
}
