//! Dot products for [`Quantized`]: rows are packed, quantized values widened in registers, and sums converted to floats.

use super::group_scales::{CHUNK, E2M1, NON_LINEAR};
use super::quantized::{
    MAX_PART, MAX_QUADS, Quantized, bits, group, is_part, least_part, low_bits, table,
};
use super::{int8::Quantizer, load_scales::ScaleAndOffset};
use crate::products::format::Tile;
use crate::products::{Dots, Format, WIDTH, WidenedWords, dots, parts};
use crate::vectors::{Level, Vectors, Words};

/// Returns the word count before the values of a packed row: for each part a scale, and the scale times the
/// integers' sum. The number is that for the shortest parts, so that values have the same place in every row.
const fn row_scale_words(code: usize) -> usize {
    2 * parts(CHUNK, least_part(code))
}

/// Returns how many words a packed row has whose values have `bytes` bytes.
pub const fn row_words(code: usize, bytes: usize) -> usize {
    row_scale_words(code) + CHUNK / 4 * bytes
}

/// Packs a row, at most a chunk, in parts with length `part`, for weights with this code. Each value has one or two
/// `bytes`.
///
/// # Panics
/// If this weight type has no parts with this length.
#[inline(always)]
pub fn pack_row<const CODE: usize>(row: &[f32], part: usize, words: &mut [u32], bytes: usize) {
    let (scales, words) = words.split_at_mut(row_scale_words(CODE));
    macro_rules! by_length {
        ($($part:literal)*) => {
            match part {
                $($part if const { is_part(CODE, $part) } => pack_parts::<$part>(row, scales, words, bytes),)*
                _ => panic!("parts of {part} values"),
            }
        };
    }
    by_length!(16 32 64 128)
}

#[inline(always)]
fn pack_parts<const PART: usize>(row: &[f32], scales: &mut [u32], words: &mut [u32], bytes: usize) {
    let n_parts = parts(row.len(), PART).max(1);
    let to = words.chunks_exact_mut(PART / 4 * bytes);
    for (part, (part_scales, words)) in scales.as_chunks_mut().0[..n_parts]
        .iter_mut()
        .zip(to)
        .enumerate()
    {
        let row = &row[part * PART..row.len().min((part + 1) * PART)];
        let mut terms = [0i8; MAX_PART];
        let mut padded = [0.0; PART];
        // A length known at compile time gives loops without remainders. Zeros change neither scale nor sum.
        let row = <&[f32; PART]>::try_from(row).unwrap_or_else(|_| {
            padded[..row.len()].copy_from_slice(row);
            &padded
        });
        *part_scales = quantize(row, &mut terms);
        if bytes == 1 {
            let quads = bytemuck::cast::<_, [u32; MAX_PART / 4]>(terms);
            words.copy_from_slice(&quads[..PART / 4]);
        } else {
            let (pairs, _) = words.as_chunks_mut::<2>();
            let pair = |low: i8, high: i8| {
                let [low, high] = [low, high].map(|n| u32::from(i16::from(n) as u16));
                low | high << 16
            };
            for ([even, odd], quad) in pairs.iter_mut().zip(terms.as_chunks::<4>().0) {
                *even = pair(quad[0], quad[2]);
                *odd = pair(quad[1], quad[3]);
            }
        }
    }
}

/// Quantizes a part's values, and returns its scale words.
#[inline(always)]
fn quantize<const PART: usize>(row: &[f32; PART], terms: &mut [i8; MAX_PART]) -> [u32; 2] {
    // Without the sign bit, floats compare like their bits. NaN is beyond infinity.
    let largest = row.iter().fold(0, |largest, x| {
        let magnitude = x.to_bits() & !(1 << 31);
        if magnitude > largest {
            magnitude
        } else {
            largest
        }
    });
    let largest = f32::from_bits(largest);
    let scale = Quantizer::new(largest, largest / 127.0);
    let mut sum = 0i32;
    for (term, &x) in terms.iter_mut().zip(row) {
        *term = scale.quantize(x) as i8;
        sum += i32::from(*term);
    }
    [scale.step, scale.step * sum as f32].map(f32::to_bits)
}

