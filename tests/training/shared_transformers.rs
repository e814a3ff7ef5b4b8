//! A transformer that blocks share gets the sum of its uses' gradients.

use std::collections::BTreeMap;

use candle_blocks::{
    Stack, StackConfig,
    candle_core::{DType, Tensor, Var},
    config::OwnConfig,
};

use crate::{
    cpu_only::cpu_only,
    double::has_f64,
    small::{WIDTH, made_of, numbers},
    zamba::zamba,
};

/// The transformers of the first and of the last block, where each has its own.
fn apart() -> StackConfig {
    zamba().with_each(|i, block| {
        if let OwnConfig::Zamba(zamba) = &mut block.own
            && let Some(transformer) = &mut zamba.transformer
        {
            transformer.block = i;
            transformer.uses = vec![transformer.number];
        }
    })
}

/// Makes the stack in f64. `value` gives a parameter by its role.
fn made(config: &StackConfig) -> (Stack, BTreeMap<String, Var>) {
    let value = |i: usize, around: f64, dims: &[usize]| {
        let values = numbers(dims, i).to_dtype(DType::F64).unwrap();
        values.affine(0.3, around).unwrap()
    };
    made_of(DType::F64, |vb| Stack::new(config, vb), value)
}

#[test]
fn gradients_of_a_shared_transformer_are_sums_over_its_uses() {
    cpu_only("sums of gradients");
    if !has_f64("gradients of shared transformers") {
        return;
    }
    let (shared, parameters) = made(&zamba());
    let (apart, copies) = made(&apart());
    // The adapters of the second use are the first block's, or the last block's own.
    let original = |role: &str| match role.strip_prefix("blocks.2.transformer.") {
        Some(part) => format!("blocks.0.transformer.{part}"),
        None => role.to_string(),
    };
    for (role, copy) in &copies {
        copy.set(&parameters[&original(role)]).unwrap();
    }
    let x = numbers(&[2, 5, WIDTH], 3).to_dtype(DType::F64).unwrap();
    let cotangent = numbers(&[2, 5, WIDTH], 8).to_dtype(DType::F64).unwrap();
    let backward = |stack: &Stack| {
        let y = stack.forward(&x).unwrap();
        let loss = (&y * &cotangent).unwrap().sum_all().unwrap();
        (y, loss.backward().unwrap())
    };
    let ((y, gradients), (of_apart, each)) = (backward(&shared), backward(&apart));
    let differ = |a: &Tensor, b: &Tensor| {
        let largest = |t: Tensor| {
            t.abs()
                .unwrap()
                .max_all()
                .unwrap()
                .to_vec0::<f64>()
                .unwrap()
        };
        largest((a - b).unwrap()) / largest(b.clone())
    };
    assert!(differ(&y, &of_apart) < 1e-12);
    let mut sums: BTreeMap<String, Tensor> = BTreeMap::new();
    for (role, copy) in &copies {
        let gradient = each.get(copy).unwrap().clone();
        let sum = match sums.remove(&original(role)) {
            Some(sum) => (sum + gradient).unwrap(),
            None => gradient,
        };
        sums.insert(original(role), sum);
    }
    assert!(sums.keys().eq(parameters.keys()));
    assert!(copies.len() > sums.len());
    let worst = |(role, variable): (&String, &Var)| {
        (
            differ(gradients.get(variable).unwrap(), &sums[role]),
            role.clone(),
        )
    };
    let (error, role) = parameters
        .iter()
        .map(worst)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap();
    assert!(error < 1e-9, "{role}: {error}");
}
