//! Token embeddings that are tied to the head are stored once in a packed model, and read from the packed weight.

use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::layers::Embeddings;
use candle_blocks::{Precision, Weights, config::OutputWeight, model::Model, model::ModelInput};

use crate::{device::device, one_stack::of_one_stack, weights::is_present, whole::wholes};

fn shares_words(model: &Model) -> bool {
    let head = model.config().head.as_ref();
    let output = head.and_then(|head| head.readout.output.as_ref());
    output.is_some_and(|output| output.weight == OutputWeight::Words)
}

fn has_own_table(model: &Model) -> Option<bool> {
    match model.embeddings() {
        Embeddings::Tokens(tokens) => Some(tokens.word_embeddings().is_some()),
        _ => None,
    }
}

fn embedded(model: &Model) -> Vec<f32> {
    let tokens = Tensor::new(&[[3u32, 0, 5], [2, 4, 3]], model.device()).unwrap();
    let output = model.forward(&ModelInput::tokens(&tokens)).unwrap();
    output.embeddings.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns the error relative to the root mean square.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let of: f64 = expected.iter().map(|&x| square(x)).sum();
    let pairs = found.iter().zip(expected);
    (pairs.map(|(f, e)| square(f - e)).sum::<f64>() / of).sqrt()
}

/// Returns the largest error of packed f32 embeddings: their bits are those of the CPU's layers.
fn of_f32() -> f64 {
    if device().is_cpu() { 0.0 } else { 1e-6 }
}

#[test]
fn a_packed_model_reads_embeddings_from_the_head_that_shares_them() {
    let mut n_shared = 0;
    for whole in of_one_stack() {
        let checkpoint = whole.open();
        let plain = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap();
        if has_own_table(&plain).is_none()
            || plain.config().stack.blocks[0].cross_attention.is_some()
        {
            continue;
        }
        assert_eq!(has_own_table(&plain), Some(true), "{}", whole.name);
        let expected = embedded(&plain);
        // Random embeddings, with values of typical size.
        for (precision, most) in [
            (Precision::F32, of_f32()),
            (Precision::F16, 5e-4),
            (Precision::Bf16, 4e-3),
            (Precision::Int8, 2e-2),
            (Precision::INT4, 0.12),
        ] {
            let packed = checkpoint.load(Weights::Packed(precision)).model().unwrap();
            let (name, is_shared) = (&whole.name, shares_words(&packed));
            assert_eq!(has_own_table(&packed), Some(!is_shared), "{name}");
            let error = error(&embedded(&packed), &expected);
            assert!(error <= most, "{name} {precision:?}: {error}");
            n_shared += usize::from(is_shared);
        }
    }
    assert!(n_shared >= 4 || !is_present("families"), "{n_shared}");
}

#[test]
fn an_encoder_reads_embeddings_from_its_decoders_head() {
    let of_f32 = of_f32();
    let mut n_shared = 0;
    for whole in wholes() {
        let checkpoint = whole.open();
        let Ok(plain) = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .seq2seq()
        else {
            continue;
        };
        let packed = checkpoint
            .load(Weights::Packed(Precision::F32))
            .seq2seq()
            .unwrap();
        if has_own_table(packed.encoder()).is_none() {
            continue;
        }
        let is_shared = shares_words(packed.decoder());
        // In T5Gemma, each stack has a table of its own.
        let encoder_shares = is_shared && whole.name != "heads/t5gemma";
        for (model, shares) in [
            (packed.encoder(), encoder_shares),
            (packed.decoder(), is_shared),
        ] {
            assert_eq!(has_own_table(model), Some(!shares), "{}", whole.name);
        }
        let [found, expected] = [&packed, &plain].map(|model| embedded(model.encoder()));
        assert!(error(&found, &expected) <= of_f32, "{}", whole.name);
        n_shared += usize::from(is_shared);
    }
    assert!(n_shared >= 1 || !is_present("families"), "{n_shared}");
}
