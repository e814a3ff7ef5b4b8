//! Every parameter in every block gets its gradient; none is detached.

use candle_blocks::{
    AttentionMask, Checkpoint, CheckpointOptions, ForwardContext, Weights,
    candle_core::{DType, Tensor},
    layers::QueryKeyValue,
    trace,
    train::Gradients,
};

use crate::{
    all::{OTHERS, all},
    committed::present,
    device::device,
    double::has_f64,
    judged,
    numbers::{bits, numbers},
    tensors::builder,
    weights::{is_present, weights},
};

fn largest(tensor: &Tensor) -> f64 {
    let sizes = numbers(tensor).into_iter().map(f64::abs);
    // `f64::max` drops a NaN.
    sizes.fold(0.0, |a, b| if b.is_nan() { b } else { a.max(b) })
}

#[test]
fn every_parameter_gets_a_finite_gradient_that_is_not_zero() {
    for name in present(OTHERS, |&name| name) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        let stack = loader.stack().unwrap();
        let width = checkpoint.config().blocks[0].d_model();
        let x = Tensor::randn(0f32, 1., (2, 5, width), &device()).unwrap();
        let mask = Tensor::new(&[[1u8, 1, 1, 1, 1], [0, 0, 1, 1, 1]], &device()).unwrap();
        let mask = AttentionMask::padding(&mask).unwrap();
        let context = ForwardContext::evaluation().with_mask(mask);
        let y = stack.forward_with(&x, &context).unwrap();
        let cotangent = Tensor::randn(0f32, 1., y.shape(), &device()).unwrap();
        let loss = (y * cotangent).unwrap().sum_all().unwrap();
        let gradients = loss.backward().unwrap();
        let parameters = loader.parameters();
        let per_block = 16;
        let n_expected = per_block * checkpoint.config().blocks.len()
            + if checkpoint.config().final_norm.is_some() {
                2
            } else {
                0
            };
        assert_eq!(parameters.len(), n_expected, "{name}");
        let scale = |role: &str| {
            let (_, variable) = parameters.iter().find(|(r, _)| r == role).unwrap();
            largest(gradients.get(variable).unwrap())
        };
        for (role, variable) in &parameters {
            let gradient = gradients.get(variable);
            let gradient = gradient.unwrap_or_else(|| panic!("{name}: {role} got no gradient"));
            assert_eq!(gradient.dims(), variable.dims(), "{name}: {role}");
            let size = largest(gradient);
            assert!(size.is_finite(), "{name}: {role}");
            // A key's bias adds the same to all scores of a query, and the softmax takes it away:
            // what is left is rounding, some way below its sibling's gradient.
            if role.ends_with("attention.key.bias") {
                let sibling = scale(&role.replace("key", "query"));
                assert!(
                    size < 1e-4 * sibling,
                    "{name}: {role} {size} beside {sibling}"
                );
            } else {
                assert!(size > 0.0, "{name}: {role} got zeros");
            }
        }
    }
}

/// The softmax takes away what a key's bias adds to all scores of a query, where no rotation comes between.
fn is_key_bias(name: &str) -> bool {
    let names = [
        "key.bias",
        "k_proj.bias",
        "k_lin.bias",
        ".k.bias",
        "key_proj.bias",
        "layer_norm_k.bias",
    ];
    names.iter().any(|end| name.ends_with(end))
}

#[test]
fn every_parameter_of_every_family_gets_a_gradient_that_is_not_zero() {
    if !has_f64("gradients of families") {
        return;
    }
    let (mut parameters, mut key_biases) = (0, 0);
    for stack in all() {
        let fixture = stack.fixture();
        let mut input = judged::input(&fixture);
        let shape = input.hidden_states.as_ref().unwrap().shape().clone();
        // Irregular values, and none is zero.
        let cotangent = (0..shape.elem_count()).map(|i| ((i * 29 % 37) as f64 - 17.5) / 20.0);
        let cotangent = Tensor::from_iter(cotangent, &device()).unwrap();
        input.grad_output = Some(cotangent.reshape(shape).unwrap());
        let label = stack.label();
        // A parameter without a gradient is an error already.
        let stages = trace::run_backward(&stack.open(), &input, DType::F64, &device());
        let stages = stages.unwrap_or_else(|e| panic!("{label}: {e}"));
        let sizes: Vec<(String, f64)> = stages
            .iter()
            .filter(|(name, _)| name.starts_with("grads."))
            .map(|(name, gradient)| (name.clone(), largest(gradient)))
            .collect();
        let most = sizes
            .iter()
            .fold(0.0, |most: f64, (_, size)| most.max(*size));
        for (name, size) in sizes {
            assert!(size.is_finite(), "{label}: {name}");
            if is_key_bias(&name) && size < 1e-9 * most {
                key_biases += 1;
            } else {
                assert!(
                    size > 1e-9 * most,
                    "{label}: {name} got {size:e} of {most:e}"
                );
            }
            parameters += 1;
        }
    }
    println!(
        "{parameters} gradients, of which {key_biases} of key biases are nothing but rounding"
    );
    assert!(parameters > 100);
}