/// Loads a packed row's words that hold a group, and broadcasts them.
///
/// # Safety
/// `row` points to a packed row that has this group.
#[inline(always)]
pub unsafe fn left<W: Words, const CODE: usize>(
    v: W,
    row: *const u32,
    at: usize,
) -> [W::Words; MAX_QUADS] {
    // No loop, whose array would stay in memory, and no closure, which might not be inlined.
    macro_rules! quad {
        ($i:literal) => {
            match $i < group(CODE) / 4 {
                // SAFETY: the caller's promise.
                true => v.splat_word(unsafe {
                    *row.add(row_scale_words(CODE) + at * (group(CODE) / 4) + $i)
                }),
                false => v.splat_word(0), // not used
            }
        };
    }
    [
        quad!(0),
        quad!(1),
        quad!(2),
        quad!(3),
        quad!(4),
        quad!(5),
        quad!(6),
        quad!(7),
    ]
}

/// Loads a group with 2- to 6-bit values and widens them to bytes. Places in a table become its integers.
///
/// # Safety
/// `from` points to a word vector in [`GROUP_WORDS`](crate::products::Format::GROUP_WORDS) panel rows each, `stride`
/// words apart, and `place` is below [`GROUPS`](crate::products::Format::GROUPS).
#[inline(always)]
pub unsafe fn right<W: Words, const CODE: usize>(
    v: W,
    from: *const u32,
    stride: usize,
    place: usize,
) -> [W::Words; MAX_QUADS] {
    // Macros rather than closures, which might not be inlined.
    macro_rules! word {
        ($i:expr) => {
            // SAFETY: the caller's promise.
            unsafe { v.load_words(from.add($i * stride)) }
        };
    }
    // Rotates words, and masks them.
    macro_rules! turned {
        ($words:expr, $by:expr, $mask:expr) => {{
            let turned = match $by % 32 {
                0 => $words,
                by => v.rotate_words($words, by),
            };
            v.and_words(turned, v.splat_word($mask))
        }};
    }
    let zero = v.splat_word(0);
    if low_bits(CODE) == 2 {
        let low = word!(place);
        macro_rules! quad {
            ($quad:literal) => {
                turned!(low, 32 - 2 * $quad, 0x0303_0303)
            };
        }
        let [a, b, c, d] = [quad!(0), quad!(1), quad!(2), quad!(3)];
        if CODE == 2 {
            return [a, b, c, d, zero, zero, zero, zero];
        }
        // The first group's bits are the lower four in each byte.
        let upper = v.rotate_words(word!(2), if place == 0 { 2 } else { 30 });
        macro_rules! with {
            ($low:expr, $quad:literal) => {
                v.xor_words($low, turned!(upper, 32 - $quad, 0x0404_0404))
            };
        }
        return [
            with!(a, 0),
            with!(b, 1),
            with!(c, 2),
            with!(d, 3),
            zero,
            zero,
            zero,
            zero,
        ];
    }
    let [a, b] = v.halves_of_bytes(word!(0));
    let [a, b] = match table(CODE) {
        Some(table) => [v.look_up_bytes(a, table), v.look_up_bytes(b, table)],
        None => [a, b],
    };
    if bits(CODE) == 4 {
        return [a, b, zero, zero, zero, zero, zero, zero];
    }
    let upper = word!(group(CODE) / 8);
    let mask = if CODE == 6 { 0x3030_3030 } else { 0x1010_1010 };
    macro_rules! with {
        // A quad's bits come to just above the lower four.
        ($low:expr, $quad:literal) => {
            v.xor_words(
                $low,
                turned!(upper, 4 + 32 - (CODE as u32 - 4) * $quad, mask),
            )
        };
    }
    let [c, d] = v.halves_of_bytes(word!(1));
    let [a, b, c, d] = [with!(a, 0), with!(b, 1), with!(c, 2), with!(d, 3)];
    if CODE == 6 {
        return [a, b, c, d, zero, zero, zero, zero];
    }
    let ([e, f], [g, h]) = (v.halves_of_bytes(word!(2)), v.halves_of_bytes(word!(3)));
    [
        a,
        b,
        c,
        d,
        with!(e, 4),
        with!(f, 5),
        with!(g, 6),
        with!(h, 7),
    ]
}

