//! After adapters over variables are merged, the variables hold the merged weights, and the layers read them.

use candle_blocks::{
    Checkpoint, ForwardContext, Parameters, Stack, Weights,
    candle_core::{DType, Device, Tensor, Var},
    candle_nn::{VarBuilder, VarMap},
    train::{AdamW, AdamWConfig, Lora, LoraConfig, ParameterGroup},
};

use crate::{
    device::device,
    message::message,
    numbers::{bits, numbers},
    said::assert_says,
    weights::weights,
};

const TARGETS: [&str; 2] = ["attention.query", "feed_forward.down"];
const WIDTH: usize = 24;

fn open() -> Checkpoint {
    Checkpoint::open(weights("tiny-gpt2")).unwrap()
}

fn attach(stack: &mut Stack) -> Lora {
    Lora::attach(stack, LoraConfig::new(2, 4.0, &TARGETS), 1).unwrap()
}

fn x() -> Tensor {
    let x = Tensor::arange(0f32, (2 * 3 * WIDTH) as f32, &Device::Cpu).unwrap();
    x.sin()
        .unwrap()
        .reshape((2, 3, WIDTH))
        .unwrap()
        .to_device(&device())
        .unwrap()
}

fn output(stack: &Stack) -> Tensor {
    stack.forward(&x()).unwrap()
}

fn optimizer(parameters: Parameters) -> AdamW {
    let config = AdamWConfig {
        learning_rate: 1e-2,
        ..Default::default()
    };
    AdamW::new([ParameterGroup::new(parameters, 0.0)], config).unwrap()
}

fn train(stack: &Stack, parameters: Parameters, steps: usize) {
    let mut optimizer = optimizer(parameters);
    for _ in 0..steps {
        let y = stack
            .forward_with(&x(), &ForwardContext::evaluation())
            .unwrap();
        let loss = (y - x().cos().unwrap())
            .unwrap()
            .sqr()
            .unwrap()
            .mean_all()
            .unwrap();
        let gradients = optimizer.backward(&loss).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
    }
}

/// Saves the parameters, and returns the output of the model in the files.
fn saved(parameters: Parameters) -> Tensor {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    open().save(&path, parameters).unwrap();
    let reloaded = Checkpoint::open(&path).unwrap();
    output(
        &reloaded
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap(),
    )
}

#[test]
fn the_variables_hold_the_merged_weights_and_are_saved_with_them() {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let before = loader.parameters();
    let before: Vec<Vec<f64>> = before
        .iter()
        .map(|(_, variable)| numbers(variable))
        .collect();
    let lora = attach(&mut stack);
    train(&stack, lora.parameters(), 5);
    let adapted = output(&stack);
    let merged = lora.merge(&mut stack).unwrap();
    let named = |role: &str| merged.iter().find(|(merged, _)| merged == role);
    for ((role, variable), before) in loader.parameters().iter().zip(before) {
        let Some((_, returned)) = named(role) else {
            assert_eq!(numbers(variable), before, "{role}");
            continue;
        };
        assert_eq!(bits(variable), bits(returned), "{role}");
        // PEFT: `weight + scale · B·A`, in float64.
        let layer = role.strip_suffix(".weight").unwrap();
        let factor = |name: &str| {
            let factor = lora
                .parameters()
                .find(&format!("{layer}.lora_{name}.weight"))
                .cloned();
            factor
                .unwrap()
                .to_device(&Device::Cpu)
                .unwrap()
                .to_dtype(DType::F64)
                .unwrap()
        };
        let product = (factor("b").matmul(&factor("a")).unwrap() * (4.0 / 2.0)).unwrap();
        for ((found, before), product) in
            numbers(variable).iter().zip(before).zip(numbers(&product))
        {
            let expected = before + product;
            assert!(
                (found - expected).abs() < 1e-6,
                "{role}: {found} {expected}"
            );
        }
    }
    assert_eq!(merged.len(), 2 * TARGETS.len());
    assert_eq!(bits(&output(&stack)), bits(&saved(loader.parameters())));
    for (merged, adapted) in numbers(&output(&stack)).iter().zip(numbers(&adapted)) {
        assert!((merged - adapted).abs() < 1e-4, "{merged} {adapted}");
    }
}

/// A training that goes on is that of a model which was loaded from the merged files.
#[test]
fn training_goes_on_in_full_with_the_variables_that_the_stack_reads() {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let lora = attach(&mut stack);
    train(&stack, lora.parameters(), 3);
    let returned = lora.merge(&mut stack).unwrap();
    let at_merge: Vec<_> = returned.iter().map(|(_, weight)| bits(weight)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("merged");
    checkpoint.save(&path, loader.parameters()).unwrap();
    let reloaded = Checkpoint::open(&path).unwrap();
    let of_reloaded = reloaded.trainable(DType::F32, &device()).unwrap();
    let other = of_reloaded.stack().unwrap();

    train(&stack, loader.parameters(), 3);
    train(&other, of_reloaded.parameters(), 3);
    for ((role, ours), (_, theirs)) in loader.parameters().iter().zip(&of_reloaded.parameters()) {
        assert!(bits(ours) == bits(theirs), "{role}");
    }
    assert_eq!(bits(&output(&stack)), bits(&saved(loader.parameters())));
    // What was returned is as it was.
    let now: Vec<_> = returned.iter().map(|(_, weight)| bits(weight)).collect();
    assert!(now == at_merge);
    // Adapters are attached again to what the variables hold now.
    let before = bits(&output(&stack));
    attach(&mut stack);
    assert_eq!(bits(&output(&stack)), before);
}

#[test]
fn layers_over_a_var_map_are_saved_merged() {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &device());
    let checkpoint = open();
    let mut stack = Stack::new(checkpoint.config(), builder).unwrap();
    let lora = attach(&mut stack);
    train(&stack, lora.parameters(), 3);
    lora.merge(&mut stack).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.safetensors");
    map.save(&path).unwrap();
    let tensors = candle_blocks::candle_core::safetensors::load(&path, &device()).unwrap();
    let builder = VarBuilder::from_tensors(tensors, DType::F32, &device());
    let reloaded = Stack::new(checkpoint.config(), builder).unwrap();
    assert_eq!(bits(&output(&reloaded)), bits(&output(&stack)));
}

