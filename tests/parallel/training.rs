//! Training on several ranks follows training in one process, on the device under test.

use std::{path::Path, sync::Arc};

use candle_blocks::{
    Checkpoint, CheckpointOptions, ForwardContext, Parameters, Result, Stack,
    candle_core::{DType, Tensor},
    checkpoint::{TensorParallel, files::TensorFiles, scheme::StackPart},
    ops::parallel::Communicator,
    train::{AdamW, AdamWConfig, Gradients, ParameterGroup, backward_recomputing, loss_value},
};

use crate::{
    device::device,
    numbers::numbers,
    ranks::of_ranks,
    weights::{is_present, weights},
};

/// Losses, gradient norms before clipping, and the final parameters.
struct Way {
    seen: Vec<f64>,
    saved: Vec<(String, Tensor)>,
}

/// Runs three AdamW steps, the second with recomputed blocks.
fn steps(
    checkpoint: &Checkpoint,
    stack: &Stack,
    parameters: Parameters,
    clip: impl Fn(&mut Gradients) -> Result<f64>,
) -> Result<Vec<f64>> {
    let d_model = checkpoint.config().blocks[0].d_model();
    let x = Tensor::arange(0f32, (8 * d_model) as f32, &device())?.sin()?;
    let x = x.reshape((2, 4, d_model))?;
    let target = (x.cos()? * 0.5)?;
    let loss = |y: &Tensor| (y - &target)?.sqr()?.mean_all();
    let config = AdamWConfig {
        learning_rate: 1e-2,
        eps: 1e-4, // so that a gradient that is rounding alone moves nothing
        ..AdamWConfig::default()
    };
    let mut optimizer = AdamW::new([ParameterGroup::new(parameters.clone(), 0.1)], config)?;
    let mut seen = Vec::new();
    for step in 0..3 {
        let context = ForwardContext::training();
        let (value, mut gradients) = match step {
            1 => {
                let found = backward_recomputing(stack, &x, &context, &parameters, loss)?;
                (found.loss, found.gradients)
            }
            _ => {
                let value = loss(&stack.forward_with(&x, &context)?)?;
                (value.clone(), optimizer.backward(&value)?)
            }
        };
        seen.extend([loss_value(&value)?, clip(&mut gradients)?]);
        optimizer.update(&gradients, 1.0)?;
    }
    Ok(seen)
}

fn tensors(folder: &Path) -> Vec<(String, Tensor)> {
    let files = TensorFiles::open(folder).unwrap();
    let read = |name: &str| (name.to_string(), files.read(name).unwrap());
    files.names().map(read).collect()
}

fn alone(checkpoint: &Checkpoint) -> Way {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("saved");
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let stack = loader.stack().unwrap();
    let clip = |gradients: &mut Gradients| gradients.clip_norm(0.5);
    let seen = steps(checkpoint, &stack, loader.parameters(), clip).unwrap();
    checkpoint.save(&target, loader.parameters()).unwrap();
    let saved = tensors(&target);
    Way { seen, saved }
}

fn together(checkpoint: &Checkpoint, rank: Arc<dyn Communicator>) -> Way {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("saved");
    let is_first = rank.rank() == 0;
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    let parallel = TensorParallel::new(loader, rank).unwrap();
    let stack = parallel.stack().unwrap();
    let clip = |gradients: &mut Gradients| {
        gradients.norm_among(&parallel)?;
        gradients.clip_norm(0.5)
    };
    let seen = steps(checkpoint, &stack, parallel.parameters(), clip).unwrap();
    parallel.save(&target).unwrap();
    let saved = match is_first {
        true => tensors(&target),
        false => Vec::new(),
    };
    Way { seen, saved }
}

/// A family's stack without dropout, and the file that says so.
fn open(family: &str) -> (Checkpoint, tempfile::NamedTempFile) {
    let folder = weights(&format!("families/{family}"));
    let json = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for (key, value) in json.as_object_mut().unwrap() {
        if key.contains("drop") && value.is_number() {
            *value = 0.0.into();
        }
    }
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), json.to_string()).unwrap();
    let options = CheckpointOptions::default().config(config.path());
    let options = match family {
        "t5" => options.part(StackPart::Encoder),
        _ => options,
    };
    (options.open(folder).unwrap(), config)
}

#[test]
fn ranks_train_as_one_process_does() {
    if !is_present("families") {
        return;
    }
    // Grouped keys with head norms, norms after sums, experts with a shared one, parallel branches, one block repeated, a
    // relative position bias.
    for family in ["qwen3", "roberta", "qwen2_moe", "gpt_neox", "albert", "t5"] {
        let (checkpoint, _config) = open(family);
        let expected = alone(&checkpoint);
        let found = of_ranks(2, |rank| together(&checkpoint, rank));
        for (rank, found) in found.into_iter().enumerate() {
            // The first rank saves.
            let n_saved = [expected.saved.len(), 0][rank];
            assert_eq!(found.saved.len(), n_saved, "{family}");
            assert_eq!(found.seen.len(), expected.seen.len(), "{family}");
            assert!(
                !expected.seen.is_empty() && !expected.saved.is_empty(),
                "{family}"
            );
            for (found, expected) in found.seen.iter().zip(&expected.seen) {
                let error = (found / expected - 1.0).abs();
                assert!(error < 2e-5, "{family}: {found}, expected {expected}");
            }
            for ((name, found), (_, expected)) in found.saved.iter().zip(&expected.saved) {
                let pairs = numbers(found).into_iter().zip(numbers(expected));
                let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(
                    difference < 1e-4,
                    "{family}: {name} differs by {difference}"
                );
            }
        }
    }
}
