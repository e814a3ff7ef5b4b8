//! Loads quantized columns' scales and offsets in vectors.

use std::mem::MaybeUninit;

use super::group_scales::{
    BYTES, E2M1_ZERO, GroupScales, POWER_UNIT, SIX_BITS, ScaleLayout, ScaleType, zeros_at,
};
use crate::products::{WIDTH, parts};
use crate::vectors::{Instructions, Task, Vectors, Words};

/// A scale and an offset for each column in a vector.
#[derive(Clone, Copy)]
pub struct ScaleAndOffset<V> {
    pub scale: V,
    pub offset: V,
}

impl ScaleLayout {
    /// Loads one part's scales and offsets for two adjacent vectors. The values equal [`Self::unpack`]'s.
    ///
    /// # Safety
    /// `scales` points to two word vectors in each panel row that holds scale words for a chunk with this part. The
    /// rows are `stride` words apart.
    #[inline(always)]
    pub unsafe fn read<V: Words>(
        self,
        v: V,
        scales: ([*const u32; WIDTH], usize),
        part: usize,
    ) -> [ScaleAndOffset<V::Vector>; WIDTH] {
        // SAFETY: the caller's promise.
        unsafe { self.scales.read(v, scales, self.group(part)) }
    }

    /// Loads all parts' scales and offsets, as [`Self::read`] does for one part.
    ///
    /// # Safety
    /// Same as for [`Self::read`], for these parts.
    #[inline(always)]
    pub unsafe fn read_all<V: Words + Instructions>(
        self,
        v: V,
        (scales, stride): ([*const u32; WIDTH], usize),
        to: &mut [[MaybeUninit<ScaleAndOffset<V::Vector>>; WIDTH]],
    ) {
        v.enter(ReadAll {
            layout: self,
            scales,
            stride,
            to,
        });
    }
}

/// The arguments of [`ScaleLayout::read_all`], which promises the memory. The code for all layouts is compiled once for
/// each instruction set. Inlined, it was most of the compile time of [`PanelPairs`](crate::products::PanelPairs).
struct ReadAll<'a, V> {
    layout: ScaleLayout,
    scales: [*const u32; WIDTH],
    stride: usize,
    to: &'a mut [[MaybeUninit<ScaleAndOffset<V>>; WIDTH]],
}

impl<V: Words> Task<V> for ReadAll<'_, V::Vector> {
    #[inline(always)]
    fn compute(self, v: V) {
        let Self { layout, to, .. } = self;
        let groups = parts(to.len(), layout.parts);
        // SAFETY: the promise of `read_all`; a group has a part at least.
        unsafe {
            layout
                .scales
                .read_all(v, (self.scales, self.stride), &mut to[..groups])
        };
        // In reverse order, so that no group is overwritten before its parts are copied.
        if layout.parts > 1 {
            for part in (0..to.len()).rev() {
                to[part] = to[layout.group(part)];
            }
        }
    }
}

/// A column vector's scale words: words in panel rows that are `stride` words apart.
///
/// Each storage layout has its own method. A single method for all layouts would be compiled anew for each of the
/// many groups that are loaded together, although a weight uses only one layout.
///
/// # Safety
/// Applies to each method: each scale word row in a chunk with this group holds a word vector.
#[derive(Clone, Copy)]
struct Rows<V> {
    v: V,
    scales: *const u32,
    stride: usize,
}

impl<V: Words> Rows<V> {
    #[inline(always)]
    unsafe fn word(self, row: usize) -> V::Words {
        // SAFETY: the caller's promise.
        unsafe { self.v.load_words(self.scales.add(row * self.stride)) }
    }

    /// Loads an f32 row.
    #[inline(always)]
    unsafe fn single(self, row: usize) -> V::Vector {
        // SAFETY: as above.
        unsafe { Vectors::load(self.v, self.scales.add(row * self.stride).cast::<f32>()) }
    }

    /// Shifts words right by `down` bits, and masks them.
    #[inline(always)]
    fn bits(self, words: V::Words, down: usize, mask: u32) -> V::Words {
        // A right rotation by n is a left rotation by 32 - n.
        let words = match down as u32 % 32 {
            0 => words,
            down => self.v.rotate_words(words, 32 - down),
        };
        self.v.and_words(words, self.v.splat_word(mask))
    }

