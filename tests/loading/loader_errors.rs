//! The error of a layer that cannot be loaded is its own: not one that came before, nor another thread's.

use std::thread;

use candle_blocks::{
    Checkpoint, Error, Loader, Precision, Result, Stack, Weights,
    candle_core::{DType, Device},
};

use crate::{said::assert_says, weights::weights};

/// Packs a stack, which fails in f64.
fn packed(checkpoint: &Checkpoint, loader: &Loader) -> Result<Stack> {
    loader.build(|vb| Stack::packed(checkpoint.config(), vb, Precision::F32))
}

#[test]
fn an_error_that_was_dealt_with_does_not_come_back_as_another_ones() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.load(Weights::Dense(DType::F64, &Device::Cpu));
    // A layer of the user's own, which asks for what is not there and does without.
    let own = loader.var_builder().get(3, "blocks.0.nothing.weight");
    assert_says(own.unwrap_err(), &["blocks.0.nothing.weight"]);
    let error = packed(&checkpoint, &loader).unwrap_err();
    assert!(!matches!(error, Error::MissingTensor { .. }), "{error:?}");
    assert!(!error.to_string().contains("nothing"), "{error}");
}

#[test]
fn threads_that_share_a_loader_get_their_own_errors() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let loader = checkpoint.load(Weights::Dense(DType::F64, &Device::Cpu));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                loader.var_builder().get(3, "missing").unwrap_err();
            }
        });
        for _ in 0..20 {
            let error = packed(&checkpoint, &loader).unwrap_err();
            assert!(!error.to_string().contains("missing"), "{error}");
        }
    });
}
