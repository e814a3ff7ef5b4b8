//! Distribution of expert choices to blocks with equal sizes, each for one expert. The operations' sizes depend only
//! on the number of choices and experts, not on the choices themselves, so that the host never waits for the device.
//!
//! An expert's choices fill as many blocks as they need, in row order, and leave places empty in the last block.
//! With `⌈choices / experts⌉` places per block, there are at most twice as many blocks as experts.
//!
//! All values are integers in f32 below `2²⁴`. Matrix products stay exact even if candle rounds factors to TF32: the
//! factors are ones, and counts in a chunk or over blocks, below `2¹¹` for a million choices among a thousand
//! experts.

use candle_core::{DType, Result};

use super::Array;
use crate::ops::constants::Constants;

/// Choices in blocks.
#[derive(Clone)]
#[doc(hidden)]
pub struct Blocks {
    /// Each block's expert, `[blocks]`.
    pub experts: Array,
    /// Places per block.
    pub size: usize,
    /// The choices' order, or `None` if each choice is a separate block, in row order.
    order: Option<ChoiceOrder>,
}

#[derive(Clone)]
struct ChoiceOrder {
    /// The choice at each place. Empty places hold the first choice.
    choices: Array,
    /// A mask (u8) for places that are not empty, `[places, 1]`.
    filled: Array,
    /// Each choice's place.
    places: Array,
}

impl Blocks {
    /// Distributes choices among `n_experts` experts, `[choices]` in u32, at least one.
    pub(crate) fn of(choices: &Array, n_experts: usize, constants: &Constants) -> Result<Self> {
        let n = choices.dims()[0];
        let size = n.div_ceil(n_experts);
        if size == 1 {
            let experts = choices.clone();
            let order = None;
            return Ok(Self {
                experts,
                size,
                order,
            });
        }
        let n_blocks = n_experts + n / size;
        let device = choices.device();
        let numbers = |n: usize| constants.numbers(n, device);
        let smaller = |n: usize| constants.smaller(n, device);
        let column = |of: &Array| of.reshape(&[of.tensor().elem_count(), 1]);

        // Earlier choices are counted by chunk and within the chunk. There are about as many chunks as choices per
        // chunk.
        let root = n.isqrt();
        let divides = |chunk: &usize| n.is_multiple_of(*chunk);
        let chunk = (root..=2 * root).find(divides).unwrap_or(root);
        let n_chunks = n.div_ceil(chunk);
        let mut all = choices.to_dtype(DType::F32)?;
        if n < n_chunks * chunk {
            let none = n_experts as f64; // of no expert
            let rest = Array::filled(none, &[n_chunks * chunk - n], DType::F32, device)?;
            all = Array::cat(&[all, rest], 0)?;
        }
        let chosen = all
            .reshape(&[n_chunks, 1, chunk])?
            .eq(&numbers(n_experts)?.reshape(&[1, n_experts, 1])?)?
            .to_dtype(DType::F32)?; // [n_chunks, n_experts, chunk]
        let chunk_counts = chosen.sum(2)?.reshape(&[n_chunks, n_experts])?;
        let in_chunks_before = smaller(n_chunks)?.matmul(&chunk_counts)?;
        let before = chosen
            .reshape(&[n_chunks * n_experts, chunk])?
            .matmul(&smaller(chunk)?.transpose(0, 1)?)?
            .add(&column(&in_chunks_before)?)?
            .reshape(chosen.dims())?;
        let counted = before.add(&chosen)?;
        let ends = counted.narrow(2, chunk - 1, 1)?;
        let ends = ends.reshape(&[n_chunks, n_experts])?;
        let counts = ends.narrow(0, n_chunks - 1, 1)?; // [1, n_experts]

        // `⌈count / size⌉`, offset by half a place because it is rounded down.
        let step = 1.0 / size as f64;
        let n_of = counts.affine(step, 1.0 - 0.5 * step)?.floor()?;
        let first = n_of.matmul(&smaller(n_experts)?.transpose(0, 1)?)?; // [1, n_experts]
        let first_place = first.affine(size as f64, 0.0)?;
        // Blocks after all experts' blocks count as the last expert's.
        let last = first.add(&n_of)?.narrow(1, 0, n_experts - 1)?;
        let expert = last.le(&column(&numbers(n_blocks)?)?)?;
        let expert = expert.to_dtype(DType::F32)?.sum(1)?; // [n_blocks, 1]
        let experts = expert.reshape(&[n_blocks])?.to_dtype(DType::U32)?;

        // Each place's index among its expert's choices, `[n_blocks, size]`.
        let of_expert = column(&first_place)?.select_rows(&experts)?;
        let number = numbers(n_blocks * size)?.reshape(&[n_blocks, size])?;
        let number = number.sub(&of_expert)?;
        // Its choice is after all chunks that end before it, and within its chunk after those that do not count it.
        let ends = ends.transpose(0, 1)?.select_rows(&experts)?; // [n_blocks, n_chunks]
        let filled = column(&number.lt(&ends.narrow(1, n_chunks - 1, 1)?)?)?;
        let ends = ends.narrow(1, 0, n_chunks - 1)?.unsqueeze(1)?;
        let in_chunk = ends.le(&number.unsqueeze(2)?)?;
        let in_chunk = in_chunk.to_dtype(DType::F32)?.sum(2)?;
        let in_chunk = in_chunk.reshape(&[n_blocks, size])?;
        let row = in_chunk.affine(n_experts as f64, 0.0)?.add(&expert)?;
        let row = row.reshape(&[n_blocks * size])?.to_dtype(DType::U32)?;
        let counted = counted.reshape(&[n_chunks * n_experts, chunk])?;
        let at = counted.select_rows(&row)?.le(&column(&number)?)?;
        let at = at.to_dtype(DType::F32)?.sum(1)?; // [places, 1]
        let choice = column(&in_chunk)?.affine(chunk as f64, 0.0)?.add(&at)?;
        let choice = filled.select(&choice, &choice.zeros(choice.dims())?)?;

        let place = before
            .add(&first_place.reshape(&[1, n_experts, 1])?)?
            .mul(&chosen)?
            .sum(1)?
            .reshape(&[n_chunks * chunk])?;
        let order = ChoiceOrder {
            choices: choice.reshape(&[n_blocks * size])?.to_dtype(DType::U32)?,
            filled,
            places: place.narrow(0, 0, n)?.to_dtype(DType::U32)?,
        };
        Ok(Self {
            experts,
            size,
            order: Some(order),
        })
    }

