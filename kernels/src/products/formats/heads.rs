//! What a coded column has beside its codes: a scale and an offset for each group of a chunk, as the file has them.
//!
//! A weight is `code · scale + offset`. Both are made in f32 from what is stored, without rounding but for that of the
//! offset of [`Heads::TwoLevels`] and of numbers in f32; they are the same numbers on every instruction set.
//!
//! ```text
//!                    head words of a chunk of 256 terms                  scale      offset
//! Zero, 16 bits      two scales a word                                   s          -zero·s
//! Zero, f32          a scale a word                                      s          -zero·s
//! Zeros, 16 bits     of four groups: s | bytes of two zero points,
//!                    s | s, s | bytes of two                             s          -(byte + least)·s
//! Zeros, f32         of four groups: bytes of four, then four scales     s          -(byte + least)·s
//! Minima, 16 bits    s | minimum                                         s          minimum
//! Minima, f32        s, minimum                                          s          minimum
//! TwoLevels          d | m, then 8 of a of 6 bits with the upper 2
//!                    of b above them, then the lower 4 of 8 of b         d·a        -m·b
//! Signed             d, then 16 bytes a + 128                            d·a        -32·d·a
//! Microscaled        bytes a + 129, four a word                          2^a        -12·2^a
//! ```

use half::{bf16, f16};

use crate::products::parts;

/// Terms of a chunk.
pub const CHUNK: usize = 256;

/// How the scales and offsets of a coded weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// A scale, times a code less a zero point that is the same everywhere.
    Zero {
        /// The type of scales.
        scales: HeadNumber,
        /// The zero point.
        zero: u8,
    },
    /// A scale, times a code less a zero point of the group's own.
    Zeros {
        /// The type of scales.
        scales: HeadNumber,
        /// The least that a zero point can be; the most is 255 more.
        least: u8,
    },
    /// A scale times a code, and a minimum.
    Minima(HeadNumber),
    /// Of groups of 32: whole numbers of 6 bits times a scale, and others times a minimum, which 256 terms share.
    TwoLevels,
    /// Of groups of 32 codes of E2M1: a power of two times twice the number.
    Microscaled,
    /// Of groups of 16: signed whole numbers of 8 bits times a scale that 256 terms share, times a code less 32.
    Signed,
}

/// Heads of groups that are one part of a coded weight each, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeads {
    /// What there is for each group.
    pub heads: Heads,
    /// Terms of a part: a power of two.
    pub part: usize,
    /// The parts of a group: one, or two.
    pub parts: usize,
}

/// The type of a [head's](Heads) numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNumber {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// f32.
    F32,
}

impl Default for GroupHeads {
    fn default() -> Self {
        Self::int4(32)
    }
}

impl HeadNumber {
    /// Whether it holds this number.
    fn holds(self, x: f32) -> bool {
        let back = match self {
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F32 => x,
        };
        back.to_bits() == x.to_bits()
    }

    /// The bits of a number of 16 bits.
    fn half(self, x: f32) -> u32 {
        match self {
            Self::F16 => u32::from(f16::from_f32(x).to_bits()),
            Self::Bf16 | Self::F32 => x.to_bits() >> 16,
        }
    }

    /// The number of these bits, the lower half of a word.
    fn of_half(self, word: u32) -> f32 {
        match self {
            Self::F16 => f16::from_bits(word as u16).to_f32(),
            Self::Bf16 | Self::F32 => f32::from_bits(word << 16),
        }
    }
}

/// What one column's heads are packed from, for all groups of its terms.
#[derive(Clone, Copy, Debug)]
pub struct ColumnHeads<'a> {
    /// A scale for each group; of [`Heads::TwoLevels`] and [`Heads::Signed`] a whole number.
    pub scales: &'a [f32],
    /// Zero points or minima, of each group, if it has its own; of [`Heads::TwoLevels`] whole numbers.
    pub offsets: &'a [f32],
    /// Of two levels, what the whole numbers of 256 terms are times: of scales, and of minima.
    pub shared: &'a [[f32; 2]],
}

