//! Prompts of unequal lengths in one batch give each of them the bits that it has alone.

use candle_blocks::candle_core::Tensor;
use candle_blocks::config::{RotaryScaling, TemperatureBy};
use candle_blocks::generate::{CausalDecoder, Generation, GenerationOptions};
use candle_blocks::model::Model;
use candle_blocks::{Checkpoint, Position, Precision, Weights};

use crate::cpu_only::cpu_only;
use crate::decoder_prompts::decoder_prompts;
use crate::numbers::bits;
use crate::weights::{is_present, weights};
use crate::whole::wholes;

const N_NEW: usize = 6;
/// The step after which the first sequence leaves the batch.
const LEAVES: usize = 3;

/// A sequence's tokens, and the bits of its logits at each step.
#[derive(Debug, PartialEq)]
struct Continued {
    tokens: Vec<u32>,
    logits: Vec<Vec<u64>>,
}

/// Continues prompts greedily. The first sequence leaves early if there are others.
fn continued(model: &Model, prompts: &[Vec<u32>]) -> Vec<Continued> {
    let mut steps = Vec::new();
    let choose = |logits: &Tensor| {
        steps.push((bits(logits), logits.dim(0)?));
        logits.argmax(1)?.to_vec1::<u32>()
    };
    let options = GenerationOptions::default().with_max_new_tokens(N_NEW);
    let decoder = CausalDecoder::new(model);
    let mut generation = Generation::new(decoder, prompts, choose, options).unwrap();
    let mut n_steps = 0;
    while let Some(step) = generation.next() {
        step.unwrap();
        n_steps += 1;
        if n_steps == LEAVES && prompts.len() > 1 {
            generation.stop(0);
        }
    }
    let tokens = generation.into_tokens();
    let sequence = |(i, tokens): (usize, Vec<u32>)| {
        let own = steps.iter().take(tokens.len()).map(|(bits, n_rows)| {
            let row = i - (prompts.len() - n_rows);
            let width = bits.len() / n_rows;
            bits[row * width..(row + 1) * width].to_vec()
        });
        Continued {
            logits: own.collect(),
            tokens,
        }
    };
    tokens.into_iter().enumerate().map(sequence).collect()
}

/// Returns whether transformers, and so this crate, computes a sequence by the length of the longest in its batch, or by its place after
/// the padding.
fn counts_the_batch(model: &Model) -> bool {
    model.config().stack.blocks.iter().any(|block| {
        let attention = block.attention().unwrap();
        let by_length = match &attention.position {
            Position::Rotary(rotary) => matches!(
                rotary.scaling,
                RotaryScaling::DynamicNtk { .. } | RotaryScaling::LongRope { .. }
            ),
            _ => false,
        };
        by_length
            || attention
                .temperature
                .is_some_and(|of| of.by == TemperatureBy::Place)
    })
}

#[test]
fn each_prompt_has_the_bits_that_it_has_alone() {
    cpu_only("packed layers run there");
    let precisions = [
        Precision::F32,
        Precision::Bf16,
        Precision::Int8,
        Precision::INT4,
    ];
    let mut compared = [0; 4];
    for whole in wholes() {
        let Some(known) = decoder_prompts(&whole.name) else {
            continue;
        };
        let longest = known.iter().max_by_key(|prompt| prompt.len()).unwrap();
        // Each length differs from the longest by an odd and by an even number.
        let lengths = [0, 1, 2, 3].map(|less| longest.len().saturating_sub(less).max(1));
        let prompt = |(i, n): (usize, usize)| {
            let rotated = longest.iter().cycle().skip(i);
            rotated.take(n).copied().collect()
        };
        let prompts: Vec<Vec<u32>> = lengths.into_iter().enumerate().map(prompt).collect();
        let checkpoint = Checkpoint::open(weights(&whole.name)).unwrap();
        for (precision, compared) in precisions.into_iter().zip(&mut compared) {
            let packed = Weights::Packed(precision);
            // Some widths divide into no groups of int4.
            let Ok(model) = checkpoint.load(packed).model() else {
                continue;
            };
            if counts_the_batch(&model) {
                continue;
            }
            let together = continued(&model, &prompts);
            for (i, together) in together.into_iter().enumerate() {
                let mut alone = continued(&model, &prompts[i..=i]);
                alone[0].tokens.truncate(together.tokens.len());
                alone[0].logits.truncate(together.tokens.len());
                let what = format!("{}, {precision:?}, prompt {i}", whole.name);
                assert!(!together.tokens.is_empty(), "{what}");
                assert_eq!(together.tokens, alone[0].tokens, "{what}");
                assert!(together == alone[0], "{what}: other bits");
            }
            *compared += 1;
        }
    }
    println!("{compared:?} decoders in {precisions:?}");
    if is_present("families/llama") {
        assert!(compared.iter().all(|&n| n >= 100), "{compared:?}");
    }
}
