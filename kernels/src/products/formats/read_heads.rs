//! The heads of coded columns, read for a vector of columns at a time.

use std::mem::MaybeUninit;

use super::heads::{
    BYTES, E2M1_ZERO, GroupHeads, HeadNumber, Heads, POWER_UNIT, SIX_BITS, zeros_at,
};
use crate::products::{WIDTH, parts};
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
        unsafe { self.heads.read(v, heads, self.group(part)) }
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
        let groups = parts(to.len(), self.parts);
        // SAFETY: the caller's promise; a group has a part at least.
        unsafe { self.heads.read_all(v, heads, &mut to[..groups]) };
        // From behind, where no group is overwritten before its parts have it.
        if self.parts > 1 {
            for part in (0..to.len()).rev() {
                to[part] = to[self.group(part)];
            }
        }
    }
}

/// Where a vector's heads lie: words in rows of a panel that are `stride` words apart.
///
/// Each way in which they are stored has a method of its own. One method with all of them would be compiled for each of the
/// many groups that are read together, to be used for one way.
///
/// # Safety
/// That of each method: there is a vector of words in each of as many rows as the head of a chunk with this group has.
#[derive(Clone, Copy)]
struct Rows<V> {
    v: V,
    heads: *const u32,
    stride: usize,
}

impl<V: Words> Rows<V> {
    #[inline(always)]
    unsafe fn word(self, row: usize) -> V::Words {
        // SAFETY: the caller's promise.
        unsafe { self.v.load_words(self.heads.add(row * self.stride)) }
    }

    /// A row of numbers of f32.
    #[inline(always)]
    unsafe fn single(self, row: usize) -> V::Vector {
        // SAFETY: as above.
        unsafe { Vectors::load(self.v, self.heads.add(row * self.stride).cast::<f32>()) }
    }

    /// Bits of words, moved down.
    #[inline(always)]
    fn bits(self, words: V::Words, down: usize, mask: u32) -> V::Words {
        // Down by so many bits is up by the others of the word.
        let words = match down as u32 % 32 {
            0 => words,
            down => self.v.rotate_words(words, 32 - down),
        };
        self.v.and_words(words, self.v.splat_word(mask))
    }

    #[inline(always)]
    unsafe fn zero(self, scales: HeadNumber, zero: u8, group: usize) -> Affine<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let scale = unsafe {
            match scales {
                HeadNumber::F32 => self.single(group),
                of if group.is_multiple_of(2) => of.low(v, self.word(group / 2)),
                of => of.high(v, self.word(group / 2)),
            }
        };
        of_zero(v, scale, v.splat(f32::from(zero)))
    }

    #[inline(always)]
    unsafe fn zeros(self, scales: HeadNumber, least: u8, group: usize) -> Affine<V::Vector> {
        let v = self.v;
        let [(word, bit), (zero_word, zero_bit)] = zeros_at(scales, group);
        // SAFETY: the caller's promise.
        let (scale, zeros) = unsafe {
            let scale = match scales {
                HeadNumber::F32 => self.single(word),
                of if bit == 0 => of.low(v, self.word(word)),
                of => of.high(v, self.word(word)),
            };
            (scale, self.word(zero_word))
        };
        let byte = v.integers(self.bits(zeros, zero_bit, 0xff));
        of_zero(v, scale, v.add(byte, v.splat(f32::from(least))))
    }

    #[inline(always)]
    unsafe fn minima(self, of: HeadNumber, group: usize) -> Affine<V::Vector> {
        // SAFETY: the caller's promise.
        unsafe {
            if of == HeadNumber::F32 {
                return Affine {
                    scale: self.single(2 * group),
                    offset: self.single(2 * group + 1),
                };
            }
            let word = self.word(group);
            Affine {
                scale: of.low(self.v, word),
                offset: of.high(self.v, word),
            }
        }
    }

    #[inline(always)]
    unsafe fn two_levels(self, group: usize) -> Affine<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let [shared, bytes, lower] =
            unsafe { [self.word(0), self.word(1 + group / BYTES), self.word(3)] };
        let (d, m) = (
            HeadNumber::F16.low(v, shared),
            HeadNumber::F16.high(v, shared),
        );
        let at = 8 * (group % BYTES);
        let upper = self.bits(bytes, at + 2, 0x30);
        let b = v.xor_words(upper, self.bits(lower, 4 * group, 0x0f));
        Affine {
            scale: v.multiply(d, v.integers(self.bits(bytes, at, 0x3f))),
            offset: of_zero(v, m, v.integers(b)).offset,
        }
    }

    #[inline(always)]
    unsafe fn microscaled(self, group: usize) -> Affine<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.word(group / BYTES) };
        // In the exponent's place of a bfloat16.
        let byte = self.bits(bytes, 8 * (group % BYTES) + 25, 0x7f80);
        let scale = v.multiply(v.low_halves(byte), v.splat(POWER_UNIT));
        of_zero(v, scale, v.splat(f32::from(E2M1_ZERO)))
    }

    #[inline(always)]
    unsafe fn signed(self, group: usize) -> Affine<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let [shared, bytes] = unsafe { [self.word(0), self.word(1 + group / BYTES)] };
        let a = self.bits(bytes, 8 * (group % BYTES), 0xff);
        let whole = v.add(v.integers(a), v.splat(-128.0));
        let scale = v.multiply(HeadNumber::F16.low(v, shared), whole);
        of_zero(v, scale, v.splat(SIX_BITS))
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
        let rows = Rows { v, heads, stride };
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Zero { scales, zero } => rows.zero(scales, zero, group),
                Self::Zeros { scales, least } => rows.zeros(scales, least, group),
                Self::Minima(of) => rows.minima(of, group),
                Self::TwoLevels => rows.two_levels(group),
                Self::Microscaled => rows.microscaled(group),
                Self::Signed => rows.signed(group),
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
            ($($layout:pat => $read:ident($($of:expr),*),)*) => {
                match self {
                    $($layout => {
                        let (fours, rest) = to.as_chunks_mut::<4>();
                        let first = 4 * fours.len();
                        for (four, to) in fours.iter_mut().enumerate() {
                            for (j, heads) in heads.into_iter().enumerate() {
                                let rows = Rows { v, heads, stride };
                                // By hand: where in a word a group has its bits is then known to the compiler, and what
                                // groups share is read once.
                                // SAFETY: the caller's promise.
                                let read = unsafe {
                                    [
                                        rows.$read($($of,)* 4 * four),
                                        rows.$read($($of,)* 4 * four + 1),
                                        rows.$read($($of,)* 4 * four + 2),
                                        rows.$read($($of,)* 4 * four + 3),
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
                                to.write(unsafe { Rows { v, heads, stride }.$read($($of,)* first + group) });
                            }
                        }
                    })*
                }
            };
        }
        use HeadNumber::{Bf16, F16, F32};
        layouts! {
            Self::Zero { scales: F16, zero } => zero(F16, zero),
            Self::Zero { scales: Bf16, zero } => zero(Bf16, zero),
            Self::Zero { scales: F32, zero } => zero(F32, zero),
            Self::Zeros { scales: F16, least } => zeros(F16, least),
            Self::Zeros { scales: Bf16, least } => zeros(Bf16, least),
            Self::Zeros { scales: F32, least } => zeros(F32, least),
            Self::Minima(F16) => minima(F16),
            Self::Minima(Bf16) => minima(Bf16),
            Self::Minima(F32) => minima(F32),
            Self::TwoLevels => two_levels(),
            Self::Microscaled => microscaled(),
            Self::Signed => signed(),
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