#[test]
fn the_input_and_a_learned_additive_mask_get_gradients() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let block = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .block(0)
        .unwrap();
    let var = |dims: &[usize]| {
        candle_blocks::candle_core::Var::from_tensor(
            &Tensor::randn(0f32, 1., dims, &device()).unwrap(),
        )
        .unwrap()
    };
    let (x, bias) = (var(&[2, 4, 20]), var(&[1, 5, 4, 4]));
    let mask = AttentionMask::none().with_additive(bias.as_tensor().clone());
    let context = ForwardContext::evaluation().with_mask(mask);
    let y = block.forward_with(x.as_tensor(), &context).unwrap();
    let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    for (name, variable) in [("input", &x), ("additive mask", &bias)] {
        let gradient = gradients.get(variable).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(gradient.dims(), variable.dims(), "{name}");
        assert!(largest(gradient) > 0.0, "{name}");
    }
}

/// A fused projection computes and trains as its three parts.
#[test]
fn a_fused_projection_equals_separate_ones() {
    if !has_f64("a fused projection in f64") {
        return;
    }
    use candle_blocks::{Attention, candle_core::Var};
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let separate = checkpoint
        .load(Weights::Dense(DType::F64, &device()))
        .block(0)
        .unwrap();
    let separate = separate.mixer().inner().attention().unwrap();
    let QueryKeyValue::Separate { query, key, value } = separate.projections() else {
        panic!("a BERT has separate projections");
    };
    let cat = |parts: [Tensor; 3]| Var::from_tensor(&Tensor::cat(&parts, 0).unwrap()).unwrap();
    let weight = cat([query, key, value].map(|linear| linear.weight().unwrap()));
    let bias = cat([query, key, value].map(|linear| linear.bias().unwrap().clone()));
    let output = separate.output();
    let parameters = builder([
        ("query_key_value.weight", weight.as_tensor()),
        ("query_key_value.bias", bias.as_tensor()),
        ("output.weight", &output.weight().unwrap()),
        ("output.bias", output.bias().unwrap()),
    ]);
    let fused = Attention::new(separate.config(), parameters).unwrap();
    let x = Tensor::randn(0f64, 1., (2, 4, 20), &device()).unwrap();
    let (ours, theirs) = (fused.forward(&x).unwrap(), separate.forward(&x).unwrap());
    assert!(largest(&(&ours - theirs).unwrap()) < 1e-14);
    let gradients = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    for variable in [&weight, &bias] {
        assert!(largest(gradients.get(variable).unwrap()) > 0.0);
    }
}

