//! Low-rank adapters: PyTorch's results, nothing else is trained, and the merged model is the same function.

use candle_blocks::{
    BlockConfig, Checkpoint, Dropout, DropoutSource, FeedForwardForm, ForwardContext, Linear,
    Stack, Weights,
    candle_core::{DType, Device, Tensor},
    config::OwnConfig,
    layers::LowRank,
    train::{AdamW, AdamWConfig, Gradients, Lora, LoraConfig, ParameterGroup},
};

use crate::{
    all::all,
    device::device,
    differentiated::value_and_gradients,
    numbers::{bits, numbers},
    patches::in_one_row,
    reference::{Reference, assert_passed},
    same::assert_same,
    weights::{is_present, weights},
};

const ALL: [&str; 2] = ["*attention.*", "feed_forward.*"];

#[test]
fn outputs_and_gradients_are_those_of_torch() {
    let reference = Reference::open("lora");
    let inputs = ["x", "A", "B"].map(|name| reference.get(name));
    let mut comparisons = Vec::new();
    for (kind, p) in [("plain", 0.0), ("dropped", 0.25)] {
        let forward = |parts: &[Tensor]| {
            let [x, a, b] = parts else { unreachable!() };
            let dropout = Dropout::new(p, DropoutSource::numpy(3))?;
            let adapter = LowRank::from_parts(a.clone(), b.clone(), 8.0 / 2.0)?;
            let linear = Linear::from_parts(reference.get("W"), Some(reference.get("bias")))?;
            let linear = linear.with_adapter(adapter.with_dropout(dropout))?;
            linear.forward_training(x)
        };
        let (output, gradients) =
            value_and_gradients(&inputs, &reference.get("grad_output"), forward);
        comparisons.push(reference.compare(&format!("{kind}.output"), &output));
        for (name, gradient) in ["x", "A", "B"].iter().zip(&gradients) {
            comparisons.push(reference.compare(&format!("{kind}.grad_{name}"), gradient));
        }
    }
    assert_eq!(comparisons.len(), 8);
    assert_passed(&comparisons);
}

fn input(width: usize) -> Tensor {
    let values: Vec<f32> = (0..2 * 4 * width).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_vec(values, (2, 4, width), &device()).unwrap()
}

/// Both factors away from zero, as after training.
fn trained(lora: &Lora) {
    for (i, (_, variable)) in lora.parameters().iter().enumerate() {
        let n = variable.elem_count();
        let values: Vec<f32> = (0..n).map(|k| 0.1 * ((k + i) as f32 * 1.3).cos()).collect();
        let values = Tensor::from_vec(values, variable.shape(), &device()).unwrap();
        variable
            .set(&values.to_dtype(variable.dtype()).unwrap())
            .unwrap();
    }
}

/// The output, in a stack's own terms: decoders with cross-attention get an encoder's.
fn output(stack: &Stack, width: usize, train: bool) -> Tensor {
    let context = ForwardContext::evaluation().with_train(train);
    stack.forward_with(&input(width), &context).unwrap()
}

#[test]
fn fresh_adapters_change_nothing_and_merged_ones_compute_the_same_in_every_family() {
    let mut n_stacks = 0;
    for committed in all() {
        let checkpoint = committed.open();
        let config = checkpoint.config();
        if config
            .blocks
            .iter()
            .any(|block| block.cross_attention.is_some())
        {
            continue; // `cross_attention_has_adapters_too`
        }
        let width = config.blocks[0].d_model();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let output = |stack: &Stack| {
            let context = in_one_row(ForwardContext::evaluation(), config, 4);
            stack.forward_with(&input(width), &context).unwrap()
        };
        let before = output(&stack);
        let mut targets = ALL.to_vec();
        let is_fed = |block: &BlockConfig| block.feed_forward.form != FeedForwardForm::Absent;
        if !config.blocks.iter().any(is_fed) {
            targets.retain(|target| !target.starts_with("feed_forward"));
        }
        if config.layer_inputs.is_some() {
            targets.push("layer_input*");
        }
        if config.blocks[0]
            .own
            .gemma()
            .is_some_and(|gemma| gemma.altup.is_some())
        {
            targets.extend(["laurel*", "altup*"]);
        }
        if let OwnConfig::Adapter { .. } = config.blocks[0].own {
            targets.push("adapter*");
        }
        if config.blocks[0].own.zamba().is_some() {
            targets.push("transformer*");
        }
        let lora = Lora::attach(&mut stack, LoraConfig::new(3, 6.0, &targets), 1).unwrap();
        let n_linears = stack.linears().count();
        assert_eq!(
            lora.parameters().len(),
            2 * n_linears,
            "{}",
            committed.label()
        );
        assert_same(&output(&stack), &before, committed.label());
        trained(&lora);
        let beside = numbers(&output(&stack));
        let moved = beside
            .iter()
            .zip(numbers(&before))
            .map(|(a, b)| (a - b).abs());
        assert!(moved.fold(0.0, f64::max) > 1e-3, "{}", committed.label());
        lora.merge(&mut stack).unwrap();
        assert!(
            stack
                .linears()
                .all(|(_, linear)| linear.adapter().is_none())
        );
        let merged = numbers(&output(&stack));
        let largest = beside.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
        for (merged, beside) in merged.iter().zip(&beside) {
            // Mixtures of experts may choose another expert for a row on the edge; none does here.
            assert!(
                (merged - beside).abs() < 2e-4 * largest,
                "{}: {merged} {beside}",
                committed.label()
            );
        }
        n_stacks += 1;
    }
    assert!(n_stacks >= 4, "{n_stacks}");
}