/// Converts a part's integer sums to floats.
///
/// # Safety
/// `row` points to a packed row that has this part.
#[inline(always)]
pub unsafe fn to_floats<V: Words>(
    v: V,
    sum: V::Words,
    (row, part): (*const u32, usize),
    scales: ScaleAndOffset<V::Vector>,
) -> V::Vector {
    // SAFETY: the caller's promise.
    let [step, row_sum] = unsafe { *row.cast::<[f32; 2]>().wrapping_add(part) };
    let in_steps = v.multiply(v.integers(sum), v.splat(step));
    let from_quantized = v.multiply(in_steps, scales.scale);
    v.add(from_quantized, v.multiply(v.splat(row_sum), scales.offset))
}

/// Returns how many words a widened group has, whose values have `bytes` bytes.
pub const fn group_words(code: usize, bytes: usize) -> usize {
    group(code) / 4 * bytes
}

/// Returns the fewest tiles for which a chunk is widened once. Values in 4 and 8 bits are widened by so few
/// instructions in each tile that storing them pays late: with 3 tiles of AVX2, 5 to 11 % were lost, and with 7
/// nothing (Zen 4).
pub const fn fewest_tiles(code: usize) -> usize {
    match code {
        4 | 8 => 7,
        _ => 2,
    }
}

/// Returns the code whose tiles compute products of this code's values as well, when they are widened to this many
/// bytes: one with the same minimum part length, and so the same packed rows.
pub const fn shared(code: usize, bytes: usize) -> usize {
    match (bytes, least_part(code)) {
        (2, _) => 8,
        (_, 16) => 2,
        _ => 4,
    }
}

/// Loads a widened group.
///
/// # Safety
/// `words` vectors can be read at `from`.
#[inline(always)]
pub unsafe fn widened<T: Copy, const N: usize>(from: *const u32, words: usize) -> [T; N] {
    let from = from.cast::<T>();
    // SAFETY: the caller's promise.
    let mut right = [unsafe { from.read_unaligned() }; N];
    macro_rules! load {
        ($($i:literal)*) => {
            $(if $i < words && $i < N {
                // SAFETY: the caller's promise.
                right[$i % N] = unsafe { from.add($i).read_unaligned() };
            })*
        };
    }
    load!(1 2 3 4 5 6 7);
    right
}

