//! Scales and offsets in quantized columns: one scale and one offset for each group in a chunk, stored as in the
//! file.
//!
//! A weight is `q · scale + offset` for the quantized value `q`. Scale and offset are computed in f32 from their
//! stored form. This is exact, except for one rounding in the offset of [`GroupScales::TwoLevels`] and [`GroupScales::Nibbles`] and for values stored in f32.
//! All instruction sets compute the same scales and offsets.
//!
//! ```text
//!                    scale words of a chunk (256 values)                   scale      offset
//! Zero, 16 bits      two scales per word                                   s          -zero·s
//! Zero, f32          one scale per word                                      s          -zero·s
//! Zeros, 16 bits for four groups: s | bytes of two zero points,
//!                    s | s, s | bytes of two                             s          -(byte + least)·s
//! Zeros, f32         for four groups: bytes of four, then four scales    s          -(byte + least)·s
//! Minima, 16 bits    s | minimum                                         s          minimum
//! Minima, f32        s, minimum                                          s          minimum
//! TwoLevels          d | m, then 8 of a of 6 bits with the upper 2
//!                    of b above them, then the lower 4 of 8 of b         d·a        -m·b
//! Signed             d, then 16 bytes a + 128                            d·a        -32·d·a
//! Nibbles            d | m, then 16 bytes a | b << 4                     d·a        -m·b
//! Short              d | upper 2 bits of 8 of a + 32, then lower 4;
//!                    0 | the same for another 8                          d·a        -zero·d·a
//! Microscaled        bytes a + 129, four a word                          2^a        -12·2^a
//! ```

use half::{bf16, f16};

use crate::products::parts;

/// Values along `k` in a chunk.
pub const CHUNK: usize = 256;

/// The code of 4-bit E2M1 floats.
pub const E2M1: usize = 100;

/// The code of 4-bit places in the table of IQ4_NL and IQ4_XS.
pub const NON_LINEAR: usize = 101;

/// How a quantized weight's scales and offsets are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScales {
    /// A scale, and one zero point for the whole weight: `(q - zero) · scale`.
    Zero {
        /// The scales' type.
        scales: ScaleType,
        /// The zero point. [`NON_LINEAR_ZERO`] implies 4-bit places in the table of IQ4_NL.
        zero: u8,
    },
    /// A scale and a zero point for each group.
    Zeros {
        /// The scales' type.
        scales: ScaleType,
        /// The smallest possible zero point. The largest is 255 more.
        least: u8,
    },
    /// A scale and a minimum for each group: `q · scale + minimum`.
    Minima(ScaleType),
    /// Two-level scales (Q4_K and Q5_K): 32-value groups have a 6-bit scale and a 6-bit minimum, each multiplied by
    /// an f16 factor that 256 values share.
    TwoLevels,
    /// Microscaling (MXFP4): groups with 32 E2M1 values have a power of two as their scale.
    Microscaled,
    /// Two-level scales (Q6_K): 16-value groups have a signed 8-bit scale, multiplied by an f16 factor that 256
    /// values share. The zero point is 32.
    Signed,
    /// Two-level scales (Q2_K): 16-value groups have a 4-bit scale and a 4-bit minimum, each multiplied by an f16 factor
    /// that 256 values share.
    Nibbles,
    /// Two-level scales (Q3_K and IQ4_XS): groups have a signed 6-bit scale, multiplied by an f16 factor that 256 values share.
    Short {
        /// The zero point, as in [`Self::Zero`].
        zero: u8,
    },
}

/// Scales for groups with one or two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleLayout {
    /// How each group's scale and offset are stored.
    pub scales: GroupScales,
    /// The part length, a power of two.
    pub part: usize,
    /// Parts per group: 1 or 2.
    pub parts: usize,
}

/// The floating-point type that stores [scales](GroupScales).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// f32.
    F32,
}

impl Default for ScaleLayout {
    fn default() -> Self {
        Self::int4(32)
    }
}

impl ScaleType {
    /// Returns whether the type represents `x` exactly.
    fn holds(self, x: f32) -> bool {
        let back = match self {
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F32 => x,
        };
        back.to_bits() == x.to_bits()
    }

    /// Returns a 16-bit value's bits.
    fn half(self, x: f32) -> u32 {
        match self {
            Self::F16 => u32::from(f16::from_f32(x).to_bits()),
            Self::Bf16 | Self::F32 => x.to_bits() >> 16,
        }
    }

    /// Returns the value whose 16 bits are a word's lower half.
    fn of_half(self, word: u32) -> f32 {
        match self {
            Self::F16 => f16::from_bits(word as u16).to_f32(),
            Self::Bf16 | Self::F32 => f32::from_bits(word << 16),
        }
    }
}

