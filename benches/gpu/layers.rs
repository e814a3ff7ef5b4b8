//! Runs one case for `times.py` on a device: compares the results with the CPU's, counts transfers, measures times.
//! Prints a line of JSON.

use std::{collections::HashMap, env, hint::black_box, time::Instant};

use anyhow::{Result, bail, ensure};
use candle_blocks::{
    Activation, AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm, ForwardContext,
    NormConfig, NormPlacement, Position, Precision, RotaryConfig, Stack, StackConfig,
    candle_core::{DType, Device, Tensor},
    candle_nn::VarBuilder,
    config::{AttentionBias, Distribution, Initialization},
    ops,
    train::{AdamW, AdamWConfig, Fresh, ParameterGroup},
};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Case {
    device: String,
    op: Op,
    family: Family,
    d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    d_ff: usize,
    batch: usize,
    seq: usize,
    dtype: String,
    /// The largest allowed distance from the CPU's f32 result: the difference's root mean square divided by the
    /// result's.
    tolerance: f64,
    /// Warm-up calls.
    warm: usize,
    /// The least number of timed calls, which take at least `seconds`.
    least: usize,
    seconds: f64,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Op {
    /// All positions at once.
    Forward,
    /// A single position after `seq` others.
    Decode,
    /// Forward, backward, clipping and AdamW.
    Train,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Family {
    Bert,
    Llama,
}

/// The timed function.
type Call = Box<dyn FnMut() -> Result<Tensor>>;

/// The number of first calls whose results are compared with the CPU's.
const CHECKED: usize = 3;
/// The number of tokens that a decoder takes before it starts over, after `seq` positions.
const TOKENS: usize = 16;
const SEED: u64 = 1;

fn main() -> Result<()> {
    let Some(case) = env::args().nth(1).filter(|case| case.starts_with('{')) else {
        // `cargo bench` runs every bench.
        eprintln!("one case of a report on a device; run benches/gpu/run.py");
        return Ok(());
    };
    let case: Case = serde_json::from_str(&case)?;
    let device = match case.device.as_str() {
        "cpu" => Device::Cpu,
        "cuda" => Device::new_cuda(0)?,
        "metal" => Device::new_metal(0)?,
        other => bail!("{other}: expected cpu, cuda or metal"),
    };
    let (mut call, expected) = match case.op {
        Op::Train => training(&case, &device)?,
        Op::Forward | Op::Decode => inference(&case, &device)?,
    };
    let mut deviation = 0f64;
    for expected in &expected {
        let found = distance(&call()?, expected)?;
        // NaN and infinity are not in the range.
        ensure!(
            (0.0..=case.tolerance).contains(&found),
            "wrong: {found:.1e} away from the CPU's result in f32, {:.1e} allowed",
            case.tolerance
        );
        deviation = deviation.max(found);
    }
    for _ in 0..case.warm {
        call()?;
    }
    let (result, issued) = ops::recorded(&mut call);
    result?;
    let transfers = |name| {
        let of = issued.iter().filter(|operation| operation.name == name);
        of.fold((0, 0), |(n, bytes), operation| {
            (n + 1, bytes + operation.bytes)
        })
    };
    let ms = times(&case, &device, &mut call)?;
    let answer = json!({
        "ms": ms,
        "deviation": deviation,
        "operations": issued.iter().filter(|operation| operation.bytes == 0).count(),
        "uploads": transfers("upload"),
        "downloads": transfers("download"),
        "held_mb": held_mb(&device),
    });
    println!("{answer}");
    Ok(())
}

/// Returns the time for each call. The device is idle before and after.
fn times(case: &Case, device: &Device, call: &mut Call) -> Result<Vec<f64>> {
    let mut ms = Vec::new();
    let begin = Instant::now();
    while ms.len() < case.least || begin.elapsed().as_secs_f64() < case.seconds {
        device.synchronize()?;
        let start = Instant::now();
        let y = black_box(call()?);
        device.synchronize()?;
        ms.push(start.elapsed().as_secs_f64() * 1e3);
        drop(y);
    }
    Ok(ms)
}

/// Returns a call for a layer on the device, and the CPU kernels' f32 results for the same values. A rehearsal on
/// the CPU uses other code for both.
fn inference(case: &Case, device: &Device) -> Result<(Call, Vec<Tensor>)> {
    let dtype = match case.dtype.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        other => bail!("{other}: expected f32 or bf16"),
    };
    let config = config(case)?;
    let drawn = Fresh::new(initialization(), SEED, DType::F32, &Device::Cpu);
    drawn.stack(&config)?;
    let weights: HashMap<String, Tensor> = drawn
        .parameters()
        .iter()
        .map(|(role, variable)| {
            let rounded = variable.as_detached_tensor().to_dtype(dtype)?;
            Ok((role.clone(), rounded))
        })
        .collect::<Result<_>>()?;
    drop(drawn);
    let inputs = [hidden_states(case, case.seq)?, hidden_states(case, 1)?];
    let inputs = inputs.map(|x| x.to_dtype(dtype));
    let [x, token] = inputs;
    let (x, token) = (x?, token?);
    let context = ForwardContext::evaluation();

    let exact = VarBuilder::from_tensors(weights.clone(), DType::F32, &Device::Cpu);
    let packed = Stack::new(&config, exact)?.pack(Precision::F32)?;
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let mut cache = packed.new_cache();
    let expected = match case.op {
        Op::Decode => {
            packed.forward_cached(&wide(&x)?, &context, &mut cache)?;
            let step = |_| packed.forward_cached(&wide(&token)?, &context, &mut cache);
            (0..CHECKED).map(step).collect::<Result<_, _>>()?
        }
        _ => vec![packed.forward_with(&wide(&x)?, &context)?],
    };
    drop((cache, packed));

    let weights = weights
        .into_iter()
        .map(|(role, weight)| Ok((role, weight.to_device(device)?)))
        .collect::<Result<_>>()?;
    let stack = Stack::new(&config, VarBuilder::from_tensors(weights, dtype, device))?;
    let (x, token) = (x.to_device(device)?, token.to_device(device)?);
    let call: Call = match case.op {
        Op::Decode => {
            let mut filled = stack.new_cache();
            stack.forward_cached(&x, &context, &mut filled)?;
            let mut cache = filled.clone();
            Box::new(move || {
                if cache.seen() == filled.seen() + TOKENS {
                    cache = filled.clone();
                }
                Ok(stack.forward_cached(&token, &context, &mut cache)?)
            })
        }
        _ => Box::new(move || Ok(stack.forward_with(&x, &context)?)),
    };
    Ok((call, expected))
}

/// Returns a training step on the device, and the first losses for the same steps on the CPU. A rehearsal compares
/// the steps with themselves.
fn training(case: &Case, device: &Device) -> Result<(Call, Vec<Tensor>)> {
    ensure!(case.dtype == "f32", "training is measured in f32 only");
    let (x, target) = (
        hidden_states(case, case.seq)?,
        hidden_states(case, case.seq)?,
    );
    let steps = |device: &Device| -> Result<Call> {
        let (x, target) = (x.to_device(device)?, target.to_device(device)?);
        let fresh = Fresh::new(initialization(), SEED, DType::F32, device);
        let stack = fresh.stack(&config(case)?)?;
        let group = ParameterGroup::new(fresh.parameters(), 0.01);
        let config = AdamWConfig {
            learning_rate: 1e-4,
            ..Default::default()
        };
        let mut optimizer = AdamW::new([group], config)?;
        Ok(Box::new(move || {
            let y = stack.forward_with(&x, &ForwardContext::training())?;
            let loss = (y - &target)?.sqr()?.mean_all()?;
            let mut gradients = optimizer.backward(&loss)?;
            gradients.clip_norm(1.0)?;
            optimizer.update(&gradients, 1.0)?;
            Ok(loss.detach())
        }))
    };
    let mut on_the_cpu = steps(&Device::Cpu)?;
    let expected = (0..CHECKED).map(|_| on_the_cpu()).collect::<Result<_>>()?;
    Ok((steps(device)?, expected))
}

/// Returns the configuration for a layer in the family.
fn config(case: &Case) -> Result<StackConfig> {
    let attention = AttentionConfig::new(case.d_model, case.n_heads)?;
    let feed_forward = FeedForwardConfig::new(case.d_model).with_d_ff(case.d_ff);
    let block = match case.family {
        Family::Bert => BlockConfig::new(
            attention,
            feed_forward,
            NormConfig::layer_norm(case.d_model, 1e-12),
            NormPlacement::Post,
        ),
        Family::Llama => {
            let rotary = RotaryConfig::new(attention.head_dim, 500_000.0);
            let attention = attention
                .with_kv_heads(case.n_kv_heads)
                .causal()
                .with_position(Position::Rotary(rotary))
                .with_bias(AttentionBias::NONE);
            let feed_forward = feed_forward
                .with_form(FeedForwardForm::Gated)
                .with_activation(Activation::Silu)
                .with_bias(false);
            let norm = NormConfig::rms_norm(case.d_model, 1e-5);
            BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        }
    };
    Ok(StackConfig::uniform(block, 1, None))
}

/// PyTorch's initialization except for norms, whose weights of 1 and biases of 0 would hide mistakes.
fn initialization() -> Initialization {
    Initialization::torch().with("*norm*", Distribution::Uniform { bound: 1.0 })
}

/// Returns `[batch, seq, d_model]` in f32 on the CPU.
fn hidden_states(case: &Case, seq: usize) -> Result<Tensor> {
    let shape = (case.batch, seq, case.d_model);
    Ok(Tensor::randn(0f32, 1., shape, &Device::Cpu)?)
}

/// Returns the difference's root mean square divided by `expected`'s, computed on the CPU.
fn distance(y: &Tensor, expected: &Tensor) -> Result<f64> {
    let numbers = |of: &Tensor| -> Result<Vec<f64>> {
        let of = of.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        Ok(of.flatten_all()?.to_vec1()?)
    };
    ensure!(
        y.dims() == expected.dims(),
        "wrong: {:?} instead of {:?}",
        y.dims(),
        expected.dims()
    );
    let (y, expected) = (numbers(y)?, numbers(expected)?);
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>();
    let error = squares(&mut y.iter().zip(&expected).map(|(y, e)| y - e));
    Ok((error / squares(&mut expected.iter().copied())).sqrt())
}

/// Returns the device memory allocated by this process, which only Metal reports.
fn held_mb(device: &Device) -> Option<f64> {
    match device {
        #[cfg(feature = "metal")]
        Device::Metal(device) => Some(device.metal_device().current_allocated_size() as f64 / 1e6),
        _ => None,
    }
}