/// Implements one instruction set's dot products, given the rows of a tile and the operand loads and products.
macro_rules! quantized_dots {
    (
        impl[$($generics:tt)*] for $level:ty, $code:tt;
        ($self:ident) -> $V:ty { $vectors:expr }
        rows $rows:expr;
        bytes $bytes:literal;
        widened $widened:expr;
        left($row:ident, $group:ident) -> $Left:ty $left:block
        right($from:ident, $stride:ident, $place:ident) -> $Right:ty $right:block
        dot($a:ident, $b:ident, $sum:ident) $dot:block
    ) => {
        impl<$($generics)*> Dots<Quantized<$code>> for $level {
            type Vectors = $V;
            type Left = $Left;
            type Right = $Right;
            type Sum = <$V as Words>::Words;
            type Scales = $crate::products::formats::load_scales::ScaleAndOffset<<$V as Vectors<f32>>::Vector>;
            const ROWS: usize = $rows;
            const ROW_WORDS: usize = $crate::products::formats::quantized_dots::row_words($code, $bytes);
            const WIDENED: WidenedWords = match $widened {
                true => WidenedWords {
                    fewest_tiles: $crate::products::formats::quantized_dots::fewest_tiles($code),
                    scales: <Quantized<$code> as Format>::MOST_PARTS * size_of::<[Self::Scales; WIDTH]>() / size_of::<u32>(),
                    values: <Quantized<$code> as Format>::CHUNK / 4 * $bytes * <Self as Dots<Quantized<$code>>>::PANEL,
                },
                false => WidenedWords::NONE,
            };
            const WIDENED_GROUP: usize = $crate::products::formats::quantized_dots::group_words($code, $bytes);
            const TILE_WORDS: usize = $crate::products::formats::quantized_dots::group_words(
                $crate::products::formats::quantized_dots::shared($code, $bytes),
                $bytes,
            );

            #[inline(always)]
            fn pack_row(self, row: &[f32], part: usize, words: &mut [u32]) {
                $crate::products::formats::quantized_dots::pack_row::<$code>(row, part, words, $bytes);
            }

            #[inline(always)]
            fn multiply_widened(self, tile: impl Tile<Quantized<$code>>) {
                if const { !$widened } {
                    panic!("tiles of this instruction set read packed chunks");
                } else {
                    tile.multiply_as::<Quantized<{ $crate::products::formats::quantized_dots::shared($code, $bytes) }>, _>(self);
                }
            }

            dots! {
                fn vectors($self) -> $V { $vectors }
                fn dot($self, $a: Self::Left, $b: Self::Right, $sum: Self::Sum) -> Self::Sum $dot
                fn joined($self, a: Self::Sum, b: Self::Sum) -> Option<Self::Sum> { Some($vectors.add_words(a, b)) }
                unsafe fn left($self, $row: *const u32, $group: usize) -> Self::Left $left
                unsafe fn right($self, $from: *const u32, $place: usize) -> Self::Right {
                    let $stride = <Self as Dots<Quantized<$code>>>::PANEL;
                    $right
                }
                unsafe fn widened($self, from: *const u32) -> Self::Right {
                    $crate::products::formats::quantized_dots::widened(from, <Self as Dots<Quantized<$code>>>::TILE_WORDS)
                }
                unsafe fn start($self, _: *const u32, _: *const u32) -> Self::Sum { $vectors.splat_word(0) }
                unsafe fn scales(
                    $self,
                    layout: $crate::products::formats::group_scales::ScaleLayout,
                    scales: [*const u32; WIDTH],
                    part: usize
                ) -> [Self::Scales; WIDTH] {
                    Quantized::<$code>::known(layout).read($vectors, (scales, <Self as Dots<Quantized<$code>>>::PANEL), part)
                }
                unsafe fn all_scales(
                    $self,
                    layout: $crate::products::formats::group_scales::ScaleLayout,
                    scales: [*const u32; WIDTH],
                    to: &mut [[std::mem::MaybeUninit<Self::Scales>; WIDTH]]
                ) -> () {
                    Quantized::<$code>::known(layout).read_all($vectors, (scales, <Self as Dots<Quantized<$code>>>::PANEL), to)
                }
                unsafe fn to_floats(
                    $self,
                    sum: Self::Sum,
                    row: *const u32,
                    part: usize,
                    scales: Self::Scales
                ) -> <$V as Vectors<f32>>::Vector {
                    $crate::products::formats::quantized_dots::to_floats($vectors, sum, (row, part), scales)
                }
            }
        }
    };
}
pub(super) use quantized_dots;

