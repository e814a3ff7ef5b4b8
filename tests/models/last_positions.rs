//! If the last block allows it, generation only computes a prompt's last position, with the same bits as for all positions.

use candle_blocks::{
    Position, Precision, Weights,
    candle_core::{Device, Tensor},
    config::HeadTask,
    model::{Model, ModelInput},
};

use crate::cpu_only::cpu_only;
use crate::memory::with_memory;
use crate::numbers::bits;
use crate::weights::is_present;
use crate::whole::{Whole, wholes};

const PRECISIONS: [Precision; 4] = [
    Precision::F32,
    Precision::Bf16,
    Precision::Int8,
    Precision::INT4,
];

fn tokens(rows: &[[u32; 6]; 2]) -> Tensor {
    Tensor::new(rows, &Device::Cpu).unwrap()
}

/// Returns a whole model's decoder. (In some models with a language modeling head, tokens attend to later ones.)
fn decoder(whole: &Whole, precision: Precision) -> Option<Model> {
    let checkpoint = whole.open();
    let decodes = |model: &Model| {
        let mut blocks = model.config().stack.blocks.iter();
        model.task() == Some(HeadTask::CausalLm) && blocks.all(|block| block.facts().is_causal)
    };
    let model = match checkpoint.load(Weights::Packed(precision)).seq2seq() {
        Ok(both) => both.decoder().clone(),
        Err(_) => checkpoint.load(Weights::Packed(precision)).model().ok()?,
    };
    decodes(&model).then_some(model)
}

fn input(ids: &Tensor, mask: Option<&Tensor>, model: &Model) -> ModelInput {
    let mut input = ModelInput::tokens(ids);
    input.attention_mask = mask.cloned();
    with_memory(input, model)
}

fn has_alibi(model: &Model) -> bool {
    let mut blocks = model.config().stack.blocks.iter();
    blocks.any(|block| {
        block
            .attention()
            .is_ok_and(|of| matches!(of.position, Position::Alibi(_)))
    })
}

#[test]
fn the_logits_after_a_prompt_have_the_bits_of_the_whole_pass() {
    cpu_only("packed weights");
    let ids = tokens(&[[5, 3, 7, 4, 6, 2], [2, 2, 5, 3, 4, 7]]);
    let mask = tokens(&[[1; 6], [0, 0, 1, 1, 1, 1]]);
    let mut n = 0;
    for whole in wholes() {
        for precision in PRECISIONS {
            let Some(model) = decoder(&whole, precision) else {
                continue;
            };
            n += 1;
            let of = |from: usize, len: usize| {
                let part = |of: &Tensor| of.narrow(1, from, len).unwrap();
                input(&part(&ids), Some(&part(&mask)), &model)
            };
            let all = model.forward(&of(0, 6)).unwrap().logits.unwrap();
            // A linear bias is counted from the last key, which rounds it otherwise for each piece.
            let cuts: &[usize] = if has_alibi(&model) {
                &[0]
            } else {
                &[0, 3, 4, 5]
            };
            for &cut in cuts {
                let (mut cache, what) = (model.new_cache(), (&whole.name, precision, cut));
                let mut found = |from: usize, to: usize| {
                    if from < to {
                        let found = model.next_logits(&of(from, to - from), &mut cache).unwrap();
                        let expected = all.narrow(1, to - 1, 1).unwrap();
                        assert_eq!(bits(&found), bits(&expected), "{what:?}");
                    }
                };
                found(0, cut);
                found(cut, 6);
            }
        }
    }
    assert!(n >= 3 * 80 || !is_present("families"), "{n} models");
}
