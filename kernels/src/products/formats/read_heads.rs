//! The heads of coded columns, read for a vector of columns at a time.

use std::mem::MaybeUninit;

use super::heads::{
    BYTES, E2M1_ZERO, GroupHeads, HeadNumber, Heads, POWER_UNIT, SIX_BITS, zeros_at,
};
use crate::products::WIDTH;
use crate::vectors::{Vectors, Words};

/// A scale and an offset for each column of a vector.
#[derive(Clone, Copy)]
pub struct Affine<V> {
    pub scale: V,
    pub offset: V,
}

impl GroupHeads {
    /// The scales and offsets of one part, of a vector of columns; as [`Self::unpack`].
    ///
    /// # Safety
    /// `heads` points to a vector of words in each of as many rows of a panel as the head of a chunk with this part has; the
    /// rows are `stride` words apart.
    #[inline(always)]
    pub unsafe fn read<V: Words>(
        self,
        v: V,
        heads: (*const u32, usize),
        part: usize,
    ) -> Affine<V::Vector> {
        // SAFETY: the caller's promise.
        unsafe { self.heads.read(v, heads, part / self.parts) }
    }

    /// As [`Self::read`], of two neighbouring vectors and all of so many parts.
    ///
    /// # Safety
    /// As for [`Self::read`], of both vectors and these parts.
    #[inline(always)]
    pub unsafe fn read_all<V: Words>(
        self,
        v: V,
        heads: ([*const u32; WIDTH], usize),
        to: &mut [[MaybeUninit<Affine<V::Vector>>; WIDTH]],
    ) {
        let groups = to.len().div_ceil(self.parts);
        // SAFETY: the caller's promise; a group has a part at least.
        unsafe { self.heads.read_all(v, heads, &mut to[..groups]) };
        // From behind, where no group is overwritten before its parts have it.
        if self.parts > 1 {
            for part in (0..to.len()).rev() {
                to[part] = to[part / self.parts];
            }
        }
    }
}

impl Heads {
    /// The scales and offsets of one group, of a vector of columns; as [`Self::unpack`].
    ///
    /// # Safety
    /// `heads` points to a vector of words in each of as many rows of a panel as the head of a chunk with this group has; the
    /// rows are `stride` words apart.
    #[inline(always)]
    unsafe fn read<V: Words>(
        self,
        v: V,
        (heads, stride): (*const u32, usize),
        group: usize,
    ) -> Affine<V::Vector> {
        // Macros instead of closures, which might be calls.
        macro_rules! word {
            ($i:expr) => {
                // SAFETY: the caller's promise.
                unsafe { v.load_words(heads.add(($i) * stride)) }
            };
        }
        macro_rules! single {
            ($i:expr) => {
                // SAFETY: as above; the words of this head are numbers of f32.
                unsafe { Vectors::load(v, heads.add(($i) * stride).cast::<f32>()) }
            };
        }
        // Down by so many bits is up by the others of the word.
        macro_rules! bits {
            ($words:expr, $down:expr, $mask:literal) => {{
                let down = ($down) as u32 % 32;
                let words = match down {
                    0 => $words,
                    down => v.rotate_words($words, 32 - down),
                };
                v.and_words(words, v.splat_word($mask))
            }};
        }
        match self {
            Self::Zero { scales, zero } => {
                let scale = match scales {
                    HeadNumber::F32 => single!(group),
                    of if group.is_multiple_of(2) => of.low(v, word!(group / 2)),
                    of => of.high(v, word!(group / 2)),
                };
                of_zero(v, scale, v.splat(f32::from(zero)))
            }
            Self::Zeros { scales, least } => {
                let [(word, bit), (zero_word, zero_bit)] = zeros_at(scales, group);
                let scale = match scales {
                    HeadNumber::F32 => single!(word),
                    of if bit == 0 => of.low(v, word!(word)),
                    of => of.high(v, word!(word)),
                };
                let byte = v.integers(bits!(word!(zero_word), zero_bit, 0xff));
                of_zero(v, scale, v.add(byte, v.splat(f32::from(least))))
            }
            Self::Minima(HeadNumber::F32) => Affine {
                scale: single!(2 * group),
                offset: single!(2 * group + 1),
            },
            Self::Minima(of) => {
                let word = word!(group);
                Affine {
                    scale: of.low(v, word),
                    offset: of.high(v, word),
                }
            }
            Self::TwoLevels => {
                let shared = word!(0);
                let (d, m) = (
                    HeadNumber::F16.low(v, shared),
                    HeadNumber::F16.high(v, shared),
                );
                let (bytes, at) = (word!(1 + group / BYTES), 8 * (group % BYTES));
                let upper = bits!(bytes, at + 2, 0x30);
                let b = v.xor_words(upper, bits!(word!(3), 4 * group, 0x0f));
                Affine {
                    scale: v.multiply(d, v.integers(bits!(bytes, at, 0x3f))),
                    offset: of_zero(v, m, v.integers(b)).offset,
                }
            }
            Self::Microscaled => {
                // In the exponent's place of a bfloat16.
                let byte = bits!(word!(group / BYTES), 8 * (group % BYTES) + 25, 0x7f80);
                let scale = v.multiply(v.low_halves(byte), v.splat(POWER_UNIT));
                of_zero(v, scale, v.splat(f32::from(E2M1_ZERO)))
            }
            Self::Signed => {
                let a = bits!(word!(1 + group / BYTES), 8 * (group % BYTES), 0xff);
                let whole = v.add(v.integers(a), v.splat(-128.0));
                let scale = v.multiply(HeadNumber::F16.low(v, word!(0)), whole);
                of_zero(v, scale, v.splat(SIX_BITS))
            }
        }
    }