    #[inline(always)]
    unsafe fn zero(self, scales: ScaleType, zero: u8, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let scale = unsafe {
            match scales {
                ScaleType::F32 => self.single(group),
                of if group.is_multiple_of(2) => of.low(v, self.word(group / 2)),
                of => of.high(v, self.word(group / 2)),
            }
        };
        of_zero(v, scale, v.splat(f32::from(zero)))
    }

    #[inline(always)]
    unsafe fn zeros(self, scales: ScaleType, least: u8, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        let [(word, bit), (zero_word, zero_bit)] = zeros_at(scales, group);
        // SAFETY: the caller's promise.
        let (scale, zeros) = unsafe {
            let scale = match scales {
                ScaleType::F32 => self.single(word),
                of if bit == 0 => of.low(v, self.word(word)),
                of => of.high(v, self.word(word)),
            };
            (scale, self.word(zero_word))
        };
        let byte = v.integers(self.bits(zeros, zero_bit, 0xff));
        of_zero(v, scale, v.add(byte, v.splat(f32::from(least))))
    }

    #[inline(always)]
    unsafe fn minima(self, of: ScaleType, group: usize) -> ScaleAndOffset<V::Vector> {
        // SAFETY: the caller's promise.
        unsafe {
            if of == ScaleType::F32 {
                return ScaleAndOffset {
                    scale: self.single(2 * group),
                    offset: self.single(2 * group + 1),
                };
            }
            let word = self.word(group);
            ScaleAndOffset {
                scale: of.low(self.v, word),
                offset: of.high(self.v, word),
            }
        }
    }

    #[inline(always)]
    unsafe fn two_levels(self, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let [shared, bytes, lower] =
            unsafe { [self.word(0), self.word(1 + group / BYTES), self.word(3)] };
        let (d, m) = (
            ScaleType::F16.low(v, shared),
            ScaleType::F16.high(v, shared),
        );
        let at = 8 * (group % BYTES);
        let upper = self.bits(bytes, at + 2, 0x30);
        let b = v.xor_words(upper, self.bits(lower, 4 * group, 0x0f));
        ScaleAndOffset {
            scale: v.multiply(d, v.integers(self.bits(bytes, at, 0x3f))),
            offset: of_zero(v, m, v.integers(b)).offset,
        }
    }

    #[inline(always)]
    unsafe fn microscaled(self, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.word(group / BYTES) };
        // Shifted to a bfloat16's exponent bits.
        let byte = self.bits(bytes, 8 * (group % BYTES) + 25, 0x7f80);
        let scale = v.multiply(v.low_halves(byte), v.splat(POWER_UNIT));
        of_zero(v, scale, v.splat(f32::from(E2M1_ZERO)))
    }

    #[inline(always)]
    unsafe fn signed(self, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let [shared, bytes] = unsafe { [self.word(0), self.word(1 + group / BYTES)] };
        let a = self.bits(bytes, 8 * (group % BYTES), 0xff);
        let whole = v.add(v.integers(a), v.splat(-128.0));
        let scale = v.multiply(ScaleType::F16.low(v, shared), whole);
        of_zero(v, scale, v.splat(SIX_BITS))
    }

    #[inline(always)]
    unsafe fn nibbles(self, group: usize) -> ScaleAndOffset<V::Vector> {
        let v = self.v;
        // SAFETY: the caller's promise.
        let [shared, bytes] = unsafe { [self.word(0), self.word(1 + group / BYTES)] };
        let at = 8 * (group % BYTES);
        let (d, m) = (
            ScaleType::F16.low(v, shared),
            ScaleType::F16.high(v, shared),
        );
        let b = v.integers(self.bits(bytes, at + 4, 0x0f));
        ScaleAndOffset {
            scale: v.multiply(d, v.integers(self.bits(bytes, at, 0x0f))),
            offset: of_zero(v, m, b).offset,
        }
    }

    #[inline(always)]
    unsafe fn short(self, zero: u8, group: usize) -> ScaleAndOffset<V::Vector> {
        let (v, first, i) = (self.v, group / 8 * 2, group % 8);
        // SAFETY: the caller's promise.
        let [shared, upper, lower] =
            unsafe { [self.word(0), self.word(first), self.word(first + 1)] };
        let upper = self.bits(upper, 12 + 2 * i, 0x30);
        let a = v.xor_words(upper, self.bits(lower, 4 * i, 0x0f));
        let whole = v.add(v.integers(a), v.splat(-32.0));
        let scale = v.multiply(ScaleType::F16.low(v, shared), whole);
        of_zero(v, scale, v.splat(f32::from(zero)))
    }
}

