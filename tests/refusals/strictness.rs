//! Strict loading notices one renamed, one extra and one reshaped tensor, in every family's checkpoint.

use std::fs;

use candle_blocks::{
    Checkpoint, Error, Result, Weights,
    candle_core::{DType, Device},
    checkpoint::Conversion,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{
    all::all,
    committed::Committed,
    weights::{is_present, weights},
};

/// A tensor as it lies in a file; candle does not read every type (GPT-J's masks are BOOL).
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Opens and loads a copy of the checkpoint after `change` has changed its tensors.
fn load_changed(stack: &Committed, change: impl FnOnce(&mut Vec<Stored>)) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::copy(stack.folder().join("config.json"), path("config.json")).unwrap();
    let bytes = fs::read(stack.folder().join("model.safetensors")).unwrap();
    let stored = |(name, view): (String, TensorView)| Stored {
        name,
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let mut tensors: Vec<Stored> = tensors.into_iter().map(stored).collect();
    change(&mut tensors);
    let views = tensors.iter().map(|t| {
        let view = TensorView::new(t.dtype, t.shape.clone(), &t.bytes);
        (t.name.clone(), view.unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(path("model.safetensors"), bytes).unwrap();
    let checkpoint = stack.options().open(folder.path())?;
    checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()?;
    Ok(())
}

/// Returns a tensor with parameters of the last block.
fn of_the_last_block(checkpoint: &Checkpoint) -> String {
    let last = format!("blocks.{}.", checkpoint.config().blocks.len() - 1);
    let report = checkpoint.report();
    let mut used = report.used.into_iter();
    let tensor = used.find(|tensor| tensor.roles[0].starts_with(&last));
    tensor.expect("every block has parameters").name
}

/// Returns the tensor with that name, to be changed.
fn named<'t>(tensors: &'t mut [Stored], name: &str) -> &'t mut Stored {
    tensors.iter_mut().find(|t| t.name == name).unwrap()
}

#[test]
fn an_unchanged_copy_of_every_checkpoint_loads() {
    for stack in all() {
        load_changed(&stack, |_| {}).unwrap_or_else(|e| panic!("{}: {e}", stack.label()));
    }
}

#[test]
fn a_renamed_tensor_is_an_error_that_names_it() {
    for stack in all() {
        let name = of_the_last_block(&stack.open());
        let renamed = format!("{name}_renamed");
        let error = load_changed(&stack, |tensors| {
            named(tensors, &name).name = renamed.clone();
        });
        let error = error.expect_err(&stack.label());
        let text = error.to_string();
        // Either the parameter that it gave is missed, or the name that nothing knows is refused first.
        match error {
            Error::MissingTensor { tried, .. } => assert!(tried.contains(&name), "{text}"),
            Error::UnusedTensors { names, .. } => assert_eq!(names, [renamed], "{text}"),
            _ => panic!("{}: {text}", stack.label()),
        }
    }
}

#[test]
fn an_extra_tensor_is_an_error_that_names_it() {
    for stack in all() {
        // Beside a parameter of a block, where a newer or another model would have it.
        let name = format!("{}.extra", of_the_last_block(&stack.open()));
        let error = load_changed(&stack, |tensors| {
            tensors.push(Stored {
                name: name.clone(),
                dtype: Dtype::F32,
                shape: vec![3],
                bytes: vec![0; 12],
            });
        });
        match error.expect_err(&stack.label()) {
            Error::UnusedTensors { names, .. } => assert_eq!(names, [name], "{}", stack.label()),
            other => panic!("{}: {other}", stack.label()),
        }
    }
}

#[test]
fn a_reshaped_tensor_is_an_error_that_names_it_and_both_shapes() {
    for stack in all() {
        let name = of_the_last_block(&stack.open());
        let mut shapes = None;
        let error = load_changed(&stack, |tensors| {
            let tensor = named(tensors, &name);
            let before = tensor.shape.clone();
            tensor.shape[0] *= 2;
            tensor.bytes = tensor.bytes.repeat(2);
            shapes = Some((before, tensor.shape.clone()));
        });
        let (before, after) = shapes.unwrap();
        match error.expect_err(&stack.label()) {
            Error::ShapeMismatch {
                tensor,
                expected,
                found,
                ..
            } => assert_eq!((tensor, expected, found), (name, before, after)),
            other => panic!("{}: {other}", stack.label()),
        }
    }
}

/// Cohere stacks all heads' norms in one tensor.
#[test]
fn a_tensor_that_stacks_parameters_is_reported_as_split() {
    let name = "families/cohere-qk-norm";
    if !is_present(name) {
        return;
    }
    let report = Checkpoint::open(weights(name)).unwrap().report();
    let split = |name: &str| {
        let used = report.used.iter().find(|used| used.name.ends_with(name));
        let used = used.unwrap_or_else(|| panic!("no {name} in {report}"));
        (
            used.roles.len() > 1,
            used.conversions.contains(&Conversion::Split),
        )
    };
    assert_eq!(split("layers.0.self_attn.q_norm.weight"), (true, true));
    assert_eq!(split("layers.0.self_attn.q_proj.weight"), (false, false));
}