    /// Moves choices' rows to their places. Empty places are zeros.
    pub fn dealt(&self, rows: &Array) -> Result<Array> {
        let Some(order) = &self.order else {
            return Ok(rows.clone());
        };
        let dealt = rows.select_rows(&order.choices)?;
        let zeros = dealt.zeros(dealt.dims())?;
        order.filled.broadcast(dealt.dims())?.select(&dealt, &zeros)
    }

    /// Returns choices' rows from their places.
    pub fn collected(&self, rows: &Array) -> Result<Array> {
        match &self.order {
            Some(order) => rows.select_rows(&order.places),
            None => Ok(rows.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Computes the choices' places, and each used block's expert, by counting.
    fn expected(choices: &[u32], n_experts: usize, size: usize) -> (Vec<usize>, Vec<u32>) {
        let (mut places, mut experts) = (vec![0; choices.len()], Vec::new());
        for expert in 0..n_experts as u32 {
            let first = experts.len() * size;
            let of_expert = (0..choices.len()).filter(|&i| choices[i] == expert);
            let mut count = 0;
            for choice in of_expert {
                places[choice] = first + count;
                count += 1;
            }
            experts.extend(std::iter::repeat_n(expert, count.div_ceil(size)));
        }
        (places, experts)
    }

    #[test]
    fn each_choice_has_a_place_in_a_block_of_its_expert_and_the_others_are_empty() {
        let mut rng = chacha20::ChaCha12Rng::seed_from_u64(14);
        let constants = Constants::default();
        for (n, n_experts) in [
            (1, 1),
            (7, 1),
            (2, 3),
            (3, 3),
            (4, 3),
            (31, 2),
            (32, 8),
            (33, 8),
            (100, 7),
            (1030, 5),
            (1024, 128),
            (3000, 60),
        ] {
            // Random choices, all the first, all the last, and most one.
            for draw in 0..4 {
                let mut drawn = |_| match draw {
                    0 => rng.random_range(0..n_experts as u32),
                    1 => 0,
                    2 => n_experts as u32 - 1,
                    _ => rng.random_range(0..9) / 8 * (n_experts as u32 / 2),
                };
                let choices: Vec<u32> = (0..n).map(&mut drawn).collect();
                let array = Array::upload_ids(choices.clone(), &[n], &Device::Cpu).unwrap();
                let blocks = Blocks::of(&array, n_experts, &constants).unwrap();
                let of_blocks = blocks.experts.tensor().to_vec1::<u32>().unwrap();
                assert!(of_blocks.len() <= 2 * n_experts.max(n.min(n_experts)));
                let rows: Vec<f64> = (1..=n).map(|i| i as f64).collect();
                let rows = Array::upload(rows, &[n, 1], DType::F32, &Device::Cpu).unwrap();
                let dealt = blocks.dealt(&rows).unwrap();
                let back = blocks.collected(&dealt).unwrap();
                assert_eq!(
                    back.download().unwrap(),
                    rows.download().unwrap(),
                    "{n} {n_experts}"
                );
                if blocks.size == 1 {
                    assert_eq!(of_blocks, choices);
                    continue;
                }
                let (places, experts) = expected(&choices, n_experts, blocks.size);
                assert_eq!(of_blocks[..experts.len()], experts, "{n} {n_experts}");
                let mut all = vec![0.0; of_blocks.len() * blocks.size];
                for (choice, place) in places.into_iter().enumerate() {
                    all[place] = (choice + 1) as f64;
                }
                assert_eq!(dealt.download().unwrap(), all, "{n} {n_experts} {draw}");
            }
        }
    }
}
