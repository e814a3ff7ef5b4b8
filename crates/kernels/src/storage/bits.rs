//! Values with few bits, in words and bytes.

use std::ops::Range;

/// Returns the number of 32-bit words for a stream of `n` values.
pub fn n_words(n: usize, bits: usize) -> Option<usize> {
    Some(n.checked_mul(bits)?.div_ceil(32))
}

/// Appends the first `n` values of each bit stream with 2- to 8-bit values, lowest bits first. A stream has `n_words` words,
/// and a value may begin in one word and end in the next.
pub fn append_streams(words: &[u32], bits: usize, n: usize, values: &mut Vec<u8>) {
    let width = n_words(n, bits).unwrap_or(0);
    for stream in words.chunks_exact(width.max(1)) {
        values.extend(codes(stream, bits, n));
    }
}

/// Returns the first `n` values of each bit stream, one stream after the other. A stream's words are `n_streams` words
/// apart.
pub fn interleaved_streams(words: &[u32], n_streams: usize, bits: usize, n: usize) -> Vec<u8> {
    let width = n_words(n, bits).unwrap_or(0);
    let mut values = Vec::with_capacity(n_streams * n);
    // The words of one stream are far apart; those of adjacent streams share a cache line.
    const STREAMS: usize = 16;
    let mut streams = vec![0; STREAMS * width];
    for start in (0..n_streams).step_by(STREAMS) {
        let some = start..n_streams.min(start + STREAMS);
        for (i, of_all) in words.chunks_exact(n_streams).enumerate() {
            for (j, &word) in of_all[some.clone()].iter().enumerate() {
                streams[j * width + i] = word;
            }
        }
        append_streams(&streams[..some.len() * width], bits, n, &mut values);
    }
    values
}

fn codes(words: &[u32], bits: usize, n: usize) -> impl Iterator<Item = u8> {
    let mask = (1u64 << bits) - 1;
    (0..n).map(move |i| {
        let (word, shift) = (i * bits / 32, i * bits % 32);
        let low = u64::from(words[word]);
        let high = match shift + bits > 32 {
            true => u64::from(words[word + 1]) << 32,
            false => 0,
        };
        ((high | low) >> shift & mask) as u8
    })
}

/// Returns some rows' 4-bit values, `[rows, lines]`. `words` is `[lines, width]`, and a word has eight rows' values, in
/// AutoAWQ's order.
pub fn awq_rows(words: &[u32], width: usize, rows: Range<usize>) -> Vec<u8> {
    /// The position that a row's four bits have in a word.
    const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    let n_lines = words.len() / width.max(1);
    let lines = |row| (0..n_lines).map(move |line| (line, row));
    let value = |(line, row): (usize, usize)| {
        (words[line * width + row / 8] >> (4 * AWQ_ORDER[row % 8]) & 15) as u8
    };
    rows.flat_map(lines).map(value).collect()
}

/// Returns the two 4-bit values in each byte, the low one first.
pub fn nibbles(bytes: &[u8]) -> Vec<u8> {
    let pairs = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    pairs.collect()
}

/// Returns the two 4-bit values in each byte, the high one first.
pub fn high_nibbles_first(bytes: &[u8]) -> Vec<u8> {
    let pairs = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    pairs.collect()
}

/// Appends one 2-bit value from each byte, by its place from the lowest bits.
pub fn append_pairs(bytes: &[u8], place: usize, values: &mut Vec<u8>) {
    values.extend(bytes.iter().map(|byte| byte >> (2 * place) & 3));
}

/// Returns signed bytes plus 128.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 128).collect()
}

/// Returns -1, 0 and 1, plus 1.
///
/// # Errors
/// The first other value.
pub fn ternary(numbers: &[f32]) -> Result<Vec<u8>, f32> {
    let value = |&number: &f32| match number {
        -1.0 => Ok(0),
        0.0 => Ok(1),
        1.0 => Ok(2),
        other => Err(other),
    };
    numbers.iter().map(value).collect()
}

/// Returns values times `inverse`, rounded to -1, 0 or 1, plus 1.
pub fn rounded_to_ternary(numbers: &[f32], inverse: f32) -> Vec<u8> {
    let value = |number: &f32| (number * inverse).round_ties_even().clamp(-1.0, 1.0) + 1.0;
    numbers.iter().map(|number| value(number) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packed bit by bit, as the formats' documentation describes.
    #[test]
    fn values_of_every_width_are_unpacked_as_they_were_packed() {
        for bits in 2..=8 {
            for n in [1, 7, 32, 45] {
                let width = n_words(n, bits).unwrap();
                let streams: Vec<Vec<u8>> = (0..19)
                    .map(|stream| {
                        let value = |i| ((i * 37 + 11 + stream) % (1 << bits)) as u8;
                        (0..n).map(value).collect()
                    })
                    .collect();
                let mut words = vec![0u32; streams.len() * width];
                let mut interleaved = words.clone();
                for (stream, values) in streams.iter().enumerate() {
                    for (i, code) in values.iter().enumerate() {
                        for bit in 0..bits {
                            let at = i * bits + bit;
                            let bit = u32::from(code >> bit & 1) << (at % 32);
                            words[stream * width + at / 32] |= bit;
                            interleaved[at / 32 * streams.len() + stream] |= bit;
                        }
                    }
                }
                let mut found = Vec::new();
                append_streams(&words, bits, n, &mut found);
                let expected = streams.concat();
                assert_eq!(found, expected, "{bits} bits");
                let found = interleaved_streams(&interleaved, streams.len(), bits, n);
                assert_eq!(found, expected, "{bits} bits");
            }
        }
    }
}