/// Like [`quantized_dots`], for values in at most 6 bits, which are multiplied by byte instructions.
macro_rules! short_quantized_dots {
    (
        impl[$($generics:tt)*] for $level:ty, $code:tt;
        ($self:ident) -> $V:ty { $vectors:expr }
        rows $rows:expr;
        widened $widened:expr;
        dot($left:ident, $right:ident, $sum:ident) $dot:block
    ) => {
        $crate::products::formats::quantized_dots::quantized_dots! {
            impl[$($generics)*] for $level, $code;
            ($self) -> $V { $vectors }
            rows $crate::products::formats::quantized_dots::rows($rows, $code);
            bytes 1;
            widened $widened;
            left(row, group) -> [<$V as Words>::Words; 8] {
                $crate::products::formats::quantized_dots::left::<$V, $code>($vectors, row, group)
            }
            right(from, stride, place) -> [<$V as Words>::Words; 8] {
                $crate::products::formats::quantized_dots::right::<$V, $code>($vectors, from, stride, place)
            }
            dot(a, b, $sum) {
                // A group's quads, two at a time. No loop and no closure: either might not be inlined.
                let ($left, $right) = ([a[0], a[1]], [b[0], b[1]]);
                let $sum: Self::Sum = $dot;
                if $crate::products::formats::quantized::group($code) == 8 {
                    return $sum;
                }
                let ($left, $right) = ([a[2], a[3]], [b[2], b[3]]);
                let $sum: Self::Sum = $dot;
                if $crate::products::formats::quantized::group($code) == 16 {
                    return $sum;
                }
                let ($left, $right) = ([a[4], a[5]], [b[4], b[5]]);
                let $sum: Self::Sum = $dot;
                let ($left, $right) = ([a[6], a[7]], [b[6], b[7]]);
                $dot
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use short_quantized_dots;

/// Returns a tile's rows, given the rows for 4-bit values: longer values take more registers when widened. Of few
/// registers none is left for the widened values in any case: they stay in the first-level cache, for as many rows.
pub const fn rows(of_four: usize, code: usize) -> usize {
    match (bits(code), of_four) {
        (4, rows) | (_, rows @ 0..6) => rows,
        (2 | 3 | 6, rows) => rows - 2,
        (_, rows) => rows - 6,
    }
}

macro_rules! level_quantized_dots {
    ($($code:tt)*) => {
        $(short_quantized_dots! {
            impl[V: Level] for V, $code;
            (self) -> V { self }
            rows V::BYTE_ROWS;
            widened V::WIDENED_ONCE;
            dot(left, right, sum) { self.add_products_of_bytes(sum, right, left) }
        })*
    };
}
level_quantized_dots!(2 3 4 E2M1 5 6);

/// Loads a packed row's words with 16-bit values that hold a group, and broadcasts them: of each four values, the pair
/// of 0 and 2, and the pair of 1 and 3.
///
/// # Safety
/// Same as for [`left`].
#[inline(always)]
unsafe fn left_pairs<V: Words, const CODE: usize>(
    v: V,
    row: *const u32,
    at: usize,
) -> [V::Pairs; 4] {
    let n_pairs = group(CODE) / 2;
    macro_rules! pair {
        ($i:literal) => {
            match $i < n_pairs {
                // SAFETY: the caller's promise.
                true => {
                    v.splat_pair(unsafe { *row.add(row_scale_words(CODE) + at * n_pairs + $i) })
                }
                false => v.splat_pair(0), // not used
            }
        };
    }
    [pair!(0), pair!(1), pair!(2), pair!(3)]
}

macro_rules! long_quantized_dots {
    ($($code:tt)*) => {
        $(quantized_dots! {
            impl[V: Level] for V, $code;
            (self) -> V { self }
            rows V::BYTE_ROWS;
            bytes 2;
            widened V::WIDENED_ONCE;
            left(row, group) -> [V::Pairs; 4] { left_pairs::<V, $code>(self, row, group) }
            right(from, stride, place) -> [V::Pairs; 4] {
                let [a, b] = match $code {
                    8 => [self.load_words(from), self.splat_word(0)],
                    _ => {
                        let [a, b, ..] = right::<V, $code>(self, from, stride, place);
                        [a, b]
                    }
                };
                [self.even_bytes(a), self.odd_bytes(a), self.even_bytes(b), self.odd_bytes(b)]
            }
            dot(a, b, sum) {
                let sum = self.add_products_of_pairs(sum, a[0], b[0]);
                let sum = self.add_products_of_pairs(sum, a[1], b[1]);
                if group($code) == 4 {
                    return sum;
                }
                let sum = self.add_products_of_pairs(sum, a[2], b[2]);
                self.add_products_of_pairs(sum, a[3], b[3])
            }
        })*
    };
}
long_quantized_dots!(8 NON_LINEAR);