#[test]
fn cross_attention_has_adapters_too() {
    if !is_present("families/t5") {
        return;
    }
    let options = candle_blocks::CheckpointOptions::default();
    let checkpoint = options
        .part(candle_blocks::checkpoint::scheme::StackPart::Decoder)
        .open(weights("families/t5"))
        .unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let config = LoraConfig::new(2, 2.0, &["cross_attention.*"]);
    let lora = Lora::attach(&mut stack, config, 0).unwrap();
    assert_eq!(lora.parameters().len(), 2 * 4 * stack.blocks().len());
    let width = checkpoint.config().blocks[0].d_model();
    let x = input(width);
    let context = ForwardContext::evaluation().with_encoder_output(x.clone(), Default::default());
    trained(&lora);
    let loss = stack
        .forward_with(&x, &context)
        .unwrap()
        .sqr()
        .unwrap()
        .sum_all()
        .unwrap();
    let gradients = Gradients::of(&lora.parameters(), &loss.backward().unwrap());
    assert_eq!(gradients.roles().count(), lora.parameters().len());
}

#[test]
fn only_the_adapters_are_trained_and_the_merged_weights_are_saved_by_role() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    // A stack of variables, so that a forgotten weight would show.
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let config =
        LoraConfig::new(2, 4.0, &["attention.query", "feed_forward.down"]).with_dropout(0.1);
    let lora = Lora::attach(&mut stack, config.clone(), 3).unwrap();
    stack.set_dropout_source(&DropoutSource::seeded(1));
    let roles: Vec<String> = lora
        .parameters()
        .into_iter()
        .map(|(role, _)| role)
        .collect();
    assert_eq!(roles.len(), 2 * 2 * 2);
    assert!(roles.contains(&"blocks.1.feed_forward.down.lora_b.weight".to_string()));

    let mut optimizer = AdamW::new(
        [ParameterGroup::new(lora.parameters(), 0.0)],
        AdamWConfig {
            learning_rate: 0.01,
            ..Default::default()
        },
    )
    .unwrap();
    let target = input(24).roll(1, 2).unwrap();
    let loss = |train| {
        let off = (output(&stack, 24, train) - &target).unwrap();
        off.sqr().unwrap().mean_all().unwrap()
    };
    let at_first = numbers(&loss(false))[0];
    for step in 0..60 {
        let store = loss(true).backward().unwrap();
        for (role, variable) in loader.parameters() {
            let is_adapted = role.ends_with("attention.query.weight")
                || role.ends_with("feed_forward.down.weight");
            if is_adapted {
                assert!(
                    store.get(&variable).is_none(),
                    "{role} is frozen, but gets a gradient"
                );
            }
        }
        let gradients = optimizer.gradients(&store);
        assert_eq!(gradients.roles().count(), 8, "{step}");
        optimizer.update(&gradients, 1.0).unwrap();
    }
    let at_last = numbers(&loss(false))[0];
    assert!(at_last < 0.9 * at_first, "{at_first} {at_last}");

    let adapted = output(&stack, 24, false);
    let merged = lora.merge(&mut stack).unwrap();
    assert_eq!(merged.len(), 4);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("merged");
    checkpoint
        .save(&saved, merged.iter().map(|(role, weight)| (role, weight)))
        .unwrap();
    let reloaded = Checkpoint::open(&saved)
        .unwrap()
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    assert_eq!(
        bits(&output(&reloaded, 24, false)),
        bits(&output(&stack, 24, false))
    );
    for (merged, beside) in numbers(&output(&reloaded, 24, false))
        .iter()
        .zip(numbers(&adapted))
    {
        assert!((merged - beside).abs() < 1e-4, "{merged} {beside}");
    }
}