impl GroupScales {
    /// Loads one group's scales and offsets for two adjacent vectors. The values equal [`Self::unpack`]'s.
    ///
    /// # Safety
    /// Same as for [`ScaleLayout::read`], for a chunk with this group.
    #[inline(always)]
    unsafe fn read<V: Words>(
        self,
        v: V,
        ([a, b], stride): ([*const u32; WIDTH], usize),
        group: usize,
    ) -> [ScaleAndOffset<V::Vector>; WIDTH] {
        let [a, b] = [a, b].map(|scales| Rows { v, scales, stride });
        macro_rules! both {
            ($read:ident($($of:expr),*)) => {
                // SAFETY: the caller's promise.
                unsafe { [a.$read($($of,)* group), b.$read($($of,)* group)] }
            };
        }
        // One branch for both: the compiler copies a tile's code for each way through its branches.
        match self {
            Self::Zero { scales, zero } => both!(zero(scales, zero)),
            Self::Zeros { scales, least } => both!(zeros(scales, least)),
            Self::Minima(of) => both!(minima(of)),
            Self::TwoLevels => both!(two_levels()),
            Self::Microscaled => both!(microscaled()),
            Self::Signed => both!(signed()),
            Self::Nibbles => both!(nibbles()),
            Self::Short { zero } => both!(short(zero)),
        }
    }

    /// Loads all groups' scales and offsets for two adjacent vectors, with a separate loop for each layout.
    ///
    /// # Safety
    /// Same as for [`Self::read`], for both vectors and these groups.
    #[inline(always)]
    unsafe fn read_all<V: Words>(
        self,
        v: V,
        (scales, stride): ([*const u32; WIDTH], usize),
        to: &mut [[MaybeUninit<ScaleAndOffset<V::Vector>>; WIDTH]],
    ) {
        macro_rules! layouts {
            ($($layout:pat => $read:ident($($of:expr),*),)*) => {
                match self {
                    $($layout => {
                        let (fours, rest) = to.as_chunks_mut::<4>();
                        let first = 4 * fours.len();
                        for (four, to) in fours.iter_mut().enumerate() {
                            for (j, scales) in scales.into_iter().enumerate() {
                                let rows = Rows { v, scales, stride };
                                // Unrolled by hand: the compiler then knows each group's bit positions, and loads
                                // shared words once.
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
                            for (to, scales) in to.iter_mut().zip(scales) {
                                // SAFETY: the caller's promise.
                                to.write(unsafe { Rows { v, scales, stride }.$read($($of,)* first + group) });
                            }
                        }
                    })*
                }
            };
        }
        use ScaleType::{Bf16, F16, F32};
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
            Self::Nibbles => nibbles(),
            Self::Short { zero } => short(zero),
        }
    }
}

impl ScaleType {
    /// Returns the words' lower halves as f32.
    #[inline(always)]
    fn low<V: Words>(self, v: V, words: V::Words) -> V::Vector {
        match self {
            Self::F16 => v.low_f16(words),
            Self::Bf16 | Self::F32 => v.low_halves(words),
        }
    }

    /// Returns the words' upper halves as f32.
    #[inline(always)]
    fn high<V: Words>(self, v: V, words: V::Words) -> V::Vector {
        match self {
            Self::F16 => v.low_f16(v.rotate_words(words, 16)),
            Self::Bf16 | Self::F32 => v.high_halves(words),
        }
    }
}

/// Returns scale and offset, given a zero point.
#[inline(always)]
fn of_zero<V: Words>(v: V, scale: V::Vector, zero: V::Vector) -> ScaleAndOffset<V::Vector> {
    let product = v.multiply(zero, scale);
    ScaleAndOffset {
        scale,
        offset: v.multiply(product, v.splat(-1.0)),
    }
}
