//! Packed blocks divided among ranks.

use candle_blocks::{
    Error, Precision, Result, Stack, Weights, candle_core::Tensor, checkpoint::TensorParallel,
};

use crate::{
    families::stacks,
    judged,
    numbers::{bits, numbers},
    ranks::{context, of_ranks},
    weights::is_present,
};

/// Returns the root mean square of the difference from the exact values, relative to these.
fn error(found: &Tensor, exact: &Tensor) -> f64 {
    let (found, exact) = (numbers(found), numbers(exact));
    let pairs = found.iter().zip(&exact);
    let squares: f64 = pairs.map(|(found, exact)| (found - exact).powi(2)).sum();
    (squares / exact.iter().map(|exact| exact.powi(2)).sum::<f64>()).sqrt()
}

#[test]
fn divided_families_packed_are_as_near_to_the_truth_as_whole_ones() {
    let mut n_compared = 0;
    for stack in stacks() {
        let (checkpoint, fixture) = (stack.open(), stack.fixture());
        let input = judged::input(&fixture);
        let (x, context) = (input.hidden_states.clone().unwrap(), context(&input));
        let n_layers = checkpoint.config().layers.len();
        let exact = fixture.tensor(&format!("layers.{}.output.f64", n_layers - 1));
        let Some(exact) = exact else { continue };
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            let outputs = |packed: Stack| {
                let mut last = None;
                packed.observe(&x, &context, |_, block| {
                    last = Some(block.output().clone());
                    Ok(())
                })?;
                Ok::<_, Error>([packed.forward_with(&x, &context)?, last.unwrap()])
            };
            let divided = of_ranks(2, |rank| {
                let loader = checkpoint.load(Weights::Packed(precision));
                outputs(TensorParallel::new(loader, rank)?.stack()?)
            });
            let divided: Result<Vec<_>> = divided.into_iter().collect();
            let Ok(divided) = divided else { continue };
            let label = format!("{} {precision:?}", stack.label());
            assert!(bits(&divided[0][0]) == bits(&divided[1][0]), "{label}");
            let whole =
                outputs(checkpoint.load(Weights::Packed(precision)).stack().unwrap()).unwrap();
            let [ours, expected] = [&divided[0][1], &whole[1]].map(|found| error(found, exact));
            // For f32, some roundings in each layer; for narrower types, one process's error.
            let floor = 3e-7 * n_layers as f64;
            assert!(
                ours < 2.0 * expected + floor,
                "{label}: {ours:e}, whole {expected:e}"
            );
            // Padding is left out of this one.
            let between = error(&divided[0][0], &whole[0]);
            assert!(
                between < 3.0 * expected + floor,
                "{label}: {between:e} from {expected:e}"
            );
            n_compared += 1;
        }
    }
    println!("{n_compared} compared");
    assert_eq!(n_compared > 400, is_present("families"));
}