    /// As [`Self::read`], of two neighbouring vectors and all of so many groups: each layout has a loop of its own.
    ///
    /// # Safety
    /// As for [`Self::read`], of both vectors and these groups.
    #[inline(always)]
    unsafe fn read_all<V: Words>(
        self,
        v: V,
        (heads, stride): ([*const u32; WIDTH], usize),
        to: &mut [[MaybeUninit<Affine<V::Vector>>; WIDTH]],
    ) {
        macro_rules! layouts {
            ($($layout:pat => $same:expr,)*) => {
                match self {
                    $($layout => {
                        let (fours, rest) = to.as_chunks_mut::<4>();
                        let first = 4 * fours.len();
                        for (four, to) in fours.iter_mut().enumerate() {
                            for (j, heads) in heads.into_iter().enumerate() {
                                // By hand: where in a word a group has its bits is then known to the compiler, and what
                                // groups share is read once.
                                // SAFETY: the caller's promise.
                                let read = unsafe {
                                    [
                                        $same.read(v, (heads, stride), 4 * four),
                                        $same.read(v, (heads, stride), 4 * four + 1),
                                        $same.read(v, (heads, stride), 4 * four + 2),
                                        $same.read(v, (heads, stride), 4 * four + 3),
                                    ]
                                };
                                for (to, read) in to.iter_mut().zip(read) {
                                    to[j].write(read);
                                }
                            }
                        }
                        for (group, to) in rest.iter_mut().enumerate() {
                            for (to, heads) in to.iter_mut().zip(heads) {
                                // SAFETY: the caller's promise.
                                to.write(unsafe { $same.read(v, (heads, stride), first + group) });
                            }
                        }
                    })*
                }
            };
        }
        use HeadNumber::{Bf16, F16, F32};
        layouts! {
            Self::Zero { scales: F16, zero } => Self::Zero { scales: F16, zero },
            Self::Zero { scales: Bf16, zero } => Self::Zero { scales: Bf16, zero },
            Self::Zero { scales: F32, zero } => Self::Zero { scales: F32, zero },
            Self::Zeros { scales: F16, least } => Self::Zeros { scales: F16, least },
            Self::Zeros { scales: Bf16, least } => Self::Zeros { scales: Bf16, least },
            Self::Zeros { scales: F32, least } => Self::Zeros { scales: F32, least },
            Self::Minima(F16) => Self::Minima(F16),
            Self::Minima(Bf16) => Self::Minima(Bf16),
            Self::Minima(F32) => Self::Minima(F32),
            Self::TwoLevels => Self::TwoLevels,
            Self::Microscaled => Self::Microscaled,
            Self::Signed => Self::Signed,
        }
    }
}

impl HeadNumber {
    /// The lower halves of words.
    #[inline(always)]
    fn low<V: Words>(self, v: V, words: V::Words) -> V::Vector {
        match self {
            Self::F16 => v.low_f16(words),
            Self::Bf16 | Self::F32 => v.low_halves(words),
        }
    }

    /// The upper halves of words.
    #[inline(always)]
    fn high<V: Words>(self, v: V, words: V::Words) -> V::Vector {
        match self {
            Self::F16 => v.low_f16(v.rotate_words(words, 16)),
            Self::Bf16 | Self::F32 => v.high_halves(words),
        }
    }
}

/// With the offset of a zero point.
#[inline(always)]
fn of_zero<V: Words>(v: V, scale: V::Vector, zero: V::Vector) -> Affine<V::Vector> {
    let product = v.multiply(zero, scale);
    Affine {
        scale,
        offset: v.multiply(product, v.splat(-1.0)),
    }
}
