//! What must hold of whole models whatever their numbers.

use candle_blocks::{
    Position, Precision,
    candle_core::{DType, Device, Tensor},
    config::{Reads, RotaryScaling},
    model::{Model, ModelInput, ModelOutput},
};

use crate::{
    device::device,
    numbers::numbers,
    whole::{Whole, wholes},
};

fn tokens(rows: &[Vec<u32>]) -> Tensor {
    Tensor::new(rows.to_vec(), &Device::Cpu).unwrap()
}

/// Some rotations scale with the longest position.
fn depends_on_length(model: &Model) -> bool {
    let mut blocks = model.config().stack.blocks.iter();
    blocks.any(|block| match &block.attention.position {
        Position::Rotary(rotary) => matches!(
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
        checkpoint.model(DType::F32, &device()).unwrap(),
        checkpoint.packed_model(Precision::F32).unwrap(),
    ]
}

/// The result for a text, which is the head's where there is one.
fn result(output: ModelOutput) -> Tensor {
    output.logits.unwrap_or(output.last_hidden_state)
}

#[test]
fn padding_behind_a_text_changes_nothing_of_it() {
    let text = vec![5, 3, 7, 4, 6];
    let n_padding = 3;
    for whole in wholes() {
        for model in both(&whole) {
            let reads = model.config().head.as_ref().map(|head| &head.readout.reads);
            // The last token that is not the padding's, whose id these models say in their own way.
            let padding = match reads {
                Some(Reads::LastExcept(Some(padding))) => *padding,
                Some(Reads::LastExcept(None)) => continue,
                _ => 1, // RoBERTa's, which counts positions by it; to the others, any other token
            };
            if depends_on_length(&model) {
                continue;
            }
            let alone = model.forward(&ModelInput::tokens(&tokens(std::slice::from_ref(&text))));
            let alone = result(alone.unwrap());
            let padded = [&text[..], &vec![padding; n_padding]].concat();
            let marks = (0..padded.len()).map(|i| u32::from(i < text.len()));
            let mask = tokens(&[marks.collect()]);
            let input = ModelInput::tokens(&tokens(&[padded])).with_mask(&mask);
            let mut found = result(model.forward(&input).unwrap());
            if found.dims() != alone.dims() {
                found = found.narrow(1, 0, text.len()).unwrap();
            }
            let (alone, found) = (numbers(&alone), numbers(&found));
            let largest = alone.iter().fold(1f64, |a, b| a.max(b.abs()));
            for (a, b) in alone.iter().zip(&found) {
                assert!(
                    (a - b).abs() < 1e-5 * largest,
                    "{}: {a} and {b}",
                    whole.name
                );
            }
        }
    }
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
