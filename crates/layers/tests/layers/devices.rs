//! The device under test: `CANDLE_BLOCKS_TEST_DEVICE` names it, and nothing falls back to another.
//!
//! ```text
//! CANDLE_BLOCKS_TEST_DEVICE=cuda cargo test --release --features cuda
//! ```
//!
//! runs unpacked layers on the GPU: here every layer alone and whole blocks against PyTorch, and operations; in `training`
//! all other tests. If the device has no f64 (Metal), tests that need it are skipped with a message.

use std::process::Command;

use candle_blocks::{
    Activation, Attention, AttentionConfig, AttentionMask, BlockConfig, Checkpoint, Dropout,
    DropoutSource, FeedForward, FeedForwardConfig, FeedForwardForm, ForwardContext, Linear,
    LinearConfig, Norm, NormConfig, NormPlacement, TransformerBlock,
    candle_core::{DType, Device, Module, ModuleT, Tensor},
    candle_nn::{VarBuilder, VarMap},
    config::Initialization,
    train::Fresh,
};

use crate::{
    cpu_only::cpu_only,
    device::{DEVICE_VARIABLE, device},
    differentiated::value_and_gradients,
    numbers::{bits, numbers},
    reference::{Reference, assert_passed},
    types::computable,
    weights::{left_out, weights},
};

/// Runs another test in this file on the device with that name.
fn run_on(name: &str, test: &str) -> (bool, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("devices::{test}"), "--nocapture"])
        .env(DEVICE_VARIABLE, name)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("running 1 test"), "{text}");
    (output.status.success(), text)
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no processes")]
fn a_device_that_the_build_lacks_is_a_failure_and_not_the_cpu() {
    cpu_only("other processes open a device");
    for (name, is_built) in [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(feature = "metal")),
    ] {
        if is_built {
            continue;
        }
        let (passed, text) = run_on(name, "every_layer_answers_on_the_device_of_its_input");
        assert!(!passed, "{text}");
        let cause = format!("{DEVICE_VARIABLE}={name}: ");
        assert!(text.contains(&cause), "{text}");
        assert!(
            text.contains(&format!("not been built with {name}")),
            "{text}"
        );
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no processes")]
fn an_unknown_device_is_a_failure_that_lists_the_known_ones() {
    cpu_only("other processes open a device");
    let (passed, text) = run_on("gpu", "every_layer_answers_on_the_device_of_its_input");
    assert!(!passed, "{text}");
    assert!(text.contains("expected cpu, cuda or metal"), "{text}");
}

#[test]
fn every_layer_answers_on_the_device_of_its_input() {
    let device = device();
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
    for dtype in computable(dtypes, "layers in f64") {
        let parameters = VarMap::new();
        let vb = VarBuilder::from_varmap(&parameters, dtype, &device);
        let x = Tensor::randn(0f32, 1., (2, 3, 8), &device).unwrap();
        let x = x.to_dtype(dtype).unwrap(); // [batch, seq, d_model]
        let keep = Tensor::new(&[[1u8, 1, 1], [1, 1, 0]], &device).unwrap();
        let context = ForwardContext::training().with_mask(AttentionMask::padding(&keep).unwrap());

        let mut answers = Vec::new();
        let mut answer = |name: String, y: candle_blocks::candle_core::Result<Tensor>| {
            let y = y.unwrap_or_else(|error| panic!("{name} in {dtype:?}: {error}"));
            answers.push((name, y));
        };
        let linear = Linear::new(&LinearConfig::new(8, 8), vb.pp("linear")).unwrap();
        answer("linear".to_string(), linear.forward(&x));
        for config in [
            NormConfig::layer_norm(8, 1e-5),
            NormConfig::rms_norm(8, 1e-5),
        ] {
            let norm = Norm::new(&config, vb.pp(format!("{:?}", config.kind))).unwrap();
            answer(format!("{:?}", config.kind), norm.forward(&x));
        }
        for activation in Activation::all() {
            answer(activation.to_string(), activation.forward(&x));
        }
        for source in [
            DropoutSource::candle(),
            DropoutSource::seeded(1),
            DropoutSource::numpy(1),
        ] {
            let dropout = Dropout::new(0.5, source).unwrap();
            answer(format!("{dropout:?}"), dropout.forward_t(&x, true));
        }
        let attention = AttentionConfig::new(8, 2).unwrap().with_dropout(0.1);
        let layer = Attention::new(&attention, vb.pp("attention")).unwrap();
        answer("attention".to_string(), layer.forward_with(&x, &context));
        for form in [FeedForwardForm::Plain, FeedForwardForm::Gated] {
            let feed_forward = FeedForwardConfig::new(8).with_form(form).with_dropout(0.1);
            let name = format!("{form:?}");
            let layer = FeedForward::new(&feed_forward, vb.pp(&name)).unwrap();
            answer(name, layer.forward_t(&x, true));
            for placement in [NormPlacement::Pre, NormPlacement::Post] {
                let norm = NormConfig::layer_norm(8, 1e-5);
                let config =
                    BlockConfig::new(attention.clone(), feed_forward.clone(), norm, placement);
                let name = format!("{form:?} {placement:?} block");
                let block = TransformerBlock::new(&config, vb.pp(&name)).unwrap();
                answer(name, block.forward_with(&x, &context));
            }
        }

        for (name, y) in &answers {
            assert!(y.device().same_device(&device), "{name}");
            assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype), "{name}");
            assert!(numbers(y).iter().all(|y| y.is_finite()), "{name}: {y}");
        }
        let sum = answers.iter().fold(x, |sum, (_, y)| (sum + y).unwrap());
        let gradients = sum.sum_all().unwrap().backward().unwrap();
        for var in parameters.all_vars() {
            let gradient = gradients.get(&var).expect("every parameter has a gradient");
            assert!(gradient.device().same_device(&device));
        }
    }
}