/// Whoever looks at a stack's stages has its layers computed one by one, which is what fixtures are compared with; else
/// they are computed together where they can be.
#[test]
fn a_stack_as_a_whole_has_the_values_and_gradients_of_its_layers_one_by_one() {
    if !has_f64("stacks as a whole in f64") {
        return;
    }
    let mut n_stacks = 0;
    for committed in all() {
        let label = committed.label();
        let checkpoint = committed.open();
        let loader = checkpoint.trainable(DType::F64, &device()).unwrap();
        let stack = loader.stack().unwrap();
        let parameters = loader.parameters();
        let block = &checkpoint.config().blocks[0];
        let random =
            |dims: (usize, usize, usize)| Tensor::randn(0f64, 1., dims, &device()).unwrap();
        let x = random((2, 5, block.d_model()));
        let keep = Tensor::new(&[[1u8, 1, 1, 1, 1], [0, 0, 1, 1, 1]], &device()).unwrap();
        let context =
            ForwardContext::evaluation().with_mask(AttentionMask::padding(&keep).unwrap());
        let mut context = crate::patches::in_one_row(context, checkpoint.config(), 5);
        if let Some(cross) = &block.cross_attention {
            context =
                context.with_encoder_output(random((2, 4, cross.d_encoder)), AttentionMask::none());
        }
        let one_by_one = stack.observe(&x, &context, |_, _| Ok(())).unwrap();
        let whole = stack.forward_with(&x, &context).unwrap();
        assert!(bits(&whole) == bits(&one_by_one), "{label}");

        // candle's own operations contribute to the first parameter's gradient too.
        let (_, first) = &parameters[0];
        let cotangent = random(x.dims3().unwrap());
        let loss = |y: Tensor| {
            let loss = (y * &cotangent).unwrap().sum_all().unwrap();
            (loss + first.sqr().unwrap().sum_all().unwrap()).unwrap()
        };
        let store = loss(one_by_one).backward().unwrap();
        let expected = Gradients::of(&parameters, &store);
        let found = Gradients::backward(&parameters, &loss(whole)).unwrap();
        let roles = |gradients: &Gradients| gradients.roles().map(String::from).collect::<Vec<_>>();
        assert_eq!(roles(&found), roles(&expected), "{label}");
        for role in expected.roles() {
            let of = |gradients: &Gradients| numbers(&gradients.get(role).unwrap().unwrap());
            let (found, expected) = (of(&found), of(&expected));
            let largest = expected.iter().fold(1.0, |all: f64, x| all.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let error = (found - expected).abs();
                assert!(error <= 1e-11 * largest, "{label}: {role}: {error:e}");
            }
        }
        n_stacks += 1;
    }
    assert!(n_stacks >= 4, "{n_stacks}");
}

/// Follows transformers, whose experts are one tensor: an optimizer then decays all of them.
#[test]
fn an_expert_that_no_position_chose_has_a_gradient_of_0() {
    for name in ["mixtral", "qwen2_moe", "qwen3_moe"] {
        let name = format!("families/{name}");
        if !is_present(&name) {
            continue;
        }
        let checkpoint = Checkpoint::open(weights(&name)).unwrap();
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        let stack = loader.stack().unwrap();
        let width = checkpoint.config().blocks[0].d_model();
        let x = Tensor::randn(0f32, 1., (1, 1, width), &device()).unwrap();
        let y = stack.forward(&x).unwrap();
        let parameters = loader.parameters();
        let loss = y.sqr().unwrap().sum_all().unwrap();
        let gradients = Gradients::backward(&parameters, &loss).unwrap();
        let untouched = parameters.iter().filter(|(role, _)| {
            let gradient = gradients.get(role).unwrap();
            let gradient = gradient.unwrap_or_else(|| panic!("{name}: {role} got no gradient"));
            role.contains("experts.") && role.ends_with("down.weight") && largest(&gradient) == 0.0
        });
        let experts = checkpoint.config().blocks.iter();
        let experts = experts.filter_map(|block| block.feed_forward.experts);
        let n_left_out: usize = experts.map(|e| e.n_experts - e.routing.top_k).sum();
        assert_eq!(untouched.count(), n_left_out, "{name}");
    }
}

/// Its weight is 1 whatever the router says. transformers leaves some rounding there.
#[test]
fn the_router_of_a_single_renormalized_expert_has_a_gradient_of_0() {
    let folder = weights("families/mixtral");
    if !folder.exists() {
        return println!("the package leaves families/mixtral out");
    }
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["num_experts_per_tok"] = 1.into();
    let changed = crate::folder::folder();
    let path = changed.path().join("config.json");
    std::fs::write(&path, json.to_string()).unwrap();
    let checkpoint = CheckpointOptions::default().config(path).open(folder);
    let checkpoint = checkpoint.unwrap();
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let width = checkpoint.config().blocks[0].d_model();
    let x = Tensor::randn(0f32, 1., (2, 5, width), &device()).unwrap();
    let y = loader.stack().unwrap().forward(&x).unwrap();
    let loss = y.sqr().unwrap().sum_all().unwrap();
    let gradients = Gradients::backward(&loader.parameters(), &loss).unwrap();
    let n_blocks = checkpoint.config().blocks.len();
    for i in 0..n_blocks {
        let role = format!("blocks.{i}.feed_forward.router.weight");
        let gradient = gradients.get(&role).unwrap();
        assert_eq!(largest(&gradient.unwrap()), 0.0, "{role}");
    }
}
