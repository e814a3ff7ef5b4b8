//! The number of operations that a GPU would run, counted in a rehearsal.

use std::collections::BTreeMap;

use candle_blocks::{
    Checkpoint, ForwardContext, Stack, Weights,
    candle_core::{DType, Device, Tensor},
    ops::{Operation, recorded},
    train::{Lora, LoraConfig},
};

use crate::{
    cpu_only::cpu_only,
    rehearsal::rehearsed,
    weights::{is_present, weights},
};

/// A checkpoint, and the maximum number of operations for one of its layers: forward, and forward plus backward. This is
/// less than half of the number when candle's graph computed the backward pass (docs/devices.md).
const LAYERS: [(&str, [usize; 2]); 3] = [
    ("tiny-bert", [32, 165]),
    ("families/llama", [26, 130]),
    ("families/qwen3_moe", [90, 300]),
];

/// Returns the back end of a rehearsal. Outside of it there is nothing to count; `rehearsal_of_all` runs these tests in two.
fn backend() -> Option<String> {
    cpu_only("operations are counted in a rehearsal");
    rehearsed()
}

fn operations(of: &[Operation]) -> usize {
    of.iter().filter(|operation| operation.bytes == 0).count()
}

fn by_name(of: &[Operation]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for operation in of {
        *counts.entry(operation.name).or_default() += 1;
    }
    counts
}

fn transfers(of: &[Operation], name: &str) -> (usize, usize) {
    let of = of.iter().filter(|operation| operation.name == name);
    of.fold((0, 0), |(n, bytes), operation| {
        (n + 1, bytes + operation.bytes)
    })
}

#[test]
fn a_token_of_decoding_uploads_nothing_and_waits_for_nothing() {
    const NAME: &str = "families/llama";
    if backend().is_none() || !is_present(NAME) {
        return;
    }
    let (stack, x) = opened(NAME, false);
    let (mut cache, context) = (stack.new_cache(), ForwardContext::evaluation());
    let mut decoded = |x: &Tensor| stack.forward_cached(x, &context, &mut cache).unwrap();
    decoded(&x);
    let token = x.narrow(1, 0, 1).unwrap();
    decoded(&token);
    let (_, issued) = recorded(|| decoded(&token));
    let n_layers = stack.layers().len();
    let found = operations(&issued).div_ceil(n_layers);
    println!("{NAME}: {found} operations for a token and layer");
    // 74 when candle's operations were put together without a tape.
    assert!(found <= 28, "{:?}", by_name(&issued));
    assert_eq!(
        [
            transfers(&issued, "upload").0,
            transfers(&issued, "download").0
        ],
        [0, 0]
    );
}

/// Returns a checkpoint's blocks in f32, and an input.
fn opened(name: &str, trainable: bool) -> (Stack, Tensor) {
    match trainable {
        true => {
            let checkpoint = Checkpoint::open(weights(name)).unwrap();
            let trainable = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
            (trainable.stack().unwrap(), input(&checkpoint))
        }
        false => opened_in(name, DType::F32),
    }
}

fn opened_in(name: &str, dtype: DType) -> (Stack, Tensor) {
    let checkpoint = Checkpoint::open(weights(name)).unwrap();
    let stack = checkpoint
        .load(Weights::Dense(dtype, &Device::Cpu))
        .stack()
        .unwrap();
    (stack, input(&checkpoint).to_dtype(dtype).unwrap())
}

fn input(checkpoint: &Checkpoint) -> Tensor {
    let d_model = checkpoint.config().blocks[0].d_model();
    Tensor::randn(0f32, 1., (2, 8, d_model), &Device::Cpu).unwrap()
}

/// Families of experts: the most operations that their blocks take in bf16 by candle's kernel for experts, which CUDA alone has,
/// and uploads: Llama 4's factors on queries, which depend on the length.
const EXPERTS: [(&str, usize, usize); 3] = [
    ("families/deepseek_v3-eights", 240, 0),
    ("families/llama4_text-eights", 165, 2),
    ("families/gpt_oss-eights", 240, 0),
];

