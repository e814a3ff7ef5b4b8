//! A gradient is judged together with its fixture's other gradients.

use candle_blocks::verify::{Comparer, Fixture, Report, Scope, verify};
use safetensors::tensor::Dtype;

use crate::planted::{Case, DIMS, good_run};

/// Among gradients that err by nearly their own size, one that does not may not be anything.
#[test]
fn zeros_do_not_pass_for_a_gradient_in_bad_company() {
    let (mut draft, mut produced) = good_run(2);
    for seed in 0..9 {
        // Two thirds of the largest value: nearly noise, and not quite.
        let (name, ulps) = match seed {
            0 => ("grads.good.weight".to_string(), 1.0),
            _ => (
                format!("grads.bad.{seed}.weight"),
                1.3 / f64::from(f32::EPSILON),
            ),
        };
        let case = Case::with_error(&[16], 1e-3, seed, ulps);
        draft = draft.case(&name, &case);
        produced.insert(name, case.tensor(&case.torch()));
    }
    let fixture = Fixture::open(draft.write()).unwrap();
    let right = Comparer::new().verify(&fixture, &produced, Scope::ForwardAndBackward);
    let name = "grads.good.weight".to_string();
    let zeros = produced[&name].zeros_like().unwrap();
    produced.insert(name.clone(), zeros);
    let wrong = Comparer::new().verify(&fixture, &produced, Scope::ForwardAndBackward);
    let failed = |report: &Report| {
        report
            .comparisons
            .iter()
            .any(|c| c.name == name && !c.passed())
    };
    assert!(failed(&wrong), "{right}\n{wrong}");
}

/// The difference between PyTorch's two precisions in dropped rows says nothing about the gradients.
#[test]
fn dropped_rows_of_a_gradient_are_no_company() {
    let weight = Case::new(&[4, 16], 1.0, 4);
    let mut input_gradient = Case::new(&DIMS, 1.0, 5);
    input_gradient.exact[..4].copy_from_slice(&[9.0; 4]);
    let bytes = [&[5.0; 4], &input_gradient.torch()[4..]].concat();
    let bytes = bytes.iter().flat_map(|v| v.to_le_bytes()).collect();
    let (draft, mut produced) = good_run(1);
    let draft = draft
        .i64("attention_mask", &[2, 3], &[0, 1, 1, 1, 1, 1])
        .raw("grads.hidden_states", Dtype::F32, &DIMS, bytes)
        .f64("grads.hidden_states.f64", &DIMS, &input_gradient.exact)
        .case("grads.h.0.weight", &weight);
    let fixture = Fixture::open(draft.write()).unwrap();
    let names = ["grads.hidden_states", "grads.h.0.weight"];
    for (name, case) in names.into_iter().zip([&input_gradient, &weight]) {
        produced.insert(name.to_string(), case.tensor(&case.ours()));
    }
    assert!(verify(&fixture, &produced).passed);
    let mut wrong = weight.ours();
    wrong[9] += 0.01 * weight.largest() as f32;
    produced.insert("grads.h.0.weight".to_string(), weight.tensor(&wrong));
    assert_eq!(
        verify(&fixture, &produced).first_divergence.as_deref(),
        Some("grads.h.0.weight")
    );
}

/// Like a key bias's gradient, which the softmax cancels: zero except for rounding.
#[test]
fn without_a_twin_the_noise_of_a_gradient_is_measured_by_its_module() {
    let weight = Case::new(&[4, 16], 1.0, 4);
    let noise = |seed| Case::new(&[16], 1e-7, seed);
    let bytes = |case: &Case| case.torch().iter().flat_map(|v| v.to_le_bytes()).collect();
    let (draft, mut produced) = good_run(1);
    let draft = draft
        .raw("grads.key.weight", Dtype::F32, &[4, 16], bytes(&weight))
        .raw("grads.key.bias", Dtype::F32, &[16], bytes(&noise(5)))
        .raw("grads.down.bias", Dtype::F32, &[16], bytes(&noise(6)));
    let fixture = Fixture::open(draft.write()).unwrap();
    let ours = |case: &Case| case.tensor(&case.ours());
    produced.insert("grads.key.weight".to_string(), ours(&weight));
    produced.insert("grads.key.bias".to_string(), ours(&noise(7)));
    produced.insert("grads.down.bias".to_string(), ours(&noise(6)));
    let report = verify(&fixture, &produced);
    assert!(report.passed, "{report}");

    // Small, but no noise: its module has no larger gradient.
    let mut other = produced.clone();
    other.insert("grads.down.bias".to_string(), ours(&noise(7)));
    assert!(!verify(&fixture, &other).passed);
    let large = Case::new(&[16], 1e-3, 7);
    produced.insert("grads.key.bias".to_string(), ours(&large));
    assert!(!verify(&fixture, &produced).passed);
}

/// There a hundredth of a weight's gradient is within rounding, but may be right or wrong all the same.
#[test]
fn without_a_twin_no_small_gradient_counts_as_noise_in_half_precision() {
    let in_bf16 = |case: &Case| {
        let bits = |v: f32| half::bf16::from_f32(v).to_le_bytes();
        case.torch().into_iter().flat_map(bits).collect()
    };
    let (weight, bias) = (Case::new(&[4, 16], 1.0, 4), Case::new(&[16], 1e-2, 5));
    let (draft, mut produced) = good_run(1);
    let draft = draft
        .raw("grads.up.weight", Dtype::BF16, &[4, 16], in_bf16(&weight))
        .raw("grads.up.bias", Dtype::BF16, &[16], in_bf16(&bias));
    let fixture = Fixture::open(draft.write()).unwrap();
    for (name, case) in [("grads.up.weight", &weight), ("grads.up.bias", &bias)] {
        produced.insert(name.to_string(), case.tensor(&case.ours()));
    }
    assert!(verify(&fixture, &produced).passed);
    let zeros = produced["grads.up.bias"].zeros_like().unwrap();
    produced.insert("grads.up.bias".to_string(), zeros);
    assert!(!verify(&fixture, &produced).passed);
}