#[test]
fn an_input_on_another_device_than_the_layers_is_refused_and_not_computed() {
    let device = device();
    if device.is_cpu() {
        return left_out("inputs on another device: the device under test is the CPU");
    }
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &device);
    let on_device = Tensor::ones((2, 8), DType::F32, &device).unwrap();
    let on_cpu = on_device.to_device(&Device::Cpu).unwrap();
    let linear = Linear::new(&LinearConfig::new(8, 8), vb.pp("linear")).unwrap();
    let norm = Norm::new(&NormConfig::layer_norm(8, 1e-5), vb.pp("norm")).unwrap();
    let feed_forward = FeedForward::new(&FeedForwardConfig::new(8), vb.pp("mlp")).unwrap();
    let host = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let layer_on_cpu = Linear::new(&LinearConfig::new(8, 8), host.pp("linear")).unwrap();
    for (name, refused) in [
        ("linear", linear.forward(&on_cpu)),
        ("norm", norm.forward(&on_cpu)),
        ("feed-forward", feed_forward.forward_t(&on_cpu, false)),
        ("a layer on the CPU", layer_on_cpu.forward(&on_device)),
    ] {
        let message = refused.expect_err(name).to_string().to_lowercase();
        assert!(
            message.contains("cuda") || message.contains("metal"),
            "{name}: {message}"
        );
        assert!(message.contains("cpu"), "{name}: {message}");
    }
    // The cure that the message names.
    linear.forward(&on_cpu.to_device(&device).unwrap()).unwrap();
}

#[test]
fn a_checkpoint_loads_onto_the_device() {
    for name in ["tiny-bert", "tiny-gpt2", "tiny-bert-bf16", "tiny-gpt2-f16"] {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        loader.stack().unwrap();
        assert!(!loader.parameters().is_empty(), "{name}");
        for (role, variable) in loader.parameters() {
            assert!(variable.device().same_device(&device()), "{name}: {role}");
        }
    }
}

/// Layers that share a parameter may request it with different device handles. On Metal, candle treats these as two devices.
#[test]
fn a_parameter_is_one_for_all_handles_of_its_device() {
    let other = match device() {
        Device::Cpu => Device::Cpu,
        Device::Cuda(_) => Device::new_cuda(0).unwrap(),
        Device::Metal(_) => return left_out("two handles of one device: on Metal they are two"),
    };
    let fresh = Fresh::new(Initialization::layers(), 1, DType::F32, &device());
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let role = "blocks.0.feed_forward.up.bias";
    let shape = checkpoint.config().blocks[0].feed_forward.d_ff;
    for vb in [fresh.var_builder(), loader.var_builder()] {
        let first = vb.get(shape, role).unwrap();
        let again = vb.set_device(other.clone()).get(shape, role).unwrap();
        assert_eq!(again.id(), first.id());
    }
}

/// In f32, the reference's small integers are exact, but the division is not.
#[test]
fn seeded_dropout_drops_what_numpy_drops_forward_and_backward() {
    let reference = Reference::open("dropout");
    let mut comparisons = Vec::new();
    for name in reference.names() {
        let Some(case) = name.strip_suffix(".mask") else {
            continue;
        };
        let (size, rest) = case.split_once(".seed").unwrap();
        let (seed, p) = rest.split_once(".p").unwrap();
        let (seed, p): (u32, f64) = (seed.parse().unwrap(), p.parse().unwrap());
        // Converted on the CPU: Metal has no f64.
        let read = |part: &str| {
            let part = reference.get(&format!("{size}.{part}"));
            let part = part.to_device(&Device::Cpu).unwrap();
            let part = part.to_dtype(DType::F32).unwrap();
            part.to_device(&device()).unwrap()
        };
        let (x, y) = (read("x"), read("y"));
        let (dropped, gradients) = value_and_gradients(&[y], &x.ones_like().unwrap(), |t| {
            Dropout::new(p, DropoutSource::numpy(seed))?.forward_t(&t[0], true)
        });
        comparisons.push(reference.compare(&format!("{case}.out"), &(x + dropped).unwrap()));
        // The gradient is 0 where the mask is, and what is kept is divided by 1 - p.
        let mask = numbers(&reference.get(&name));
        let expected = mask
            .iter()
            .map(|m| f64::from((m / (1.0 - p)) as f32).to_bits());
        assert_eq!(bits(&gradients[0]), expected.collect::<Vec<_>>(), "{case}");
    }
    assert!(comparisons.len() >= 100, "only {}", comparisons.len());
    assert_passed(&comparisons);
}
