//! Every whole model against transformers.

use candle_blocks::{
    Precision,
    candle_core::{DType, Device, Tensor},
    trace::{self, TraceInput},
    verify::{Comparison, verify},
};

use crate::{
    device::device,
    double::has_f64,
    whole::{Whole, of_whole, wholes},
};

/// What the model read in transformers.
fn input(whole: &Whole) -> TraceInput {
    let fixture = whole.fixture();
    TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap()
}

type Stages = Vec<(String, Tensor)>;

/// Demands of every model that what `run` gives passes by `judge`.
fn judge_all(
    wholes: Vec<Whole>,
    run: impl Fn(&Whole) -> candle_blocks::Result<Stages>,
    judge: impl Fn(&Whole, &Comparison) -> bool,
) {
    let mut failures = Vec::new();
    for whole in wholes {
        match run(&whole) {
            Err(error) => failures.push(format!("{}: {error}", whole.name)),
            Ok(stages) => {
                let computes_gradients = stages.iter().any(|(name, _)| is_gradient(name));
                let report = verify(&whole.fixture(), &stages.into_iter().collect());
                let mut judged = report.comparisons.iter();
                if !judged.all(|c| !computes_gradients && is_gradient(&c.name) || judge(&whole, c))
                {
                    failures.push(format!("{}\n{report}", whole.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn is_gradient(name: &str) -> bool {
    name.starts_with("grads.")
}

#[test]
fn every_model_gives_transformers_logits_and_gradients() {
    judge_all(
        wholes(),
        |whole| trace::run_backward(&whole.open(), &input(whole), DType::F32, &device()),
        |_, c| c.passed() || is_gradient(&c.name) && c.share_used <= of_whole(),
    );
}

#[test]
fn every_model_packed_in_f32_gives_transformers_logits() {
    judge_all(
        wholes(),
        |whole| trace::run_packed(&whole.open(), &input(whole), DType::F32, Precision::F32),
        |_, c| c.passed(),
    );
}

/// As in tests/conformance.rs: a fixture in f32 judges half precision by its own error, and our weights are rounded beside.
const ROUNDED_WEIGHTS: f64 = 2.0;

#[test]
fn every_model_in_bf16_is_within_the_rule_for_half_precision() {
    judge_all(
        wholes(),
        |whole| trace::run(&whole.open(), &input(whole), DType::BF16, &device()),
        |_, c| c.tolerance.is_some() && c.share_used <= ROUNDED_WEIGHTS,
    );
}

#[test]
fn every_model_packed_in_bf16_is_within_the_rule_for_half_precision() {
    judge_all(
        wholes(),
        |whole| trace::run_packed(&whole.open(), &input(whole), DType::BF16, Precision::Bf16),
        |_, c| c.tolerance.is_some() && c.share_used <= ROUNDED_WEIGHTS,
    );
}

/// A result that was rounded to f32 on the way is off by 2²⁹.
const CHANCE: f64 = 512.0;

#[test]
fn nothing_of_a_model_in_f64_is_rounded_to_f32() {
    if !has_f64("whole models in f64") {
        return;
    }
    judge_all(
        wholes(),
        |whole| trace::run_backward(&whole.open(), &input(whole), DType::F64, &Device::Cpu),
        |whole, c| {
            // BLOOM writes √(2/π) with eight digits: 1e-9, which f32 does not see.
            let is_bloom = whole.name.starts_with("families/bloom");
            c.passed() || is_bloom || c.ratio.is_some_and(|ratio| ratio < CHANCE)
        },
    );
}