/// A column's scales and offsets before packing, for all its groups.
#[derive(Clone, Copy, Debug)]
pub struct ColumnScales<'a> {
    /// A scale for each group. An integer where scales have two levels.
    pub scales: &'a [f32],
    /// Each group's zero point or minimum, if stored. An integer where minima have two levels.
    pub offsets: &'a [f32],
    /// For two-level scales, the factors for scales and for minima for each 256 values.
    pub shared: &'a [[f32; 2]],
}

/// Bytes in a word.
pub(super) const BYTES: usize = 4;

impl ScaleLayout {
    /// Returns int4's scales for groups with `group` values.
    pub const fn int4(group: usize) -> Self {
        Self {
            scales: GroupScales::Minima(ScaleType::F16),
            part: group,
            parts: 1,
        }
    }

    /// Returns the group that contains a part.
    #[inline(always)]
    pub(super) const fn group(self, part: usize) -> usize {
        // A shift, see `parts`.
        part >> self.parts.trailing_zeros()
    }

    /// Returns how many scale words a chunk with `n_parts` parts has. An empty chunk has scale words, too.
    #[inline(always)]
    pub const fn words(self, n_parts: usize) -> usize {
        let groups = parts(n_parts, self.parts);
        self.scales.words(if groups == 0 { 1 } else { groups })
    }

    /// Returns one part's scale and offset, given its chunk's scale words.
    pub fn unpack(self, words: &[u32], part: usize) -> [f32; 2] {
        self.scales.unpack(words, self.group(part))
    }
}

impl GroupScales {
    /// Returns whether quantized values with this code (their bits, `E2M1` or `NON_LINEAR`) can have these scales.
    #[inline(always)]
    pub const fn support(self, code: usize) -> bool {
        match self {
            Self::Zero { .. } if code == NON_LINEAR => self.is_non_linear(),
            Self::Zero { .. } | Self::Zeros { .. } | Self::Minima(_) => matches!(code, 4 | 5 | 8),
            Self::TwoLevels => matches!(code, 4 | 5),
            Self::Microscaled => code == E2M1,
            Self::Signed => code == 6,
            Self::Nibbles => code == 2,
            Self::Short { .. } => code == if self.is_non_linear() { NON_LINEAR } else { 3 },
        }
    }

    /// Returns whether 4-bit values are places in the table of IQ4_NL and IQ4_XS.
    pub const fn is_non_linear(self) -> bool {
        matches!(
            self,
            Self::Zero {
                zero: NON_LINEAR_ZERO,
                ..
            } | Self::Short {
                zero: NON_LINEAR_ZERO
            }
        )
    }

    /// Returns how many scale words a chunk with `groups` groups has.
    #[inline(always)]
    pub const fn words(self, groups: usize) -> usize {
        match self {
            Self::Zero {
                scales: ScaleType::F32,
                ..
            }
            | Self::Minima(ScaleType::F16 | ScaleType::Bf16) => groups,
            Self::Zero { .. } => groups.div_ceil(2),
            Self::Zeros {
                scales: ScaleType::F32,
                ..
            } => groups + groups.div_ceil(BYTES),
            Self::Zeros { .. } => groups / 4 * 3 + groups % 4,
            Self::Minima(ScaleType::F32) => 2 * groups,
            Self::Microscaled => groups.div_ceil(BYTES),
            Self::TwoLevels => 4,
            Self::Signed => 5,
            Self::Nibbles => 1 + groups.div_ceil(BYTES),
            Self::Short { .. } => 2 * groups.div_ceil(8),
        }
    }

