//! Properties of whole models for any parameters.

use candle_blocks::{
    BlockConfig, Position, Precision, Weights,
    candle_core::{DType, Device, Tensor},
    config::{CountedTokens, EmbeddingsConfig, RotaryScaling, TokenSelection},
    layers::Embeddings,
    model::{Model, ModelInput, ModelOutput},
};

use crate::{
    device::device, memory::with_memory, numbers::numbers, one_stack::of_one_stack,
    weights::is_present, whole::Whole,
};

fn tokens(rows: &[Vec<u32>]) -> Tensor {
    Tensor::new(rows.to_vec(), &Device::Cpu).unwrap()
}

/// Some rotations scale with the longest position.
fn depends_on_length(model: &Model) -> bool {
    let mut blocks = model.config().stack.blocks.iter();
    blocks.any(|block| match block.attention().map(|of| &of.position) {
        Ok(Position::Rotary(rotary)) => matches!(
            rotary.scaling,
            RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
        ),
        _ => false,
    })
}

/// The model on the device under test, and packed.
fn both(whole: &Whole) -> [Model; 2] {
    let checkpoint = whole.open();
    [
        checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap(),
        checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap(),
    ]
}

/// The result for a text, which is the head's where there is one.
fn result(output: ModelOutput) -> Tensor {
    output.logits.unwrap_or(output.last_hidden_state)
}

/// The side on which texts are padded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Left,
    Right,
}

/// Fails if fewer than `least` models were padded, unless the package leaves families out.
fn assert_padded(side: Side, least: usize) {
    let n = padded(side);
    assert!(n >= least || !is_present("families"), "{n} models");
}

#[test]
fn padding_after_a_text_does_not_change_its_results() {
    assert_padded(Side::Right, 150);
}

#[test]
fn padding_in_front_of_a_text_changes_nothing_of_it_where_positions_leave_it_out() {
    assert_padded(Side::Left, 100);
}

/// Returns whether left padding cannot change a model's result: it counts no positions, or only those of tokens, and no
/// table depends on them. (Scores with rotary embeddings depend on distances alone, unless norms or a position-dependent
/// temperature follow.)
fn is_blind_to_the_left(model: &Model) -> bool {
    let counts = |block: &BlockConfig| {
        block.attention().is_ok_and(|attention| {
            let norm = attention.query_key_norm;
            norm.is_some_and(|norm| norm.after_rotation) || attention.temperature.is_some()
        })
    };
    if model.config().stack.blocks.iter().any(counts) {
        return false;
    }
    let EmbeddingsConfig::Tokens(embeddings) = &model.config().embeddings else {
        return false;
    };
    let counts_all = embeddings
        .positions
        .is_some_and(|table| table.counted == CountedTokens::All);
    let reads = model.config().head.as_ref().map(|head| &head.readout.reads);
    !counts_all && !matches!(reads, Some(TokenSelection::First | TokenSelection::Pooled))
}

/// Asserts that padding on one side changes no result for the text; returns the number of models.
fn padded(side: Side) -> usize {
    let text = vec![5, 3, 7, 4, 6];
    let n_padding = 3;
    let mut n_models = 0;
    for whole in of_one_stack() {
        for model in both(&whole) {
            if !matches!(model.embeddings(), Embeddings::Tokens(_)) {
                continue;
            }
            let reads = model.config().head.as_ref().map(|head| &head.readout.reads);
            // The last token that is not the padding's, whose id these models say in their own way.
            let padding = match reads {
                Some(TokenSelection::LastExcept(Some(padding))) => *padding,
                Some(TokenSelection::LastExcept(None)) => continue,
                _ => 1, // RoBERTa's, which counts positions by it; to the others, any other token
            };
            let is_blind = side == Side::Right || is_blind_to_the_left(&model);
            if depends_on_length(&model) || !is_blind {
                continue;
            }
            n_models += 1;
            let alone = ModelInput::tokens(&tokens(std::slice::from_ref(&text)));
            let alone = result(model.forward(&with_memory(alone, &model)).unwrap());
            let around = |text: &[u32], padding: u32| {
                let padding = vec![padding; n_padding];
                match side {
                    Side::Left => [&padding, text].concat(),
                    Side::Right => [text, &padding].concat(),
                }
            };
            let mask = tokens(&[around(&vec![1; text.len()], 0)]);
            let input = ModelInput::tokens(&tokens(&[around(&text, padding)])).with_mask(&mask);
            let mut found = result(model.forward(&with_memory(input, &model)).unwrap());
            if found.dims() != alone.dims() {
                let start = match side {
                    Side::Left => n_padding,
                    Side::Right => 0,
                };
                found = found.narrow(1, start, text.len()).unwrap();
            }
            let (alone, found) = (numbers(&alone), numbers(&found));
            let largest = alone.iter().fold(1f64, |a, b| a.max(b.abs()));
            for (a, b) in alone.iter().zip(&found) {
                let name = &whole.name;
                assert!(
                    (a - b).abs() < 1e-5 * largest,
                    "{name} {side:?}: {a} and {b}"
                );
            }
        }
    }
    n_models
}

#[test]
fn ids_of_any_integer_type_give_the_same_bits() {
    for name in ["tiny-bert", "tiny-gpt2"] {
        let whole = Whole {
            name: name.to_string(),
        };
        for model in both(&whole) {
            let ids = tokens(&[vec![5, 3, 7], vec![4, 6, 8]]);
            let of = |dtype| {
                let ids = ids.to_dtype(dtype).unwrap();
                numbers(&result(model.forward(&ModelInput::tokens(&ids)).unwrap()))
            };
            assert_eq!(of(DType::U32), of(DType::I64), "{name}");
            assert_eq!(of(DType::U32), of(DType::U8), "{name}");
        }
    }
}