#[test]
fn a_device_chooses_experts_itself() {
    let Some(backend) = backend() else {
        return; // `rehearsal_of_all` runs it
    };
    let context = ForwardContext::evaluation();
    for (name, most, uploads) in EXPERTS.into_iter().filter(|(name, ..)| is_present(name)) {
        for dtype in [DType::BF16, DType::F32] {
            let (stack, x) = opened_in(name, dtype);
            stack.forward_with(&x, &context).unwrap();
            let (_, issued) = recorded(|| stack.forward_with(&x, &context).unwrap());
            let found = operations(&issued);
            let moved = ["upload", "download"].map(|way| transfers(&issued, way).0);
            println!("{name}, {dtype:?} as {backend}: {found} operations, {moved:?} transfers");
            assert_eq!(moved, [uploads, 0], "{name}, {dtype:?}");
            let has_kernel = backend == "cuda" && dtype == DType::BF16;
            assert!(!has_kernel || found <= most, "{:?}", by_name(&issued));
        }
    }
}

#[test]
fn experts_that_are_given_other_parameters_compute_with_them() {
    let name = "families/gpt_oss-eights";
    if backend().is_none() || !is_present(name) {
        return;
    }
    let distance = |a: &Tensor, b: &Tensor| {
        let largest = (a - b).unwrap().abs().unwrap().max_all().unwrap();
        largest.to_scalar::<f32>().unwrap()
    };
    for dtype in [DType::BF16, DType::F32] {
        let (mut stack, x) = opened_in(name, dtype);
        let output = |stack: &Stack| {
            let y = stack.forward_with(&x, &ForwardContext::evaluation());
            y.unwrap().to_dtype(DType::F32).unwrap()
        };
        let before = output(&stack);
        let config = LoraConfig::new(2, 4.0, &["feed_forward.experts.*.down"]);
        let lora = Lora::attach(&mut stack, config, 1).unwrap();
        for (_, parameter) in &lora.parameters() {
            parameter.set(&parameter.ones_like().unwrap()).unwrap();
        }
        let beside = output(&stack);
        lora.merge(&mut stack).unwrap();
        let merged = output(&stack);
        let (change, difference) = (distance(&before, &merged), distance(&beside, &merged));
        assert!(change > 0.1, "{dtype:?}: {change}");
        // In bfloat16 the sum of weights is rounded, and a row near the edge may choose other experts.
        assert!(
            dtype == DType::BF16 || difference < 0.01 * change,
            "{difference}"
        );
    }
}

#[test]
fn a_layer_issues_few_operations_and_waits_for_nothing() {
    let Some(backend) = backend() else {
        return; // `rehearsal_of_all` runs it
    };
    let context = ForwardContext::evaluation();
    for (name, most) in LAYERS {
        if !is_present(name) {
            continue;
        }
        let (stack, x) = opened(name, false);
        // The first pass uploads masks and tables, which stay.
        stack.forward_with(&x, &context).unwrap();
        let (_, forward) = recorded(|| stack.forward_with(&x, &context).unwrap());
        let (trained, x) = opened(name, true);
        trained.forward_with(&x, &context).unwrap();
        let (_, both) = recorded(|| {
            let y = trained.forward_with(&x, &context).unwrap();
            y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
        });
        let n_layers = stack.layers().len();
        let found = [&forward, &both].map(|of| operations(of).div_ceil(n_layers));
        println!("{name}: {found:?} operations a layer, of {most:?}");
        // Metal's `erf` is made of thirty.
        let counted = found.iter().zip(most).filter(|_| backend == "cuda");
        for (found, most) in counted {
            assert!(
                *found <= most,
                "{name}: {found} operations a layer, of {most}: {:?} and {:?}",
                by_name(&forward),
                by_name(&both)
            );
        }
        for of in [&forward, &both] {
            let moved = ["upload", "download"].map(|way| transfers(of, way).0);
            assert_eq!(moved, [0, 0], "{name}");
        }
    }
}
