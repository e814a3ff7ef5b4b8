//! f32 and f64, packed without conversion: a word is one value, and a dot product is a multiply-add.

use crate::products::{CHUNK, Dots, Format, WIDTH, dots};
use crate::vectors::{Level, Vectors};

macro_rules! stored_as_computed {
    ($type:ty) => {
        impl Format for $type {
            type Element = Self;
            type Word = Self;
            type Layout = ();
            const GROUP: usize = 1;
            const CHUNK: usize = CHUNK;
            const PLAIN: bool = true;
            const PAIRED_ROWS: usize = 6;
            const BY_ROWS: bool = true;

            #[inline(always)]
            fn pack_column((): (), terms: &[Self], words: &mut [Self]) {
                words[..terms.len()].copy_from_slice(terms);
            }

            fn unpack_column((): (), words: &[Self], terms: &mut [Self]) {
                terms.copy_from_slice(words);
            }

            #[inline(always)]
            fn pack_word_row([terms, _]: [&[Self]; 2], words: &mut [Self]) {
                words.copy_from_slice(terms);
            }
        }

        impl<V: Level> Dots<$type> for V {
            type Vectors = V;
            type Left = <V as Vectors<$type>>::Vector;
            type Right = <V as Vectors<$type>>::Vector;
            type Sum = <V as Vectors<$type>>::Vector;
            type Scales = ();
            const ROWS: usize = <V as Vectors<$type>>::ROWS;
            const ROW_WORDS: usize = CHUNK;
            const UNROLLED: usize = <V as Vectors<$type>>::UNROLLED;

            #[inline(always)]
            fn pack_row(self, row: &[$type], _: usize, words: &mut [$type]) {
                words[..row.len()].copy_from_slice(row);
            }

            dots! {
                fn vectors(self) -> V { self }
                fn dot(self, left: Self::Left, right: Self::Right, sum: Self::Sum) -> Self::Sum {
                    Vectors::<$type>::multiply_add(self, left, right, sum)
                }
                unsafe fn left(self, row: *const $type, group: usize) -> Self::Left { self.splat(*row.add(group)) }
                unsafe fn right(self, from: *const $type, _: usize) -> Self::Right { self.load(from) }
                unsafe fn start(self, _: *const $type, _: *const $type) -> Self::Sum { Vectors::<$type>::splat(self, 0.0) }
                unsafe fn scales(self, _: (), _: [*const $type; WIDTH], _: usize) -> [(); WIDTH] { [(); WIDTH] }
                unsafe fn to_floats(self, sum: Self::Sum, _: *const $type, _: usize, _: ()) -> Self::Sum { sum }
            }
        }
    };
}

stored_as_computed!(f32);
stored_as_computed!(f64);
