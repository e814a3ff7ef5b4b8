//! A beginner's mistakes give errors with the expected values and the cure, for layers and their packed forms alike.

use std::{collections::HashMap, fs};

use candle_blocks::{
    AttentionMask, Checkpoint, Error, ForwardContext, PlainFile, Precision, Stack, Weights,
    checkpoint::{scheme::Orientation, write::write_safetensors},
    config::Initialization,
    train::Fresh,
    verify::Fixture,
};
use candle_core::{DType, Device, Tensor};

use crate::weights::{is_present, weights};

fn said<T>(result: Result<T, impl std::fmt::Display>) -> String {
    match result {
        Ok(_) => panic!("it should have failed"),
        // The first line: candle adds its backtrace where the environment asks for one.
        Err(error) => error.to_string().lines().next().unwrap().to_string(),
    }
}

fn padding(rows: usize, columns: usize) -> AttentionMask {
    let ones = Tensor::ones((rows, columns), DType::U8, &Device::Cpu).unwrap();
    AttentionMask::padding(&ones).unwrap()
}

fn llama() -> (Checkpoint, Stack, usize) {
    let checkpoint = Checkpoint::open(weights("families/llama")).unwrap();
    let stack = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()
        .unwrap();
    let width = checkpoint.config().blocks[0].d_model();
    (checkpoint, stack, width)
}

fn input(batch: usize, seq: usize, width: usize) -> Tensor {
    Tensor::randn(0f32, 1., (batch, seq, width), &Device::Cpu).unwrap()
}

#[test]
fn a_cache_given_the_mask_of_the_whole_sequence_requests_that_of_the_new_positions() {
    if !is_present("families/llama") {
        return;
    }
    let (checkpoint, stack, width) = llama();
    let packed = checkpoint
        .load(Weights::Packed(Precision::F32))
        .stack()
        .unwrap();
    let (mut cache, mut packed_cache) = (stack.new_cache(), packed.new_cache());
    let (prompt, new) = (input(2, 4, width), input(2, 1, width));
    let plain = ForwardContext::evaluation();
    stack.forward_cached(&prompt, &plain, &mut cache).unwrap();
    packed
        .forward_cached(&prompt, &plain, &mut packed_cache)
        .unwrap();

    let whole = ForwardContext::evaluation().with_mask(padding(2, 5));
    let expected = "attention_mask: has shape [2, 5], expected [batch, new positions] = [2, 1]; \
                    the cache already holds the mask of the 4 earlier positions";
    assert_eq!(
        said(stack.forward_cached(&new, &whole, &mut cache)),
        expected
    );
    assert_eq!(
        said(packed.forward_cached(&new, &whole, &mut packed_cache)),
        expected
    );
    // Nothing was taken in, and decoding goes on.
    assert_eq!((cache.seen(), packed_cache.seen()), (4, 4));
    stack.forward_cached(&new, &plain, &mut cache).unwrap();
}

#[test]
fn a_cache_with_a_mask_names_its_batch_when_given_another() {
    if !is_present("families/llama") {
        return;
    }
    let (_, stack, width) = llama();
    let mut cache = stack.new_cache();
    let masked = |batch, seq| ForwardContext::evaluation().with_mask(padding(batch, seq));
    stack
        .forward_cached(&input(2, 4, width), &masked(2, 4), &mut cache)
        .unwrap();
    assert_eq!(
        said(stack.forward_cached(&input(3, 1, width), &masked(3, 1), &mut cache)),
        "the cache holds a batch of 2, but the input has a batch of 3; make another cache with new_cache"
    );
    assert_eq!(cache.seen(), 4);
}

#[test]
fn position_ids_of_another_length_are_named() {
    if !is_present("families/llama") {
        return;
    }
    let (checkpoint, stack, width) = llama();
    let packed = checkpoint
        .load(Weights::Packed(Precision::F32))
        .stack()
        .unwrap();
    let short = Tensor::new(&[[0u32, 1]], &Device::Cpu).unwrap();
    let context = ForwardContext::evaluation()
        .with_position_ids(&short)
        .unwrap();
    let x = input(2, 4, width);
    assert_eq!(
        said(stack.forward_with(&x, &context)),
        "position_ids: has shape [1, 2], expected [2, 4] or [1, 4] of hidden_states"
    );
    assert_eq!(
        said(packed.forward_with(&x, &context)),
        "position_ids: has shape [1, 2], expected [2, 4] or [1, 4] of hidden_states"
    );
}

