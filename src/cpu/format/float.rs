//! f32 and f64, stored as they are computed: a word is one number, and a dot product is a multiply-add.

use std::cell::Cell;

use super::{
    super::{
        arch::{Kernels, Task, Vectors},
        element::Element,
        isa::Isa,
        scratch::{Aligned, Scratch},
        tile::CHUNK,
    },
    DotTask, Dots, Format, Within, word_scratch,
};

macro_rules! stored_as_computed {
    ($type:ty) => {
        impl Format for $type {
            type Number = Self;
            type Word = Self;
            const GROUP: usize = 1;
            const CHUNK: usize = CHUNK;
            const NUMBERS: bool = true;

            fn run(isa: Isa, task: impl DotTask<Self>) {
                struct OverDots<T>(T);
                impl<T: DotTask<$type>> Task<$type> for OverDots<T> {
                    fn run<V: Vectors<$type>>(self, vectors: V) {
                        self.0.run(vectors);
                    }
                }
                <Self as Kernels>::run(isa, OverDots(task));
            }

            word_scratch!($type);

            #[inline(always)]
            fn pack_column<S: Element<Acc = Self>>(terms: &[S], words: &mut [Self]) {
                for (word, term) in words.iter_mut().zip(terms) {
                    *word = term.widen();
                }
            }
        }

        impl<V: Vectors<$type>> Dots<$type> for V {
            type Vectors = V;
            type Left = V::Vector;
            type Right = V::Vector;
            type Sum = V::Vector;
            const ROWS: usize = V::ROWS;
            const ROW_WORDS: usize = CHUNK;

            fn run(self, task: impl DotTask<$type>) {
                Vectors::run(self, Within::new(self, task));
            }

            #[inline(always)]
            fn vectors(self) -> V {
                self
            }

            #[inline(always)]
            fn pack_row(self, row: &[$type], words: &mut [$type]) {
                words[..row.len()].copy_from_slice(row);
            }

            #[inline(always)]
            unsafe fn left(self, row: *const $type, group: usize) -> V::Vector {
                // SAFETY: the caller's promise; a group is one word.
                self.splat(unsafe { *row.add(group) })
            }

            #[inline(always)]
            unsafe fn right(self, from: *const $type) -> V::Vector {
                // SAFETY: the caller's promise.
                unsafe { self.load(from) }
            }

            #[inline(always)]
            unsafe fn start(self, _: *const $type, _: *const $type) -> V::Vector {
                self.splat(0.0)
            }

            #[inline(always)]
            fn dot(self, left: V::Vector, right: V::Vector, sum: V::Vector) -> V::Vector {
                self.multiply_add(left, right, sum)
            }

            #[inline(always)]
            unsafe fn numbers(self, sum: V::Vector, _: *const $type, _: *const $type) -> V::Vector {
                sum
            }
        }
    };
}

stored_as_computed!(f32);
stored_as_computed!(f64);
