//! Bit streams of 2- to 8-bit values in 32-bit words, lowest bits first; a value may begin in one word and end in the next.

/// Returns the number of words for `n` values.
pub(super) fn n_words(n: usize, bits: usize) -> Option<usize> {
    Some(n.checked_mul(bits)?.div_ceil(32))
}

/// Returns the first `n` values.
pub(super) fn codes(words: &[u32], bits: usize, n: usize) -> impl Iterator<Item = u8> {
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

/// Returns the two 4-bit values in a byte, the low one first.
pub(super) fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packed bit by bit, as the formats' documentation describes.
    #[test]
    fn values_of_every_width_are_unpacked_as_they_were_packed() {
        for bits in 2..=8 {
            for n in [1, 7, 32, 45] {
                let expected: Vec<u8> = (0..n)
                    .map(|i| ((i * 37 + 11) % (1 << bits)) as u8)
                    .collect();
                let mut words = vec![0u32; n_words(n, bits).unwrap()];
                for (i, code) in expected.iter().enumerate() {
                    for bit in 0..bits {
                        let at = i * bits + bit;
                        words[at / 32] |= u32::from(code >> bit & 1) << (at % 32);
                    }
                }
                let found: Vec<u8> = codes(&words, bits, n).collect();
                assert_eq!(found, expected, "{bits} bits");
            }
        }
    }
}