    /// Checks that all scales and offsets can be stored exactly, and that their number matches the group count and, for factors that
    /// 256 values share, the chunk count.
    ///
    /// # Errors
    /// If a value cannot be stored, or the value count is wrong.
    pub fn check(
        self,
        column: &ColumnScales,
        n_groups: usize,
        n_chunks: usize,
    ) -> Result<(), String> {
        let wants_offsets = matches!(
            self,
            Self::Zeros { .. } | Self::Minima(_) | Self::TwoLevels | Self::Nibbles
        );
        let n_shared = match self {
            Self::TwoLevels | Self::Signed | Self::Nibbles | Self::Short { .. } => n_chunks,
            _ => 0,
        };
        let n_offsets = if wants_offsets { n_groups } else { 0 };
        let found = [column.scales, column.offsets].map(<[f32]>::len);
        if (found, column.shared.len()) != ([n_groups, n_offsets], n_shared) {
            return Err(format!(
                "{found:?} scales and offsets and {} shared ones, expected {:?} and {n_shared}",
                column.shared.len(),
                [n_groups, n_offsets]
            ));
        }
        let whole = |numbers: &[f32], least: f32, most: f32| {
            let is_other = |x: &&f32| !(least..=most).contains(*x) || x.fract() != 0.0;
            match numbers.iter().find(is_other) {
                None => Ok(()),
                Some(x) => Err(format!("{x}, expected a whole number of {least} to {most}")),
            }
        };
        let held = |of: ScaleType, numbers: &[f32]| {
            let other = numbers.iter().find(|x| !x.is_finite() || !of.holds(**x));
            match other {
                None => Ok(()),
                Some(x) => Err(format!("{x}, which {of:?} does not hold")),
            }
        };
        match self {
            Self::Zero { scales, .. } => held(scales, column.scales),
            Self::Zeros { scales, least } => {
                held(scales, column.scales)?;
                let least = f32::from(least);
                whole(column.offsets, least, least + 255.0)
            }
            Self::Minima(number) => {
                held(number, column.scales)?;
                held(number, column.offsets)
            }
            Self::Microscaled => match column.scales.iter().find(|x| power(**x).is_none()) {
                None => Ok(()),
                Some(x) => Err(format!("{x}, expected a power of two of -128 to 123")),
            },
            Self::TwoLevels | Self::Nibbles => {
                let most = if self == Self::Nibbles { 15.0 } else { 63.0 };
                whole(column.scales, 0.0, most)?;
                whole(column.offsets, 0.0, most)?;
                held(ScaleType::F16, column.shared.as_flattened())
            }
            Self::Signed => {
                whole(column.scales, -128.0, 127.0)?;
                held(ScaleType::F16, column.shared.as_flattened())
            }
            Self::Short { .. } => {
                whole(column.scales, -32.0, 31.0)?;
                held(ScaleType::F16, column.shared.as_flattened())
            }
        }
    }

    /// Packs chunk `chunk`'s scale words, for groups with length `group`.
    pub fn pack(self, column: &ColumnScales, chunk: usize, group: usize, words: &mut [u32]) {
        let all = parts(CHUNK, group);
        let of = |numbers: &[f32]| -> Vec<f32> {
            let groups = numbers.iter().skip(chunk * all).take(all);
            groups.copied().collect()
        };
        let (scales, offsets) = (of(column.scales), of(column.offsets));
        let words = &mut words[..self.words(scales.len().max(1))];
        words.fill(0);
        match self {
            Self::Zero {
                scales: ScaleType::F32,
                ..
            } => words
                .iter_mut()
                .zip(scales)
                .for_each(|(to, x)| *to = x.to_bits()),
            Self::Zero { scales: of, .. } => {
                for (i, &x) in scales.iter().enumerate() {
                    words[i / 2] |= of.half(x) << (16 * (i % 2));
                }
            }
            Self::Zeros { scales: of, least } => {
                for (group, (&x, &zero)) in scales.iter().zip(&offsets).enumerate() {
                    let [(word, bit), (zero_word, zero_bit)] = zeros_at(of, group);
                    words[word] |= match of {
                        ScaleType::F32 => x.to_bits(),
                        of => of.half(x) << bit,
                    };
                    words[zero_word] |= (zero as u32 - u32::from(least)) << zero_bit;
                }
            }
            Self::Minima(ScaleType::F32) => {
                for (to, (x, y)) in words.chunks_exact_mut(2).zip(scales.iter().zip(&offsets)) {
                    to.copy_from_slice(&[x.to_bits(), y.to_bits()]);
                }
            }
            Self::Minima(of) => {
                for (to, (&x, &y)) in words.iter_mut().zip(scales.iter().zip(&offsets)) {
                    *to = of.half(x) | of.half(y) << 16;
                }
            }
            Self::TwoLevels => {
                let [d, m] = column.shared.get(chunk).copied().unwrap_or_default();
                words[0] = ScaleType::F16.half(d) | ScaleType::F16.half(m) << 16;
                for (group, (&a, &b)) in scales.iter().zip(&offsets).enumerate() {
                    let (a, b) = (a as u32, b as u32);
                    words[1 + group / BYTES] |= (a | b >> 4 << 6) << (8 * (group % BYTES));
                    words[3] |= (b & 15) << (4 * group);
                }
            }
            Self::Nibbles => {
                let [d, m] = column.shared.get(chunk).copied().unwrap_or_default();
                words[0] = ScaleType::F16.half(d) | ScaleType::F16.half(m) << 16;
                for (group, (&a, &b)) in scales.iter().zip(&offsets).enumerate() {
                    let both = a as u32 | (b as u32) << 4;
                    words[1 + group / BYTES] |= both << (8 * (group % BYTES));
                }
            }
            Self::Microscaled => {
                for (group, &x) in scales.iter().enumerate() {
                    words[group / BYTES] |= power(x).unwrap_or(0) << (8 * (group % BYTES));
                }
            }
            Self::Signed => {
                let [d, _] = column.shared.get(chunk).copied().unwrap_or_default();
                words[0] = ScaleType::F16.half(d);
                for (group, a) in scales.iter().enumerate() {
                    words[1 + group / BYTES] |= ((a + 128.0) as u32) << (8 * (group % BYTES));
                }
            }
            Self::Short { .. } => {
                let [d, _] = column.shared.get(chunk).copied().unwrap_or_default();
                words[0] = ScaleType::F16.half(d);
                for (group, a) in scales.iter().enumerate() {
                    let (a, first, i) = ((a + 32.0) as u32, group / 8 * 2, group % 8);
                    words[first] |= a >> 4 << (16 + 2 * i);
                    words[first + 1] |= (a & 15) << (4 * i);
                }
            }
        }
    }