/// In a word.
pub(super) const BYTES: usize = 4;

impl GroupHeads {
    /// Those of int4 in groups of so many terms.
    pub const fn int4(group: usize) -> Self {
        Self {
            heads: Heads::Minima(HeadNumber::F16),
            part: group,
            parts: 1,
        }
    }

    /// The group of a part.
    #[inline(always)]
    pub(super) const fn group(self, part: usize) -> usize {
        // A shift: see `parts`.
        part >> self.parts.trailing_zeros()
    }

    /// Words before the codes of a chunk of so many parts; one without any has a head, too.
    #[inline(always)]
    pub const fn words(self, n_parts: usize) -> usize {
        let groups = parts(n_parts, self.parts);
        self.heads.words(if groups == 0 { 1 } else { groups })
    }

    /// The scale and the offset of one part, from a column's head words of its chunk.
    pub fn unpack(self, words: &[u32], part: usize) -> [f32; 2] {
        self.heads.unpack(words, self.group(part))
    }
}

impl Heads {
    /// Whether codes of so many bits can have them, of E2M1 or others.
    #[inline(always)]
    pub const fn are_of(self, bits: usize, e2m1: bool) -> bool {
        match self {
            Self::Zero { .. } | Self::Zeros { .. } | Self::Minima(_) => bits != 6 && !e2m1,
            Self::TwoLevels => matches!(bits, 4 | 5) && !e2m1,
            Self::Microscaled => e2m1,
            Self::Signed => bits == 6,
        }
    }

    /// Words before the codes of a chunk of so many groups.
    #[inline(always)]
    pub const fn words(self, groups: usize) -> usize {
        match self {
            Self::Zero {
                scales: HeadNumber::F32,
                ..
            }
            | Self::Minima(HeadNumber::F16 | HeadNumber::Bf16) => groups,
            Self::Zero { .. } => groups.div_ceil(2),
            Self::Zeros {
                scales: HeadNumber::F32,
                ..
            } => groups + groups.div_ceil(BYTES),
            Self::Zeros { .. } => groups / 4 * 3 + groups % 4,
            Self::Minima(HeadNumber::F32) => 2 * groups,
            Self::Microscaled => groups.div_ceil(BYTES),
            Self::TwoLevels => 4,
            Self::Signed => 5,
        }
    }

