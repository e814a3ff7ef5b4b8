//! Sequences of unequal lengths in one batch, which some join and leave, have the bits that each has alone.

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::config::{RotaryScaling, TemperatureBy};
use candle_blocks::generate::{CausalDecoder, Generation, GenerationOptions};
use candle_blocks::model::{Model, ModelCache, ModelInput};
use candle_blocks::{Checkpoint, Position, Precision, Weights};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::cpu_only::cpu_only;
use crate::decoder_prompts::decoder_prompts;
use crate::numbers::bits;
use crate::rehearsal::rehearsed;
use crate::weights::{is_present, weights};
use crate::whole::wholes;

const N_NEW: usize = 6;

/// A sequence's tokens, and the bits of its logits at each step.
#[derive(Debug, PartialEq)]
struct Continued {
    tokens: Vec<u32>,
    logits: Vec<Vec<u64>>,
}

/// A prompt, the step before which it joins the batch, and the step after which it leaves.
struct Visit {
    prompt: Vec<u32>,
    joins: usize,
    leaves: usize,
}

/// Continues prompts greedily, each from the step at which it joins. The first visits join before the first step.
fn continued(model: &Model, visits: &[Visit]) -> Vec<Continued> {
    let (logits, running) = (
        std::cell::RefCell::new(Vec::new()),
        std::cell::RefCell::new(Vec::new()),
    );
    let choose = |step: &Tensor| {
        logits.borrow_mut().push(bits(step));
        step.argmax(1)?.to_vec1::<u32>()
    };
    let options = GenerationOptions::default().with_max_new_tokens(N_NEW);
    let decoder = CausalDecoder::new(model);
    let first: Vec<Vec<u32>> = visits
        .iter()
        .filter(|v| v.joins == 0)
        .map(|v| v.prompt.clone())
        .collect();
    let mut generation = Generation::new(decoder, &first, choose, options).unwrap();
    let mut n_joined = first.len();
    for step in 0.. {
        while n_joined < visits.len() && visits[n_joined].joins <= step {
            let index = generation.join(&visits[n_joined].prompt).unwrap();
            assert_eq!(index, n_joined);
            n_joined += 1;
        }
        let ended: Vec<bool> = (0..n_joined)
            .map(|i| generation.finish(i).is_some())
            .collect();
        running.borrow_mut().push(
            ended
                .iter()
                .enumerate()
                .filter(|(_, ended)| !**ended)
                .map(|(i, _)| i)
                .collect::<Vec<_>>(),
        );
        match generation.next() {
            Some(tokens) => assert_eq!(tokens.unwrap().len(), n_joined),
            None if n_joined == visits.len() => break,
            None => {
                running.borrow_mut().pop();
            }
        }
        for (i, visit) in visits.iter().enumerate().take(n_joined) {
            if step >= visit.leaves {
                generation.stop(i);
            }
        }
    }
    let tokens = generation.into_tokens();
    let (logits, running) = (logits.into_inner(), running.into_inner());
    let sequence = |(i, tokens): (usize, Vec<u32>)| {
        let rows = logits.iter().zip(&running).filter_map(|(bits, running)| {
            let row = running.iter().position(|&of| of == i)?;
            let width = bits.len() / running.len();
            Some(bits[row * width..(row + 1) * width].to_vec())
        });
        Continued {
            logits: rows.collect(),
            tokens,
        }
    };
    tokens.into_iter().enumerate().map(sequence).collect()
}

