//! Training whose products are in bf16: how far it is from f64, beside PyTorch's autocast, and where it is chosen.

use std::collections::BTreeMap;

use candle_blocks::{
    Activation, AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm, ForwardContext,
    NormConfig, NormPlacement, Position, Precision, RotaryConfig, Stack, TransformerBlock,
    candle_core::{DType, Device, Tensor, Var},
    candle_nn::VarBuilder,
    config::AttentionBias,
    ops::{Route, route},
    train::backward_recomputing,
};

use crate::{
    device::device,
    double::has_f64,
    numbers::{bits, numbers},
    reference::Reference,
    said::assert_says,
    small,
};

const SHAPE: [usize; 3] = [2, 64, 768];

/// The values in `weights/fixtures/reference/autocast.py`.
fn by_rule(dims: &[usize], number: usize, spread: f64, around: f64) -> Tensor {
    let value = |i: u64| {
        let mut z = (i + ((number as u64) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        ((unit - 0.5) * 3.4 * spread + around) as f32
    };
    let n = dims.iter().product::<usize>() as u64;
    Tensor::from_vec((1..=n).map(value).collect(), dims, &Device::Cpu).unwrap()
}

fn bert() -> BlockConfig {
    let attention = AttentionConfig::new(768, 12).unwrap();
    let feed_forward = FeedForwardConfig::new(768).with_activation(Activation::Gelu);
    let norm = NormConfig::layer_norm(768, 1e-12);
    BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post)
}

fn llama() -> BlockConfig {
    let attention = AttentionConfig::new(768, 12).unwrap().with_kv_heads(4);
    let rotary = Position::Rotary(RotaryConfig::new(64, 10_000.0));
    let attention = attention
        .with_position(rotary)
        .with_bias(AttentionBias::NONE)
        .causal();
    let feed_forward = FeedForwardConfig::new(768)
        .with_d_ff(2048)
        .with_form(FeedForwardForm::Gated)
        .with_activation(Activation::Silu)
        .with_bias(false);
    let norm = NormConfig::rms_norm(768, 1e-6);
    BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
}

/// Returns a block's output and all its gradients, by name.
fn computed(
    config: &BlockConfig,
    (dtype, device): (DType, &Device),
    precision: Precision,
) -> BTreeMap<String, Vec<f64>> {
    let value = |number, around: f64, dims: &[usize]| {
        let spread = if dims.len() == 2 { 0.05 } else { 0.1 };
        by_rule(dims, number, spread, around)
            .to_dtype(dtype)
            .unwrap()
    };
    let make = |vb: VarBuilder| TransformerBlock::new(config, vb);
    let (block, parameters) = small::made_on(device, dtype, make, value);
    let here = |number| {
        let tensor = by_rule(&SHAPE, number, 1.0, 0.0).to_dtype(dtype).unwrap();
        tensor.to_device(device).unwrap()
    };
    let x = Var::from_tensor(&here(parameters.len())).unwrap();
    let context = ForwardContext::evaluation()
        .with_precision(precision)
        .unwrap();
    let y = block.forward_with(&x, &context).unwrap();
    assert_eq!(y.dtype(), dtype);
    let loss = (&y * here(parameters.len() + 1)).unwrap();
    let store = loss.sum_all().unwrap().backward().unwrap();
    let mut found = BTreeMap::from([("output".to_string(), numbers(&y))]);
    for (name, variable) in parameters.into_iter().chain([("x".to_string(), x)]) {
        let gradient = store.get(&variable).unwrap();
        assert_eq!(gradient.dtype(), dtype);
        found.insert(format!("grads.{name}"), numbers(gradient));
    }
    found
}

fn rms(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = numbers.len() as f64;
    (numbers.map(|x| x * x).sum::<f64>() / n).sqrt()
}

#[test]
fn no_output_and_no_gradient_is_further_from_f64_than_autocasts() {
    if !has_f64("errors of products in bf16") {
        return;
    }
    // A device's products round their results to bf16 as well, as autocast's do: the same errors but for chance.
    let allowed = match route(&device()) {
        Route::Kernels => 1.0,
        _ => 1.1,
    };
    let reference = Reference::open("autocast");
    for (name, config) in [("bert", bert()), ("llama", llama())] {
        let exact = computed(&config, (DType::F64, &device()), Precision::F32);
        let ours = computed(&config, (DType::F32, &device()), Precision::Bf16);
        let known = reference.names().into_iter();
        let known = known.filter(|known| known.starts_with(name) && known.ends_with(".error"));
        assert_eq!(ours.len(), known.count());
        for (result, exact) in &exact {
            let label = format!("{name}.{result}");
            // The reference for our errors is PyTorch's float64 too.
            let known = numbers(&reference.get(&format!("{label}.f64")));
            let (size, shown) = known.split_last().unwrap();
            let ours_exact = exact.iter().take(shown.len()).copied();
            for (ours, known) in ours_exact.chain([rms(exact.iter().copied())]).zip(&known) {
                assert!(
                    (ours - known).abs() <= 1e-9 * size.max(1.0),
                    "{label}: {ours} {known}"
                );
            }
            let error = rms(ours[result].iter().zip(exact).map(|(a, b)| a - b));
            let autocasts = numbers(&reference.get(&format!("{label}.error")))[0];
            let ratio = error / autocasts;
            println!("{label}: {error:.3e}, {ratio:.3} of autocast's");
            assert!(
                ratio <= allowed,
                "{label}: an error of {error:e}, autocast's is {autocasts:e}"
            );
            // In f32 they would be a thousandth.
            let is_product = result.ends_with("weight") && !result.contains("norm");
            assert!(
                !is_product || ratio > 0.1,
                "{label}: not in bf16, {error:e}"
            );
        }
    }
}

/// A small decoder on the device under test, with its parameters.
fn decoder() -> (Stack, candle_blocks::Parameters) {
    let value = |i, around, dims: &[usize]| small::numbers(dims, i).affine(0.4, around).unwrap();
    let make = |vb: VarBuilder| Stack::new(&small::decoder(), vb);
    let (stack, parameters) = small::made_on(&device(), DType::F32, make, value);
    (stack, parameters.into_iter().collect())
}

fn input() -> Tensor {
    let x = small::numbers(&[3, 5, small::WIDTH], 3);
    x.to_device(&device()).unwrap()
}

fn in_bf16() -> ForwardContext {
    let context = ForwardContext::evaluation();
    context.with_precision(Precision::Bf16).unwrap()
}

#[test]
fn every_way_through_a_stack_multiplies_in_the_same_precision() {
    let ((stack, parameters), x) = (decoder(), input());
    let y = stack.forward_with(&x, &in_bf16()).unwrap();
    let plain = stack.forward(&x).unwrap();
    assert_ne!(bits(&y), bits(&plain));
    let mut seen = Vec::new();
    let observed = stack.observe(&x, &in_bf16(), |_, stages| {
        seen.push(stages.output().clone());
        Ok(())
    });
    assert_eq!(bits(&observed.unwrap()), bits(&y));
    let mut hidden = x.clone();
    for (block, seen) in stack.blocks().iter().zip(seen) {
        let stages = block.stages(&hidden, &in_bf16()).unwrap();
        hidden = block.forward_with(&hidden, &in_bf16()).unwrap();
        assert_eq!(bits(stages.output()), bits(&hidden));
        assert_eq!(bits(&seen), bits(&hidden));
    }
    let cached = stack.forward_cached(&x, &in_bf16(), &mut stack.new_cache());
    assert_eq!(bits(&cached.unwrap()), bits(&y));

    let loss = |y: &Tensor| y.sqr()?.sum_all();
    let store = loss(&stack.forward_with(&x, &in_bf16()).unwrap());
    let store = store.unwrap().backward().unwrap();
    let again = backward_recomputing(&stack, &x, &in_bf16(), &parameters, loss).unwrap();
    for (role, variable) in &parameters {
        let found = again.gradients.get(role).unwrap().unwrap();
        assert_eq!(bits(&found), bits(store.get(variable).unwrap()), "{role}");
    }
}

#[test]
fn layers_without_bf16_products_are_refused() {
    let x = input();
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        if dtype == DType::F64 && !has_f64("refusal of bf16") {
            continue;
        }
        let value = |i, _, dims: &[usize]| small::numbers(dims, i).to_dtype(dtype).unwrap();
        let make = |vb: VarBuilder| Stack::new(&small::decoder(), vb);
        let (stack, _) = small::made_on(&device(), dtype, make, value);
        let x = x.to_dtype(dtype).unwrap();
        let refused = stack.forward_with(&x, &in_bf16()).unwrap_err();
        assert_says(
            &refused,
            &[
                &format!("{dtype:?}"),
                "only products of F32",
                "with_precision",
            ],
        );
    }
    let refused = ForwardContext::training().with_precision(Precision::Int8);
    assert_says(
        refused.unwrap_err(),
        &["precision", "Int8", "expected F32 or Bf16"],
    );
    if device().is_cpu() {
        let packed = decoder().0.pack(Precision::Bf16).unwrap();
        let refused = packed.forward_with(&x, &in_bf16()).unwrap_err();
        assert_says(&refused, &["was packed", "with_precision"]);
    }
}