    /// Returns one group's scale and offset, given its chunk's scale words.
    pub fn unpack(self, words: &[u32], group: usize) -> [f32; 2] {
        let byte = |first: usize| words[first + group / BYTES] >> (8 * (group % BYTES)) & 0xff;
        match self {
            Self::Zero { scales, zero } => {
                let scale = match scales {
                    ScaleType::F32 => f32::from_bits(words[group]),
                    of => of.of_half(words[group / 2] >> (16 * (group % 2))),
                };
                [scale, -(f32::from(zero) * scale)]
            }
            Self::Zeros { scales, least } => {
                let [(word, bit), (zero_word, zero_bit)] = zeros_at(scales, group);
                let scale = match scales {
                    ScaleType::F32 => f32::from_bits(words[word]),
                    of => of.of_half(words[word] >> bit),
                };
                let zero = words[zero_word] >> zero_bit & 0xff;
                [scale, -((zero + u32::from(least)) as f32 * scale)]
            }
            Self::Minima(ScaleType::F32) => [0, 1].map(|i| f32::from_bits(words[2 * group + i])),
            Self::Minima(of) => [0, 16].map(|by| of.of_half(words[group] >> by)),
            Self::TwoLevels => {
                let [d, m] = [0, 16].map(|by| ScaleType::F16.of_half(words[0] >> by));
                let (a, b) = (
                    byte(1) & 63,
                    byte(1) >> 6 << 4 | words[3] >> (4 * group) & 15,
                );
                [d * a as f32, -(m * b as f32)]
            }
            Self::Nibbles => {
                let [d, m] = [0, 16].map(|by| ScaleType::F16.of_half(words[0] >> by));
                [d * (byte(1) & 15) as f32, -(m * (byte(1) >> 4) as f32)]
            }
            Self::Microscaled => {
                let scale = f32::from_bits(byte(0) << 23) * POWER_UNIT;
                [scale, -(f32::from(E2M1_ZERO) * scale)]
            }
            Self::Signed => {
                let scale = ScaleType::F16.of_half(words[0]) * (byte(1) as f32 - 128.0);
                [scale, -(SIX_BITS * scale)]
            }
            Self::Short { zero } => {
                let (first, i) = (group / 8 * 2, group % 8);
                let a = words[first] >> (16 + 2 * i) << 4 & 0x30 | words[first + 1] >> (4 * i) & 15;
                let scale = ScaleType::F16.of_half(words[0]) * (a as f32 - 32.0);
                [scale, -(f32::from(zero) * scale)]
            }
        }
    }
}

/// Locates a group's scale and its [zero point](GroupScales::Zeros) in the scale words: word and lowest bit.
#[inline(always)]
pub(super) const fn zeros_at(scales: ScaleType, group: usize) -> [(usize, usize); 2] {
    let (four, i) = (group / 4, group % 4);
    match scales {
        ScaleType::F32 => [(5 * four + 1 + i, 0), (5 * four, 8 * i)],
        ScaleType::F16 | ScaleType::Bf16 => [
            (3 * four + i.div_ceil(2), if i == 2 { 16 } else { 0 }),
            (3 * four + i / 2 * 2, 16 + 8 * (i % 2)),
        ],
    }
}

/// Returns the stored byte for a power of two from 2⁻¹²⁸ to 2¹²³ (24 times which is finite in f32): the exponent
/// that four times the power has. Byte 0 stands for 0.
fn power(x: f32) -> Option<u32> {
    let byte = (x / POWER_UNIT).to_bits() >> 23;
    let is_it = (1..=252).contains(&byte) && f32::from_bits(byte << 23) * POWER_UNIT == x;
    is_it.then_some(byte)
}

/// The value of byte exponent 0, see [`power`].
pub(super) const POWER_UNIT: f32 = 0.25;

/// The zero point of IQ4_NL and IQ4_XS, whose values are -127 to 113.
pub const NON_LINEAR_ZERO: u8 = 127;

/// The zero point for E2M1 values, as integers.
pub(super) const E2M1_ZERO: u8 = 12;

/// The zero point for 6-bit values.
pub(super) const SIX_BITS: f32 = 32.0;
