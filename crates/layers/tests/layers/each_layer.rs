//! Single layers against PyTorch's outputs and gradients in `weights/reference`, by the ratio rule, on the device under test
//! (`CANDLE_BLOCKS_TEST_DEVICE`).

use std::collections::HashMap;
use std::iter;

use candle_blocks::{
    Activation, Attention, AttentionConfig, AttentionMask, FeedForward, ForwardContext, Linear,
    Norm, NormConfig, Visibility,
    candle_core::{DType, Module, Result, Tensor},
    config::{
        DeltaForm, GatedDeltaNetConfig, LightningConfig, Mamba2Config, MambaConfig, NormWeight,
        RgLruConfig,
    },
    layers::{GatedDeltaNet, LightningAttention, Mamba, Mamba2, RgLru},
    ops,
    verify::{Comparer, Comparison, Expected, compare},
};

use crate::{
    attention_weights::{Seen, attention_weights},
    differentiated::value_and_gradients,
    double::has_f64,
    numbers::numbers,
    reference::{Reference, assert_passed},
    tensors::builder,
};

const PARTS: [&str; 2] = ["weight", "bias"];

/// The output and the gradients, named `<case>.output` and `<case>.grad_<input>`, beside PyTorch's.
fn judge(
    reference: &Reference,
    case: &str,
    inputs: &[(String, Tensor)],
    grad_output: &Tensor,
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Vec<Comparison> {
    let (output, gradients) = differentiated(reference, case, inputs, grad_output, f);
    let gradients = gradients.iter();
    let compared = gradients.filter(|(name, _)| !is_zero_but_for_rounding(name));
    let compared = compared.map(|(name, gradient)| reference.compare(name, gradient));
    iter::once(output).chain(compared).collect()
}

/// Compares the gradients of a layer with many parameters as those of a fixture: PyTorch's error counts as no less than its
/// mean over all of them, because in a gradient of few elements it is chance.
fn judge_together(reference: &Reference, gradients: Vec<(String, Tensor)>) -> Vec<Comparison> {
    let names = gradients.iter().map(|(name, _)| name);
    let expected: Vec<(String, Expected)> = names
        .map(|name| (name.clone(), reference.expected(name)))
        .collect();
    let produced: HashMap<String, Tensor> = gradients.into_iter().collect();
    Comparer::new().compare_gradients(&expected, &produced)
}

/// Compares the output, and returns the gradients with PyTorch's names.
fn differentiated(
    reference: &Reference,
    case: &str,
    inputs: &[(String, Tensor)],
    grad_output: &Tensor,
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> (Comparison, Vec<(String, Tensor)>) {
    let (names, tensors): (Vec<_>, Vec<_>) = inputs.iter().cloned().unzip();
    let (y, gradients) = value_and_gradients(&tensors, grad_output, f);
    let output = reference.compare(&format!("{case}.output"), &y);
    let named = |name: String| format!("{case}.grad_{}", name.replace('.', "_"));
    let gradients = names.into_iter().map(named).zip(gradients);
    (output, gradients.collect())
}

/// Returns whether this is the gradient of attention's key bias, which the softmax cancels: there is nothing to compare.
fn is_zero_but_for_rounding(name: &str) -> bool {
    name.starts_with("attention.") && name.ends_with(".grad_key_bias")
}

/// Makes a linear layer from two inputs, weight and bias.
fn linear(parts: &[Tensor]) -> Result<Linear> {
    Linear::from_parts(parts[0].clone(), Some(parts[1].clone()))
}

/// Returns `x` and every projection's weight and bias, under `prefix`.
fn inputs(reference: &Reference, prefix: &str, projections: &[&str]) -> Vec<(String, Tensor)> {
    let mut inputs = vec![("x".to_string(), reference.get(&format!("{prefix}x")))];
    for projection in projections {
        for part in PARTS {
            let name = format!("{projection}.{part}");
            inputs.push((name.clone(), reference.get(&format!("{prefix}{name}"))));
        }
    }
    inputs
}

#[test]
fn linear_gives_pytorchs_outputs_and_gradients_at_every_rank() {
    let reference = Reference::open("torch_parts");
    let mut comparisons = Vec::new();
    for rank in ["vector", "matrix", "batch"] {
        let case = format!("linear.{rank}");
        let mut inputs = vec![("x".to_string(), reference.get(&format!("{case}.x")))];
        for part in PARTS {
            inputs.push((part.to_string(), reference.get(&format!("linear.{part}"))));
        }
        let grad_output = reference.get(&format!("{case}.grad_output"));
        comparisons.extend(judge(&reference, &case, &inputs, &grad_output, |t| {
            linear(&t[1..])?.forward(&t[0])
        }));
    }
    assert_eq!(comparisons.len(), 12);
    assert_passed(&comparisons);
}

/// Returns PyTorch's and transformers' norms with our configurations.
fn norms() -> Vec<(String, NormConfig)> {
    let mut norms = Vec::new();
    for (label, eps) in [("eps1e-12", 1e-12), ("eps1e-5", 1e-5)] {
        for (kind, config) in [
            ("layer_norm", NormConfig::layer_norm(29, eps)),
            ("rms_norm", NormConfig::rms_norm(29, eps)),
            ("llama_rms_norm", NormConfig::rms_norm(29, eps)),
            (
                "gemma_rms_norm",
                NormConfig::rms_norm(29, eps).with_weight(NormWeight::OnePlus),
            ),
        ] {
            norms.push((format!("{kind}.{label}"), config));
        }
    }
    norms
}

fn norm(config: NormConfig, t: &[Tensor]) -> Result<Tensor> {
    Norm::from_parts(t[1].clone(), t.get(2).cloned(), config)?.forward(&t[0])
}

#[test]
fn every_norm_gives_pytorchs_outputs_and_gradients_on_easy_and_hard_rows() {
    let reference = Reference::open("norms");
    let mut comparisons = Vec::new();
    for (name, config) in norms() {
        for rows in ["ordinary", "large_mean", "constant"] {
            let names = ["x", "weight", "bias"];
            let inputs: Vec<_> = names[..if config.bias { 3 } else { 2 }]
                .iter()
                .map(|part| (part.to_string(), reference.get(&format!("{rows}.{part}"))))
                .collect();
            let grad_output = reference.get(&format!("{rows}.grad_output"));
            let case = format!("{name}.{rows}");
            comparisons.extend(judge(&reference, &case, &inputs, &grad_output, |t| {
                norm(config, t)
            }));
        }
    }
    assert_eq!(comparisons.len(), 2 * 3 * (4 + 3 * 3));
    assert_passed(&comparisons);
}

#[test]
fn every_norm_gives_pytorchs_outputs_in_half_precision() {
    let reference = Reference::open("norms");
    let mut comparisons = Vec::new();
    for (name, config) in norms() {
        for (half, dtype) in [("bf16", DType::BF16), ("f16", DType::F16)] {
            let parts = ["x", "weight", "bias"].map(|part| {
                let part = reference.get(&format!("ordinary.{part}"));
                part.to_dtype(dtype).unwrap()
            });
            let y = norm(config, &parts[..if config.bias { 3 } else { 2 }]).unwrap();
            comparisons.push(reference.compare(&format!("{name}.ordinary.output.{half}"), &y));
        }
    }
    assert_eq!(comparisons.len(), 16);
    assert_passed(&comparisons);
}

#[test]
fn every_activation_gives_pytorchs_values_and_slopes_under_every_name() {
    let reference = Reference::open("activations");
    let x = reference.get("x");
    let in_f64 = has_f64("activations in f64");
    let mut comparisons = Vec::new();
    let mut tested = Vec::new();
    for name in reference.names() {
        let Some(name) = name.strip_suffix(".grad") else {
            continue;
        };
        let activation: Activation = name.parse().unwrap();
        tested.push(activation);
        let f = |t: &[Tensor]| activation.forward(&t[0]);
        let ones = x.ones_like().unwrap();
        let (y, slope) = value_and_gradients(std::slice::from_ref(&x), &ones, f);
        comparisons.push(reference.compare(name, &y));
        comparisons.push(reference.compare(&format!("{name}.grad"), &slope[0]));
        let y = activation.forward(&reference.get("x.bf16")).unwrap();
        comparisons.push(reference.compare(&format!("{name}.bf16"), &y));
        // In double, transformers' gelu_fast shows that it writes √(2/π) with ten digits.
        if in_f64 && name != "gelu_fast" {
            let double = x.to_dtype(DType::F64).unwrap();
            let ones = ones.to_dtype(DType::F64).unwrap();
            let (y, slope) = value_and_gradients(&[double], &ones, f);
            for (name, ours) in [(name.to_string(), &y), (format!("{name}.grad"), &slope[0])] {
                let name = format!("{name}.f64");
                let expected = Expected::new(reference.get(&name), None).unwrap();
                comparisons.push(compare(&name, ours, &expected, None));
            }
        }
    }
    for activation in Activation::all() {
        assert!(tested.contains(&activation), "{activation} is not tested");
    }
    assert_passed(&comparisons);
}

#[test]
fn softmax_gives_pytorchs_weights_and_gradients_under_every_mask() {
    let reference = Reference::open("attention");
    let scores = reference.get("softmax.scores");
    let grad_output = reference.get("softmax.grad_output");
    let keep = reference.get("softmax.keep");
    let mut comparisons = Vec::new();
    for mask in ["none", "padding", "causal", "window", "causal_padding"] {
        let seen = Seen {
            keep: mask.ends_with("padding").then_some(&keep),
            visibility: match mask {
                "none" | "padding" => Visibility::Bidirectional,
                _ => Visibility::Causal,
            },
            window: (mask == "window").then_some(3),
        };
        let case = format!("softmax.{mask}");
        let inputs = [("x".to_string(), scores.clone())];
        comparisons.extend(judge(&reference, &case, &inputs, &grad_output, |t| {
            attention_weights(&t[0], &seen)
        }));
        // Masked keys have weight exactly 0, and so has a row without visible keys.
        let y = numbers(&attention_weights(&scores, &seen).unwrap());
        let zeros = |y: &[f64]| y.iter().map(|&y| y == 0.0).collect::<Vec<_>>();
        let torch = numbers(&reference.get(&format!("{case}.output")));
        assert_eq!(zeros(&y), zeros(&torch), "{mask}");
    }
    let y = ops::softmax(&scores).unwrap();
    comparisons.push(reference.compare("softmax.none.output", &y));
    assert_eq!(comparisons.len(), 11);
    assert_passed(&comparisons);
}

#[test]
fn attention_gives_pytorchs_outputs_and_gradients_under_every_mask() {
    let reference = Reference::open("attention");
    let inputs = inputs(
        &reference,
        "attention.",
        &["query", "key", "value", "output"],
    );
    let grad_output = reference.get("attention.grad_output");
    let mut comparisons = Vec::new();
    for mask in ["none", "padding", "causal", "causal_padding"] {
        let visibility = match mask {
            "none" | "padding" => Visibility::Bidirectional,
            _ => Visibility::Causal,
        };
        let config = AttentionConfig::with_head_dim(14, 6, 5)
            .with_kv_heads(2)
            .with_visibility(visibility);
        let mut context = ForwardContext::evaluation();
        if mask.ends_with("padding") {
            let keep = AttentionMask::padding(&reference.get("attention.keep")).unwrap();
            context = context.with_mask(keep);
        }
        let case = format!("attention.{mask}");
        comparisons.extend(judge(&reference, &case, &inputs, &grad_output, |t| {
            let names = inputs.iter().map(|(name, _)| name);
            Attention::new(&config, builder(names.zip(t).skip(1)))?.forward_with(&t[0], &context)
        }));
    }
    assert_eq!(comparisons.len(), 4 * 9);
    assert_passed(&comparisons);
}

#[test]
fn plain_and_gated_feed_forwards_give_pytorchs_outputs_and_gradients() {
    let reference = Reference::open("feed_forward");
    let grad_output = reference.get("grad_output");
    let mut comparisons = Vec::new();
    for activation in ["gelu", "gelu_new", "relu", "silu"] {
        let plain = inputs(&reference, "", &["up", "down"]);
        let case = format!("plain.{activation}");
        let activation: Activation = activation.parse().unwrap();
        comparisons.extend(judge(&reference, &case, &plain, &grad_output, |t| {
            let (up, down) = (linear(&t[1..])?, linear(&t[3..])?);
            FeedForward::from_parts(None, up, down, activation)?.forward(&t[0])
        }));
        let gated = inputs(&reference, "", &["gate", "up", "down"]);
        let case = case.replace("plain", "gated");
        comparisons.extend(judge(&reference, &case, &gated, &grad_output, |t| {
            let (gate, up, down) = (linear(&t[1..])?, linear(&t[3..])?, linear(&t[5..])?);
            FeedForward::from_parts(Some(gate), up, down, activation)?.forward(&t[0])
        }));
    }
    assert_eq!(comparisons.len(), 4 * (6 + 8));
    assert_passed(&comparisons);
}

#[test]
fn recurrent_mixers_give_transformers_outputs_and_gradients() {
    let reference = Reference::open("recurrent");
    let delta =
        GatedDeltaNetConfig::new(8, [2, 4], [3, 5]).with_norm(NormConfig::rms_norm(5, 1e-3));
    let mamba = Mamba2Config::new(8, [8, 4], 5)
        .with_groups(2)
        .with_taps(3)
        .with_min_step(0.05)
        .with_max_step(Some(0.8))
        .with_norm_eps(1e-3);
    let selective = MambaConfig::new(8, 16, 5, 3)
        .with_taps(3)
        .with_norm(Some(NormConfig::rms_norm(1, 1e-3)));
    let channel_delta = GatedDeltaNetConfig::new(8, [4, 4], [3, 3])
        .with_taps(3)
        .with_norm(NormConfig::rms_norm(3, 1e-3))
        .with_form(DeltaForm::Channel {
            rank: Some(3),
            bound: None,
        });
    let bounded_delta = channel_delta.with_form(DeltaForm::Channel {
        rank: None,
        bound: Some(-1.5),
    });
    let lru = RgLruConfig::new(8, 16, 4).with_taps(3);
    let lightning = LightningConfig::new(8, 4, 3).with_slope(1.0 - 1.0 / (2.0 + 1e-5) + 1e-5);
    let mut comparisons = Vec::new();
    for mixer in [
        "gated_delta_net",
        "mamba2",
        "mamba",
        "channel_delta",
        "bounded_delta",
        "rg_lru",
        "lightning",
    ] {
        let prefix = format!("{mixer}.");
        let is_parameter = |name: &&String| {
            let local = name.strip_prefix(&prefix).unwrap_or_default();
            local.ends_with(".weight") || local.ends_with(".bias")
        };
        let parameters = reference.names();
        let parameters: Vec<String> = parameters.iter().filter(is_parameter).cloned().collect();
        for length in [1, 65] {
            let case = format!("{mixer}.{length}");
            let mut inputs = vec![("x".to_string(), reference.get(&format!("{case}.x")))];
            inputs.extend(parameters.iter().map(|name| {
                let local = name.strip_prefix(&prefix).unwrap().to_string();
                (local, reference.get(name))
            }));
            let grad_output = reference.get(&format!("{case}.grad_output"));
            let (output, gradients) =
                differentiated(&reference, &case, &inputs, &grad_output, |t| {
                    let names = inputs.iter().map(|(name, _)| name);
                    let vb = builder(names.zip(t).skip(1));
                    match mixer {
                        "mamba2" => Mamba2::new(&mamba, vb)?.forward(&t[0]),
                        "mamba" => Mamba::new(&selective, vb)?.forward(&t[0]),
                        "channel_delta" => GatedDeltaNet::new(&channel_delta, vb)?.forward(&t[0]),
                        "bounded_delta" => GatedDeltaNet::new(&bounded_delta, vb)?.forward(&t[0]),
                        "lightning" => LightningAttention::new(&lightning, vb)?.forward(&t[0]),
                        "rg_lru" => RgLru::new(&lru, vb)?.forward(&t[0]),
                        _ => GatedDeltaNet::new(&delta, vb)?.forward(&t[0]),
                    }
                });
            comparisons.push(output);
            comparisons.extend(judge_together(&reference, gradients));
        }
    }
    // Outputs, and gradients of inputs and parameters.
    assert_eq!(
        comparisons.len(),
        2 * (2 + 13)
            + 2 * (2 + 16)
            + 2 * (2 + 15)
            + 2 * (2 + 15)
            + 2 * (2 + 13)
            + 2 * (2 + 25)
            + 2 * (2 + 6)
    );
    assert_passed(&comparisons);
}
