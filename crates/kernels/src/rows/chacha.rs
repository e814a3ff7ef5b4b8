//! The ChaCha12 stream (Bernstein 2008, <https://cr.yp.to/chacha.html>), with one block per vector lane. It equals
//! the stream of the crate `chacha20`, which has no 512-bit vectors.

use std::array::from_fn;

use crate::vectors::{Level, LevelTask, MAX_LANES, Vectors, columns_at_once};

/// Words per block.
pub const BLOCK: usize = 16;

/// Every instruction set computes a multiple of this many words.
pub const AT_ONCE: usize = BLOCK * MAX_LANES;

const ROUNDS: usize = 12;

/// Fills `words`, whose length is a multiple of [`AT_ONCE`], with a seed's stream, starting at a block.
pub struct Stream<'a> {
    pub seed: &'a [u8; 32],
    pub first_block: u64,
    pub words: &'a mut [u32],
}

impl LevelTask for Stream<'_> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        let mut key = [0; 8];
        for (key, bytes) in key.iter_mut().zip(self.seed.as_chunks().0) {
            *key = u32::from_le_bytes(*bytes);
        }
        let lanes = <L as Vectors<f32>>::LANES;
        let blocks = self.words.chunks_exact_mut(lanes * BLOCK);
        for (i, words) in blocks.enumerate() {
            let first = self.first_block.wrapping_add((i * lanes) as u64);
            write_blocks(level, &key, first, words);
        }
    }
}

/// Writes as many consecutive blocks as a vector has lanes.
#[inline(always)]
fn write_blocks<L: Level>(level: L, key: &[u32; 8], first: u64, words: &mut [u32]) {
    let lanes = <L as Vectors<f32>>::LANES;
    let number: [u64; MAX_LANES] = from_fn(|lane| first.wrapping_add(lane as u64));
    // SAFETY: a vector has at most MAX_LANES words.
    let [low, high] = [number.map(|n| n as u32), number.map(|n| (n >> 32) as u32)]
        .map(|words| unsafe { level.load_words(words.as_ptr()) });
    let start: [L::Words; BLOCK] = from_fn(|word| match word {
        0..4 => level.splat_word([0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574][word]),
        4..12 => level.splat_word(key[word - 4]),
        12 => low,
        13 => high,
        _ => level.splat_word(0),
    });
    let mut state = start;
    // Written out, so that every word in the state stays in a register.
    macro_rules! quarters {
        ($([$a:literal $b:literal $c:literal $d:literal])*) => {$(
            quarters!(@ $a $b $d 16, $c $d $b 12, $a $b $d 8, $c $d $b 7);
        )*};
        (@ $($to:literal $from:literal $turned:literal $by:literal),*) => {$(
            state[$to] = level.add_words(state[$to], state[$from]);
            state[$turned] = level.rotate_words(level.xor_words(state[$turned], state[$to]), $by);
        )*};
    }
    for _ in 0..ROUNDS / 2 {
        quarters!([0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]);
        quarters!([0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]);
    }
    // [word][lane], then transposed to consecutive blocks [lane][word].
    let mut by_word = [0u32; AT_ONCE];
    for (word, (state, start)) in state.into_iter().zip(start).enumerate() {
        let to = &mut by_word[word * lanes..][..lanes];
        // SAFETY: `to` holds a vector.
        unsafe { level.store_words(level.add_words(state, start), to.as_mut_ptr()) };
    }
    let transposer = <L as Vectors<f32>>::Transposer::from(level);
    let rows = <<L as Vectors<f32>>::Transposer as Vectors<f32>>::LANES;
    assert!(words.len() >= lanes * BLOCK);
    for word in (0..BLOCK).step_by(rows) {
        for lane in (0..lanes).step_by(columns_at_once::<f32>()) {
            let from = by_word[word * lanes + lane..].as_ptr().cast();
            let store = |j: usize, column| {
                // SAFETY: lane + j < lanes and word + rows <= BLOCK, and the assertion above.
                unsafe {
                    let to = words.as_mut_ptr().add((lane + j) * BLOCK + word);
                    Vectors::<f32>::store(transposer, column, to.cast());
                }
            };
            // SAFETY: `by_word` holds `rows` rows with `lanes` words, starting at `from`.
            unsafe { Vectors::<f32>::for_columns(transposer, from, lanes, store) };
        }
    }
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha12Rng;
    use chacha20::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::vectors::Isa;

    #[test]
    fn words_equal_the_crate_chacha20_on_every_level() {
        let seed = from_fn(|i| (7 * i + 3) as u8);
        for first_block in [0, 5, u64::from(u32::MAX) - 3] {
            let mut rng = ChaCha12Rng::from_seed(seed);
            rng.set_word_pos(u128::from(first_block) * BLOCK as u128);
            let expected: Vec<u32> = (0..2 * AT_ONCE).map(|_| rng.next_u32()).collect();
            for isa in Isa::levels() {
                let mut words = vec![9; 2 * AT_ONCE];
                isa.enter(Stream {
                    seed: &seed,
                    first_block,
                    words: &mut words,
                });
                assert_eq!(words, expected, "{isa}");
            }
        }
    }

    #[test]
    #[ignore = "a measurement: needs an idle machine"]
    fn bytes_per_second() {
        let mut words = vec![0; 8 * AT_ONCE];
        for isa in Isa::levels() {
            let seconds = crate::timing::least(200, || {
                isa.enter(Stream {
                    seed: &[1; 32],
                    first_block: 0,
                    words: &mut words,
                });
            });
            println!(
                "{isa}: {:.2} GB/s",
                (4 * words.len()) as f64 / seconds / 1e9
            );
        }
        let mut rng = ChaCha12Rng::from_seed([1; 32]);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let seconds = crate::timing::least(200, || rng.fill_bytes(bytes));
        println!("chacha20: {:.2} GB/s", bytes.len() as f64 / seconds / 1e9);
    }
}