#[test]
fn the_adapters_optimizer_says_at_once_that_there_is_nothing_left_to_train() {
    for is_trainable in [false, true] {
        let checkpoint = open();
        let loader = match is_trainable {
            true => checkpoint.trainable(DType::F32, &device()).unwrap(),
            false => checkpoint.load(Weights::Dense(DType::F32, &device())),
        };
        let mut stack = loader.stack().unwrap();
        let lora = attach(&mut stack);
        let mut optimizer = optimizer(lora.parameters());
        lora.merge(&mut stack).unwrap();
        let loss = output(&stack).sqr().unwrap().mean_all().unwrap();
        let gradients = optimizer.backward(&loss).unwrap();
        assert!(gradients.is_empty());
        let refused = message(optimizer.update(&gradients, 1.0));
        assert_says(refused, &["gradients", "no trained parameter has one"]);
    }
}

#[test]
fn a_loss_from_before_the_merge_has_no_backward_pass() {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let lora = attach(&mut stack);
    train(&stack, lora.parameters(), 1);
    let loss = output(&stack).sqr().unwrap().mean_all().unwrap();
    lora.merge(&mut stack).unwrap();
    let refused = message(optimizer(loader.parameters()).backward(&loss));
    assert!(refused.contains(".weight: "), "{refused}");
    assert_says(
        refused,
        &["modified by an in-place operation", "Lora::merge"],
    );
}

/// A copy reads the same variables, and would add the adapters to them once more.
#[test]
fn a_copy_that_still_has_the_adapters_is_refused_where_it_reads_the_variables() {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let mut stack = loader.stack().unwrap();
    let lora = attach(&mut stack);
    train(&stack, lora.parameters(), 1);
    let mut copy = stack.clone();
    lora.merge(&mut stack).unwrap();
    let merged = bits(&output(&stack));
    let words = [
        "blocks.0.attention.query.weight",
        "merged into this variable",
        "Checkpoint::load",
    ];
    assert_says(message(copy.forward(&x())), &words);
    assert_says(message(lora.merge(&mut copy)), &words);
    assert_says(message(lora.merge(&mut stack)), &["is not one of these"]);
    assert_eq!(bits(&output(&stack)), merged);

    // What the message advises: plain tensors are not written, so copies can be merged while the training goes on.
    let mut stack = open()
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let lora = attach(&mut stack);
    for _ in 0..2 {
        train(&stack, lora.parameters(), 2);
        let mut copy = stack.clone();
        lora.merge(&mut copy).unwrap();
        for (merged, adapted) in numbers(&output(&copy)).iter().zip(numbers(&output(&stack))) {
            assert!((merged - adapted).abs() < 1e-4, "{merged} {adapted}");
        }
    }
}

/// Returns a stack whose weights `weight` makes from variables by role.
fn stack_of(weight: impl Fn(&str, Tensor) -> Tensor) -> Stack {
    let checkpoint = open();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    loader.stack().unwrap();
    let tensor = |(role, variable): &(String, Var)| {
        (role.clone(), weight(role, variable.as_tensor().clone()))
    };
    let tensors = loader.parameters().iter().map(tensor).collect();
    let builder = VarBuilder::from_tensors(tensors, DType::F32, &device());
    Stack::new(checkpoint.config(), builder).unwrap()
}

#[test]
fn a_weight_that_is_no_variable_of_its_own_is_refused_by_name_and_nothing_changes() {
    let view = |role: &str, weight: Tensor| match role {
        "blocks.1.attention.query.weight" => weight.t().unwrap().contiguous().unwrap().t().unwrap(),
        _ => weight,
    };
    let shared = Var::from_tensor(
        &open()
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap()
            .blocks()[0]
            .mixer()
            .inner()
            .attention()
            .unwrap()
            .output()
            .weight()
            .unwrap(),
    )
    .unwrap();
    let shares = |role: &str, weight: Tensor| match role {
        "blocks.1.attention.query.weight" | "blocks.0.attention.output.weight" => {
            shared.as_tensor().clone()
        }
        _ => weight,
    };
    let cases: [(Stack, &str); 2] = [
        (stack_of(view), "computed from one"),
        (
            stack_of(shares),
            "blocks.0.attention.output reads the same variable",
        ),
    ];
    for (mut stack, reason) in cases {
        let lora = attach(&mut stack);
        train(&stack, lora.parameters(), 2);
        let before = bits(&output(&stack));
        let refused = message(lora.merge(&mut stack));
        assert!(
            refused.starts_with("blocks.1.attention.query.weight: "),
            "{refused}"
        );
        assert_says(refused, &[reason, "Lora::save", "Checkpoint::load"]);
        assert_eq!(bits(&output(&stack)), before);
        // What the message advises.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapters.safetensors");
        lora.save(&path).unwrap();
        let mut plain = open()
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        Lora::load(&mut plain, &path)
            .unwrap()
            .merge(&mut plain)
            .unwrap();
    }
}