#[test]
fn an_additive_mask_that_does_not_broadcast_is_named() {
    if !is_present("families/llama") {
        return;
    }
    let (checkpoint, stack, width) = llama();
    let packed = checkpoint
        .load(Weights::Packed(Precision::F32))
        .stack()
        .unwrap();
    let mask = Tensor::zeros((3, 3), DType::F32, &Device::Cpu).unwrap();
    let mask = AttentionMask::none().with_additive(mask);
    let context = ForwardContext::evaluation().with_mask(mask);
    let x = input(2, 4, width);
    for message in [
        said(stack.forward_with(&x, &context)),
        said(packed.forward_with(&x, &context)),
    ] {
        assert!(
            message.starts_with("additive mask: has shape "),
            "{message}"
        );
        assert!(
            message.contains("[batch, n_heads, queries, keys] = [2, 4, 4, 4]"),
            "{message}"
        );
    }
}

#[test]
fn a_packed_layer_says_how_to_bring_another_type() {
    if !is_present("families/llama") {
        return;
    }
    let (checkpoint, _, width) = llama();
    let packed = checkpoint
        .load(Weights::Packed(Precision::F32))
        .stack()
        .unwrap();
    let x = input(1, 2, width).to_dtype(DType::F64).unwrap();
    assert_eq!(
        said(packed.forward(&x)),
        "stack is packed and takes F32, F16 or BF16, but its input is F64; convert it with to_dtype"
    );
}

#[test]
fn a_mixture_of_experts_does_not_mix_rows_of_another_width() {
    if !is_present("families/mixtral") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/mixtral")).unwrap();
    let block = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .block(0)
        .unwrap();
    let width = checkpoint.config().blocks[0].d_model();
    // As many values as two rows with the correct width.
    assert_eq!(
        said(
            block
                .feed_forward()
                .inner()
                .forward(&input(1, 4, width / 2))
        ),
        format!(
            "mixture of experts: input has shape [1, 4, {}], expected [.., {width}]",
            width / 2
        )
    );
}

#[test]
fn weights_are_neither_loaded_nor_initialized_as_integers() {
    let (dtype, cpu) = (DType::U8, &Device::Cpu);
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let fresh = Fresh::new(Initialization::layers(), 1, dtype, cpu);
    let plain = tempfile::tempdir().unwrap();
    let path = plain.path().join("mlp.safetensors");
    let weight = ("W1".to_string(), input(1, 2, 3).squeeze(0).unwrap());
    write_safetensors(&path, &[weight], None).unwrap();
    let plain = PlainFile::open(path).unwrap();
    let plain = plain.with_orientation(Orientation::OutIn);
    for message in [
        said(checkpoint.load(Weights::Dense(dtype, cpu)).block(0)),
        said(fresh.stack(checkpoint.config())),
        said(plain.linears(dtype, cpu)),
    ] {
        assert_eq!(message, "dtype: it is U8, expected F32, F16, BF16 or F64");
    }
}

#[test]
fn a_directory_or_a_configuration_where_a_file_of_tensors_is_expected_is_recognized() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Fixture::open(directory.path()),
        Err(Error::Io { action: "read", .. })
    ));
    let message = said(Checkpoint::open(weights("tiny-bert").join("config.json")));
    assert!(
        message.ends_with("or the checkpoint's directory"),
        "{message}"
    );
}

#[test]
fn a_checkpoint_of_two_stacks_says_how_to_choose_one() {
    if !is_present("families/bart") {
        return;
    }
    assert_eq!(
        said(Checkpoint::open(weights("families/bart"))),
        "part: none chosen for a bart checkpoint, which has several stacks; open both with \
         `CheckpointOptions::whole`, or select encoder or decoder with `CheckpointOptions::part`"
    );
}

#[test]
fn parameters_are_saved_from_tensors_and_variables_owned_or_borrowed() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
    loader.stack().unwrap();
    let owned: HashMap<String, Tensor> = loader
        .parameters()
        .into_iter()
        .map(|(role, variable)| (role, variable.as_tensor().affine(2., 0.).unwrap()))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    checkpoint
        .save(at("variables"), loader.parameters())
        .unwrap();
    checkpoint.save(at("borrowed"), &owned).unwrap();
    checkpoint.save(at("owned"), owned).unwrap();
    let bytes = |name: &str| fs::read(at(name).join("model.safetensors")).unwrap();
    assert_eq!(bytes("owned"), bytes("borrowed"));
    assert_ne!(bytes("owned"), bytes("variables"));
}
