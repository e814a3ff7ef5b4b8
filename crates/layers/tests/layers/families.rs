//! Every family's checkpoint against transformers, forward and backward.

use std::collections::HashMap;

use candle_blocks::{
    candle_core::{DType, Tensor},
    trace,
    verify::{Report, compare, verify},
};

use crate::{
    allowance::gradient_allowance,
    committed::{self, Committed},
    device::device,
    double::has_f64,
    judged,
    numbers::numbers,
    weights::is_present,
};

/// Everything that does not pass by `judge`, with its table.
fn failures(dtype: DType, judge: impl Fn(&Committed, &Report) -> bool) -> Vec<String> {
    let mut failures = Vec::new();
    for stack in committed::families() {
        let fixture = stack.fixture();
        let input = judged::input(&fixture);
        let run = match fixture.gradients().is_empty() {
            true => trace::run,
            false => trace::run_backward,
        };
        match run(&stack.open(), &input, dtype, &device()) {
            Err(error) => failures.push(format!("{}: {error}", stack.label())),
            Ok(stages) => {
                let report = verify(&fixture, &stages.into_iter().collect());
                if !judge(&stack, &report) {
                    failures.push(format!("{}\n{report}", stack.label()));
                }
            }
        }
    }
    failures
}

/// Every stage and gradient within the ratio rule, except where PyTorch's own error is small by luck.
#[test]
#[cfg_attr(
    target_family = "wasm",
    ignore = "without fused multiply-adds 43 of 4,136 gradients exceed the bound: docs/systems.md"
)]
fn every_family_gives_transformers_outputs_and_gradients() {
    let failures = failures(DType::F32, |stack, report| {
        report.comparisons.iter().all(|c| {
            let is_gradient = c.name.starts_with("grads.");
            c.passed() || is_gradient && c.share_used <= gradient_allowance(stack)
        })
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The rule as issue 5 writes it, each gradient for itself. Nothing but chance meets it always: PyTorch's own second
/// attention path was beyond it in 46 of 3,192 gradients (crates/layers/src/verify/tolerance.rs).
#[test]
#[cfg_attr(
    target_family = "wasm",
    ignore = "without fused multiply-adds 43 of 4,136 gradients exceed the bound: docs/systems.md"
)]
fn gradients_of_all_families_are_nearer_to_the_truth_than_pytorchs() {
    let (mut beyond, mut log_ratios) = (Vec::new(), Vec::new());
    for stack in committed::families() {
        let fixture = stack.fixture();
        if fixture.gradients().is_empty() {
            continue;
        }
        let input = judged::input(&fixture);
        let stages = trace::run_backward(&stack.open(), &input, DType::F32, &device());
        let stages: HashMap<String, Tensor> = stages.unwrap().into_iter().collect();
        for (name, expected) in fixture.gradients() {
            let c = compare(name, &stages[name], expected, None);
            let torch = c.tolerance.and_then(|t| t.torch_error);
            let largest = numbers(expected.value())
                .iter()
                .fold(0.0, |a: f64, x| a.max(x.abs()));
            // A gradient that is noise, such as a key bias's, has no digits to compare.
            let Some(torch) = torch.filter(|&torch| torch < 0.01 * largest) else {
                continue;
            };
            log_ratios.push((c.max_abs.max(1e-3 * torch) / torch).ln());
            if !c.passed() {
                beyond.push(format!("{}: {name}: {:.2}", stack.label(), c.share_used));
            }
        }
    }
    let n = log_ratios.len();
    let mean = (log_ratios.iter().sum::<f64>() / n.max(1) as f64).exp();
    println!(
        "{n} gradients: {mean:.2} of PyTorch's error in the geometric mean; beyond: {beyond:#?}"
    );
    if is_present("families") {
        assert!(n > 1000, "only {n}");
        assert!(mean < 0.8, "{mean}");
        assert!(
            beyond.len() * 100 <= n,
            "{} of {n}: {beyond:#?}",
            beyond.len()
        );
    }
}

/// In f64 there is no truth to measure PyTorch's own error against; what shows is that nothing on the
/// way rounds to f32. PyTorch's f32 error, scaled by the ratio of the epsilons (2⁻²⁹), may be exceeded
/// by chance, but not by 2⁹.
#[test]
fn no_family_rounds_to_f32_in_f64() {
    if !has_f64("families in f64") {
        return;
    }
    const CHANCE: f64 = 512.0;
    if !has_f64("families in f64") {
        return;
    }
    let failures = failures(DType::F64, |_, report| {
        report
            .comparisons
            .iter()
            .all(|c| c.ratio.is_some_and(|ratio| ratio < CHANCE))
    });
    // BLOOM writes √(2/π) with eight digits: 1e-9, which f32 does not see.
    let failures: Vec<_> = failures
        .into_iter()
        .filter(|f| !f.contains("/bloom"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
