//! The micro-kernel: the sums of one chunk for a tile of the product, held in registers.

use super::{
    Real,
    arch::{Task, Vectors},
};

/// Terms that are summed in registers before they are added to the total. Part of every result:
/// see [`gemm`](super::gemm) on the order of addition.
pub const CHUNK: usize = 128;

/// Vectors side by side in a tile. Two, so that one operand of a row serves two products.
pub const WIDTH: usize = 2;

/// What a chunk's sums are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Nothing: this is the first chunk.
    New,
    /// The total of the chunks before.
    Running,
}

/// One chunk of a tile of `rows` rows and `WIDTH · LANES` columns.
pub struct Tile<'a, T> {
    /// At most [`Vectors::ROWS`].
    pub rows: usize,
    /// Terms in this chunk, at most [`CHUNK`].
    pub depth: usize,
    /// Rows of the left operand, [`CHUNK`] apart.
    pub a: &'a [T],
    /// Rows of the right operand as wide as the tile: `[depth, columns]`.
    pub b: &'a [T],
    /// `[rows, columns]`.
    pub totals: &'a mut [T],
    /// Whether `totals` holds anything yet.
    pub total: Total,
}

/// Adds `Σ a·b` over the chunk to the totals.
impl<T: Real> Task<T> for Tile<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(self, vectors: V) {
        macro_rules! by_rows {
            ($($rows:literal)*) => {
                match self.rows {
                    // What a level has not registers enough for is left out when compiled.
                    $($rows if $rows <= V::ROWS => self.accumulate::<V, $rows>(vectors),)*
                    rows => panic!("a tile of {rows} rows"),
                }
            };
        }
        by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    }
}

impl<T: Real> Tile<'_, T> {
    #[inline(always)]
    fn accumulate<V: Vectors<T>, const ROWS: usize>(self, v: V) {
        let columns = WIDTH * V::LANES;
        let Self { depth, a, b, .. } = self;
        assert!(depth <= CHUNK && a.len() >= (ROWS - 1) * CHUNK + depth);
        assert!(b.len() >= depth * columns && self.totals.len() >= ROWS * columns);
        let mut sums = [[v.splat(T::ZERO); WIDTH]; ROWS];
        for k in 0..depth {
            let b: [V::Vector; WIDTH] = std::array::from_fn(|j| {
                // SAFETY: k < depth, so this ends within the depth * columns numbers of `b`.
                unsafe { v.load(b.as_ptr().add(k * columns + j * V::LANES)) }
            });
            if ROWS > 3 {
                // The rows of the tile below lie next, and each step fetches a line of them.
                let line = 64 / size_of::<T>();
                v.prefetch(a.as_ptr().wrapping_add(ROWS * CHUNK + k * line));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: i < ROWS and k < depth; `a` was seen to reach to the last of them.
                let a = v.splat(unsafe { *a.get_unchecked(i * CHUNK + k) });
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = v.multiply_add(a, b, *sum);
                }
            }
        }
        for (sums, totals) in sums.iter().zip(self.totals.chunks_exact_mut(columns)) {
            for (sum, totals) in sums.iter().zip(totals.chunks_exact_mut(V::LANES)) {
                let total = match self.total {
                    Total::New => *sum,
                    // SAFETY: `totals` holds LANES numbers.
                    Total::Running => v.add(unsafe { v.load(totals.as_ptr()) }, *sum),
                };
                // SAFETY: `totals` holds LANES numbers.
                unsafe { v.store(total, totals.as_mut_ptr()) };
            }
        }
    }
}