    /// Whether all of these numbers can be stored, and are as many as the groups ask for.
    ///
    /// # Errors
    /// What cannot.
    pub fn check(self, column: &ColumnHeads, n_groups: usize) -> Result<(), String> {
        let wants_offsets = !matches!(self, Self::Zero { .. } | Self::Signed | Self::Microscaled);
        let n_shared = match self {
            Self::TwoLevels => n_groups.div_ceil(8),
            Self::Signed => n_groups.div_ceil(16),
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
        let held = |of: HeadNumber, numbers: &[f32]| {
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
            Self::TwoLevels => {
                whole(column.scales, 0.0, 63.0)?;
                whole(column.offsets, 0.0, 63.0)?;
                held(HeadNumber::F16, column.shared.as_flattened())
            }
            Self::Signed => {
                whole(column.scales, -128.0, 127.0)?;
                held(HeadNumber::F16, column.shared.as_flattened())
            }
        }
    }

    /// Packs the head of a chunk whose groups, of so many terms each, are these of the column.
    pub fn pack(self, column: &ColumnHeads, chunk: usize, group: usize, words: &mut [u32]) {
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
                scales: HeadNumber::F32,
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
                        HeadNumber::F32 => x.to_bits(),
                        of => of.half(x) << bit,
                    };
                    words[zero_word] |= (zero as u32 - u32::from(least)) << zero_bit;
                }
            }
            Self::Minima(HeadNumber::F32) => {
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
                words[0] = HeadNumber::F16.half(d) | HeadNumber::F16.half(m) << 16;
                for (group, (&a, &b)) in scales.iter().zip(&offsets).enumerate() {
                    let (a, b) = (a as u32, b as u32);
                    words[1 + group / BYTES] |= (a | b >> 4 << 6) << (8 * (group % BYTES));
                    words[3] |= (b & 15) << (4 * group);
                }
            }
            Self::Microscaled => {
                for (group, &x) in scales.iter().enumerate() {
                    words[group / BYTES] |= power(x).unwrap_or(0) << (8 * (group % BYTES));
                }
            }
            Self::Signed => {
                let [d, _] = column.shared.get(chunk).copied().unwrap_or_default();
                words[0] = HeadNumber::F16.half(d);
                for (group, a) in scales.iter().enumerate() {
                    words[1 + group / BYTES] |= ((a + 128.0) as u32) << (8 * (group % BYTES));
                }
            }
        }
    }

    /// The scale and the offset of one group, from a column's head words of its chunk.
    pub fn unpack(self, words: &[u32], group: usize) -> [f32; 2] {
        let byte = |first: usize| words[first + group / BYTES] >> (8 * (group % BYTES)) & 0xff;
        match self {
            Self::Zero { scales, zero } => {
                let scale = match scales {
                    HeadNumber::F32 => f32::from_bits(words[group]),
                    of => of.of_half(words[group / 2] >> (16 * (group % 2))),
                };
                [scale, -(f32::from(zero) * scale)]
            }
            Self::Zeros { scales, least } => {
                let [(word, bit), (zero_word, zero_bit)] = zeros_at(scales, group);
                let scale = match scales {
                    HeadNumber::F32 => f32::from_bits(words[word]),
                    of => of.of_half(words[word] >> bit),
                };
                let zero = words[zero_word] >> zero_bit & 0xff;
                [scale, -((zero + u32::from(least)) as f32 * scale)]
            }
            Self::Minima(HeadNumber::F32) => [0, 1].map(|i| f32::from_bits(words[2 * group + i])),
            Self::Minima(of) => [0, 16].map(|by| of.of_half(words[group] >> by)),
            Self::TwoLevels => {
                let [d, m] = [0, 16].map(|by| HeadNumber::F16.of_half(words[0] >> by));
                let (a, b) = (
                    byte(1) & 63,
                    byte(1) >> 6 << 4 | words[3] >> (4 * group) & 15,
                );
                [d * a as f32, -(m * b as f32)]
            }
            Self::Microscaled => {
                let scale = f32::from_bits(byte(0) << 23) * POWER_UNIT;
                [scale, -(f32::from(E2M1_ZERO) * scale)]
            }
            Self::Signed => {
                let scale = HeadNumber::F16.of_half(words[0]) * (byte(1) as f32 - 128.0);
                [scale, -(SIX_BITS * scale)]
            }
        }
    }
}

/// Where the scale of a group lies in a head's words, and its [zero point](Heads::Zeros) of its own: word and lowest bit.
#[inline(always)]
pub(super) const fn zeros_at(scales: HeadNumber, group: usize) -> [(usize, usize); 2] {
    let (four, i) = (group / 4, group % 4);
    match scales {
        HeadNumber::F32 => [(5 * four + 1 + i, 0), (5 * four, 8 * i)],
        HeadNumber::F16 | HeadNumber::Bf16 => [
            (3 * four + i.div_ceil(2), if i == 2 { 16 } else { 0 }),
            (3 * four + i / 2 * 2, 16 + 8 * (i % 2)),
        ],
    }
}

/// The byte of a power of two from 2⁻¹²⁸ to 2¹²³, of which 24 is an f32: the exponent of four times it. Zeros stand for 0.
fn power(x: f32) -> Option<u32> {
    let byte = (x / POWER_UNIT).to_bits() >> 23;
    let is_it = (1..=252).contains(&byte) && f32::from_bits(byte << 23) * POWER_UNIT == x;
    is_it.then_some(byte)
}

/// What the number of a [power's](power) byte is times.
pub(super) const POWER_UNIT: f32 = 0.25;

/// The zero point of codes of E2M1, as whole numbers.
pub(super) const E2M1_ZERO: u8 = 12;

/// The zero point of codes of 6 bits.
pub(super) const SIX_BITS: f32 = 32.0;