#[test]
fn saved_adapters_load_onto_another_copy_of_the_stack() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let config = LoraConfig::new(2, 4.0, &["attention.value"]);
    let lora = Lora::attach(&mut stack, config.clone(), 3).unwrap();
    trained(&lora);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapters.safetensors");
    lora.save(&path).unwrap();
    let mut other = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let loaded = Lora::load(&mut other, &path).unwrap();
    assert_eq!(loaded.config(), &config);
    assert_eq!(
        bits(&output(&other, 20, false)),
        bits(&output(&stack, 20, false))
    );

    // Not onto a stack of other sizes, which stays as it is.
    let smaller = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let mut smaller = smaller
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let message = Lora::load(&mut smaller, &path).unwrap_err().to_string();
    assert!(message.contains("attention.value.lora_"), "{message}");
    assert!(
        smaller
            .linears()
            .all(|(_, linear)| linear.adapter().is_none())
    );
    let foreign = Lora::load(&mut smaller, weights("tiny-bert/model.safetensors"));
    assert!(foreign.unwrap_err().to_string().contains("no adapters"));

    // Nor onto one with fewer blocks, which would leave out adapters without a word.
    let mut config = checkpoint.config().clone();
    config.blocks.truncate(1);
    config.layers.truncate(1);
    let loader = checkpoint.load(Weights::Dense(DType::F32, &device()));
    let mut shorter = Stack::new(&config, loader.var_builder()).unwrap();
    let message = Lora::load(&mut shorter, &path).unwrap_err().to_string();
    assert!(
        message.contains("blocks.1.attention.value.lora_"),
        "{message}"
    );
    assert!(message.contains("no layer"), "{message}");
}

/// Memory is taken for what the file holds, not for what its configuration says.
#[test]
fn a_file_whose_rank_is_not_that_of_its_adapters_is_refused() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapters.safetensors");
    let metadata =
        r#"{"rank":1000000000000,"alpha":1.0,"dropout":0.0,"targets":["attention.value"]}"#;
    let a = Tensor::zeros((2, 20), DType::F32, &Device::Cpu).unwrap();
    let tensors = [("blocks.0.attention.value.lora_a.weight", a)];
    let metadata = Some([("lora".to_string(), metadata.to_string())].into());
    safetensors::serialize_to_file(tensors, metadata, &path).unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let message = Lora::load(&mut stack, &path).unwrap_err().to_string();
    assert!(message.contains("1000000000000"), "{message}");
    assert!(stack.linears().all(|(_, l)| l.adapter().is_none()));
}

#[test]
fn dropout_uses_the_given_stream_and_only_in_training() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let run = |seed, train| {
        let mut config = checkpoint.config().clone();
        for block in &mut config.blocks {
            block.attention_mut().unwrap().dropout = 0.0;
            block.feed_forward.dropout = 0.0;
            *block = block.clone().with_residual_dropout(0.0);
        }
        let loader = checkpoint.load(Weights::Dense(DType::F32, &device()));
        let mut stack = Stack::new(&config, loader.var_builder()).unwrap();
        let config = LoraConfig::new(2, 4.0, &ALL).with_dropout(0.3);
        trained(&Lora::attach(&mut stack, config, 3).unwrap());
        stack.set_dropout_source(&DropoutSource::seeded(seed));
        bits(&output(&stack, 20, train))
    };
    assert_eq!(run(1, true), run(1, true));
    assert_ne!(run(1, true), run(2, true));
    assert_ne!(run(1, true), run(1, false));
    assert_eq!(run(1, false), run(2, false));
}

#[test]
fn layers_that_cannot_be_adapted_are_refused_and_the_stack_is_unchanged() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let mut refused = |config: LoraConfig, culprit: &str| {
        let message = Lora::attach(&mut stack, config, 0).unwrap_err().to_string();
        assert!(message.contains(culprit), "{message}");
        assert!(
            stack
                .linears()
                .all(|(_, linear)| linear.adapter().is_none())
        );
    };
    refused(
        LoraConfig::new(2, 4.0, &["attention.querry"]),
        "attention.query",
    );
    refused(LoraConfig::new(0, 4.0, &["attention.query"]), "rank");
    refused(LoraConfig::new(2, f64::NAN, &["attention.query"]), "alpha");
    refused(LoraConfig::new(2, 4.0, &[]), "targets");
    refused(
        LoraConfig::new(2, 4.0, &["attention.query"]).with_dropout(1.0),
        "dropout",
    );

    let config = LoraConfig::new(2, 4.0, &["blocks.0.attention.query"]);
    let lora = Lora::attach(&mut stack, config.clone(), 0).unwrap();
    assert_eq!(lora.parameters().len(), 2);
    let again = Lora::attach(&mut stack, config, 0).unwrap_err().to_string();
    assert!(again.contains("blocks.0.attention.query"), "{again}");
    let mut other = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    assert!(lora.merge(&mut other).is_err());

    let zeros = |dims: (usize, usize)| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    assert!(LowRank::from_parts(zeros((2, 5)), zeros((7, 3)), 1.0).is_err());
    let linear = Linear::from_parts(zeros((7, 5)), None).unwrap();
    let adapter = LowRank::from_parts(zeros((2, 4)), zeros((7, 2)), 1.0).unwrap();
    assert!(linear.with_adapter(adapter).is_err());
}
