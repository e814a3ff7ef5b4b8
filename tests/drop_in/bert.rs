//! `compat::bert` beside candle-transformers itself: one text, one `use` line changed.

use std::{collections::HashMap, path::PathBuf};

use candle_blocks::candle_core::{DType, Device, Result, Tensor, safetensors};
use candle_blocks::candle_nn::{VarBuilder, VarMap};
use candle_blocks::compat::bert as ours;
use candle_transformers::models::bert as theirs;

/// Far above what f32 rounds in these models, far below any mistake.
const MOST: f32 = 2e-5;

fn weights(local: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights");
    PathBuf::from(folder).join(local)
}

fn tensors(name: &str) -> HashMap<String, Tensor> {
    safetensors::load(weights(&format!("{name}/model.safetensors")), &Device::Cpu).unwrap()
}

/// The same file read by both.
fn models(name: &str, change: impl Fn(String) -> String) -> (ours::BertModel, theirs::BertModel) {
    let json = std::fs::read(weights(&format!("{name}/config.json"))).unwrap();
    let renamed = tensors(name)
        .into_iter()
        .map(|(name, tensor)| (change(name), tensor));
    let vb = VarBuilder::from_tensors(renamed.collect(), DType::F32, &Device::Cpu);
    let our_config: ours::Config = serde_json::from_slice(&json).unwrap();
    let their_config: theirs::Config = serde_json::from_slice(&json).unwrap();
    let models = (
        ours::BertModel::load(vb.clone(), &our_config).unwrap(),
        theirs::BertModel::load(vb, &their_config).unwrap(),
    );
    assert!(models.0.device.is_cpu());
    models
}

/// The largest difference in the rows that `kept` marks.
fn difference(a: &Tensor, b: &Tensor, kept: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    let kept = kept.to_dtype(DType::F32).unwrap().unsqueeze(2).unwrap();
    let difference = (a - b)
        .unwrap()
        .abs()
        .unwrap()
        .broadcast_mul(&kept)
        .unwrap();
    difference.max_all().unwrap().to_scalar().unwrap()
}

fn ids() -> Result<(Tensor, Tensor, Tensor)> {
    let ids = Tensor::new(&[[2u32, 5, 7, 1, 3], [4, 1, 9, 0, 0]], &Device::Cpu)?;
    let types = Tensor::new(&[[0u32, 0, 1, 1, 1], [0, 1, 1, 0, 0]], &Device::Cpu)?;
    let mask = Tensor::new(&[[1u8, 1, 1, 1, 1], [1, 1, 1, 0, 0]], &Device::Cpu)?;
    Ok((ids, types, mask))
}

#[test]
fn hidden_states_are_those_of_candle_transformers_whatever_the_mask() -> Result<()> {
    let (ours, theirs) = models("tiny-bert", |name| name);
    let (ids, types, mask) = ids()?;
    let all = mask.ones_like()?;
    let causal = Tensor::tril2(5, DType::F32, &Device::Cpu)?.unsqueeze(0)?;
    let causal = causal.broadcast_as((2, 5, 5))?.contiguous()?;
    let half = (mask.to_dtype(DType::F32)? * 0.5)?;
    let masks = [
        (None, &all),
        (Some(mask.clone()), &mask),
        (Some(mask.to_dtype(DType::F32)?), &mask),
        (Some(mask.to_dtype(DType::I64)?), &mask),
        (Some(mask.to_dtype(DType::U32)?), &mask),
        (Some(causal.clone()), &all),
        (Some(causal.to_dtype(DType::U8)?), &all),
        (Some(half), &mask),
    ];
    for (i, (given, kept)) in masks.into_iter().enumerate() {
        let a = ours.forward(&ids, &types, given.as_ref())?;
        let b = theirs.forward(&ids, &types, given.as_ref())?;
        let found = difference(&a, &b, kept);
        assert!(found < MOST, "mask {i}: {found}");
    }
    let plain = theirs.forward(&ids, &types, None)?;
    let masked = theirs.forward(&ids, &types, Some(&mask))?;
    assert!(
        difference(&plain, &masked, &mask) > MOST,
        "the masks change nothing"
    );
    Ok(())
}

#[test]
fn weights_are_found_under_the_prefixes_that_candle_transformers_tries() -> Result<()> {
    let (ids, types, mask) = ids()?;
    let (plain, _) = models("tiny-bert", |name| name);
    let expected = plain.forward(&ids, &types, Some(&mask))?;
    let (prefixed, theirs) = models("tiny-bert", |name| format!("bert.{name}"));
    assert_eq!(
        difference(
            &expected,
            &prefixed.forward(&ids, &types, Some(&mask))?,
            &mask
        ),
        0.0
    );
    assert!(
        difference(
            &expected,
            &theirs.forward(&ids, &types, Some(&mask))?,
            &mask
        ) < MOST
    );
    // Stored in bf16, below `bert.`, with the norms' names of old.
    let (ours, theirs) = models("tiny-bert-bf16", |name| name);
    let (a, b) = (
        ours.forward(&ids, &types, None)?,
        theirs.forward(&ids, &types, None)?,
    );
    assert!(difference(&a, &b, &mask.ones_like()?) < MOST);
    Ok(())
}

#[test]
fn a_missing_weight_is_named() {
    let mut tensors = tensors("tiny-bert");
    tensors.remove("encoder.layer.1.output.dense.weight");
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let json = std::fs::read(weights("tiny-bert/config.json")).unwrap();
    let config: ours::Config = serde_json::from_slice(&json).unwrap();
    let error = ours::BertModel::load(vb, &config).unwrap_err().to_string();
    assert!(
        error.contains("encoder.layer.1.output.dense.weight"),
        "{error}"
    );
}

#[test]
fn fresh_variables_are_made_under_berts_names_and_get_gradients() -> Result<()> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let json = std::fs::read(weights("tiny-bert/config.json")).unwrap();
    let config: ours::Config = serde_json::from_slice(&json).unwrap();
    let model = ours::BertModel::load(vb, &config)?;
    let (ids, types, mask) = ids()?;
    let hidden = model.forward(&ids, &types, Some(&mask))?;
    let grads = hidden.sqr()?.sum_all()?.backward()?;
    let variables = variables.data().lock().unwrap();
    assert_eq!(variables.len(), tensors("tiny-bert").len() - 2); // all but the pooler
    for (name, variable) in variables.iter() {
        assert!(tensors("tiny-bert").contains_key(name), "{name}");
        // Softmax does not see what all scores have in common.
        let is_key_bias = name.ends_with("key.bias");
        assert!(is_key_bias || grads.get(variable).is_some(), "{name}");
    }
    Ok(())
}