/// Returns whether transformers, and so this crate, computes a sequence by the length of the longest in its batch, or by its place after
/// the padding.
fn counts_the_batch(model: &Model) -> bool {
    model.config().stack.blocks.iter().any(|block| {
        let Ok(attention) = block.attention() else {
            return false;
        };
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

/// Returns whether a score's bias is counted from the last key of a call, so that a prompt in pieces has other bits than in one.
fn counts_keys_of_the_call(model: &Model) -> bool {
    model.config().stack.blocks.iter().any(|block| {
        let attention = block.attention();
        attention.is_ok_and(|of| matches!(of.position, Position::Alibi(_)))
    })
}

/// Calls `each` with every committed decoder that is not left out, in each form of its weights, and the longest prompt of its
/// fixture. Returns the number of decoders in each form.
fn for_decoders(
    is_left_out: fn(&Model) -> bool,
    mut each: impl FnMut(&Model, &[u32], &str),
) -> Vec<usize> {
    let packed = [
        Precision::F32,
        Precision::Bf16,
        Precision::Int8,
        Precision::INT4,
    ];
    let mut forms: Vec<Weights> = packed.map(Weights::Packed).into();
    // candle's own operations, of which layers on a device are composed, promise no bits.
    if rehearsed().is_none() {
        let dense = [DType::F32, DType::F64, DType::BF16, DType::F16];
        forms.extend(dense.map(|dtype| Weights::Dense(dtype, &Device::Cpu)));
    }
    let mut compared = vec![0; forms.len()];
    for whole in wholes() {
        let Some(known) = decoder_prompts(&whole.name) else {
            continue;
        };
        let longest = known.iter().max_by_key(|prompt| prompt.len()).unwrap();
        let checkpoint = Checkpoint::open(weights(&whole.name)).unwrap();
        for (&form, compared) in forms.iter().zip(&mut compared) {
            // Some widths divide into no groups of int4.
            let Ok(model) = checkpoint.load(form).model() else {
                continue;
            };
            if !counts_the_batch(&model) && !is_left_out(&model) {
                each(&model, longest, &format!("{}, {form:?}", whole.name));
                *compared += 1;
            }
        }
    }
    compared
}

/// Demands that all but a few committed decoders were compared in each form.
fn assert_compared(compared: &[usize]) {
    println!("{compared:?} decoders");
    if is_present("families/llama") {
        assert!(compared.iter().all(|&n| n >= 100), "{compared:?}");
    }
}

#[test]
fn sequences_that_join_and_leave_have_the_bits_that_they_have_alone() {
    cpu_only("the precisions of packed layers are the CPU's");
    let mut rng = StdRng::seed_from_u64(0);
    let compared = for_decoders(
        |_| false,
        |model, longest, what| {
            let mut joins = 0;
            let visit = |i: usize| {
                // Lengths differ by odd and by even numbers.
                let n = (longest.len() - rng.random_range(0..4).min(longest.len() - 1)).max(1);
                let rotated = longest.iter().cycle().skip(i);
                joins += if i < 2 { 0 } else { rng.random_range(0..4) };
                Visit {
                    prompt: rotated.take(n).copied().collect(),
                    joins,
                    leaves: joins + rng.random_range(0..2 * N_NEW),
                }
            };
            let visits: Vec<Visit> = (0..5).map(visit).collect();
            let together = continued(model, &visits);
            for (i, together) in together.into_iter().enumerate() {
                let prompt = visits[i].prompt.clone();
                let alone = Visit {
                    prompt,
                    joins: 0,
                    leaves: N_NEW,
                };
                let mut alone = continued(model, &[alone]);
                alone[0].tokens.truncate(together.tokens.len());
                alone[0].logits.truncate(together.tokens.len());
                assert!(!together.tokens.is_empty(), "{what}, prompt {i}");
                assert_eq!(together.tokens, alone[0].tokens, "{what}, prompt {i}");
                assert!(together == alone[0], "{what}, prompt {i}: other bits");
            }
        },
    );
    assert_compared(&compared);
}

/// Returns tokens of sequences of equal lengths, at these positions.
fn input(rows: &[&[u32]], positions: &[u32]) -> ModelInput {
    let n = rows[0].len();
    let tensor = |all: Vec<u32>| Tensor::from_vec(all, (rows.len(), n), &Device::Cpu).unwrap();
    let positions = positions
        .iter()
        .flat_map(|&at| (0..n as u32).map(move |i| at + i));
    ModelInput::tokens(&tensor(rows.concat())).with_positions(&tensor(positions.collect()))
}

/// Sequences in one cache, and the tokens of each.
struct Batch<'m> {
    model: &'m Model,
    cache: ModelCache,
    sequences: Vec<Vec<u32>>,
}

impl<'m> Batch<'m> {
    /// Computes a sequence alone.
    fn of(model: &'m Model, tokens: &[u32]) -> Self {
        let mut batch = Self {
            model,
            cache: model.new_cache(),
            sequences: vec![Vec::new()],
        };
        batch.append(&[tokens]);
        batch
    }

    /// Appends as many tokens to each sequence, and returns the bits of the next logits.
    fn append(&mut self, rows: &[&[u32]]) -> Vec<u64> {
        let positions: Vec<u32> = self.sequences.iter().map(|of| of.len() as u32).collect();
        for (sequence, new) in self.sequences.iter_mut().zip(rows) {
            sequence.extend(*new);
        }
        bits(
            &self
                .model
                .next_logits(&input(rows, &positions), &mut self.cache)
                .unwrap(),
        )
    }
}

/// Forks, rewinds, additions and departures at random; then each sequence is compared with one computed alone.
#[test]
fn forked_joined_and_rewound_sequences_have_the_bits_that_they_have_alone() {
    cpu_only("the precisions of packed layers are the CPU's");
    let mut rng = StdRng::seed_from_u64(1);
    let compared = for_decoders(counts_keys_of_the_call, |model, longest, what| {
        let longest = &longest[..longest.len().min(6)];
        let mut batch = Batch::of(model, longest);
        let mut done = Vec::new();
        for _ in 0..6 {
            let n = batch.sequences.len();
            let room = longest.len() + 4;
            match rng.random_range(0..4) {
                0 => {
                    let taken: Vec<usize> = (0..1 + rng.random_range(0..3))
                        .map(|_| rng.random_range(0..n))
                        .collect();
                    batch.cache = batch.cache.fork(&taken).unwrap();
                    batch.sequences = taken
                        .iter()
                        .map(|&of| batch.sequences[of].clone())
                        .collect();
                    done.push(format!("fork {taken:?}"));
                }
                1 if n < 4 => {
                    let tokens = &longest[..1 + rng.random_range(0..longest.len())];
                    let other = Batch::of(model, tokens);
                    batch.cache.join(&other.cache).unwrap();
                    batch.sequences.extend(other.sequences);
                    done.push(format!("join {}", tokens.len()));
                }
                2 => {
                    let shortest = batch.sequences.iter().map(Vec::len).min().unwrap();
                    let back = rng.random_range(0..shortest.min(3));
                    let seen = batch.cache.seen();
                    let reached = batch.cache.rewind(seen - back);
                    done.push(format!("rewind by {back}: {reached} of {}", seen - back));
                    // A recurrent state goes back further.
                    let removed = seen - reached;
                    assert!(removed >= back, "{what}: {done:?}");
                    if reached > 0 && removed < shortest {
                        for sequence in &mut batch.sequences {
                            sequence.truncate(sequence.len() - removed);
                        }
                    } else {
                        // A window has dropped positions, or a sequence has none left.
                        let tokens = batch.sequences[0].clone();
                        batch = Batch::of(model, &tokens);
                    }
                }
                _ if batch.sequences.iter().all(|of| of.len() < room) => {
                    let n_new = 1 + rng.random_range(0..2);
                    let new: Vec<Vec<u32>> = (0..n)
                        .map(|_| {
                            (0..n_new)
                                .map(|_| longest[rng.random_range(0..longest.len())])
                                .collect()
                        })
                        .collect();
                    batch.append(&new.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    done.push(format!("append {n_new}"));
                }
                _ => {}
            }
        }
        let last: Vec<&[u32]> = batch.sequences.iter().map(|_| &longest[..1]).collect();
        let together = batch.append(&last);
        let width = together.len() / last.len();
        for (tokens, together) in batch.sequences.iter().zip(together.chunks_exact(width)) {
            let mut alone = Batch::of(model, &tokens[..tokens.len() - 1]);
            assert!(
                alone.append(&[&longest[..1]]) == together,
                "{what}: {done:?}"
            );
        }
    });
    assert_compared(&compared);
}
