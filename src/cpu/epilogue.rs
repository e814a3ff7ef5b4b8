//! What becomes of a product's sums while they are still in the cache.

use std::ops::Range;

use super::{
    Real,
    arch::{MOST_LANES, Task, Vectors},
    pack::Halves,
    rows::Target,
    tile::WIDTH,
};

/// A function of every element of a slice.
pub type Map<T> = dyn Fn(&mut [T]) + Send + Sync;

/// `residual + scale · activation(sum + bias)`, or of a gated matrix `residual + scale ·
/// activation(gate + bias) · (up + up_bias)`. The sums do not depend on it.
#[derive(Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// One number for each column; of a gated matrix, the gate's.
    pub bias: Option<&'a [T]>,
    /// One number for each column of the second half of a gated matrix.
    pub up_bias: Option<&'a [T]>,
    /// Of the sum and the bias; of the gate's in a gated matrix.
    pub activation: Option<&'a Map<T>>,
    /// A factor on the result.
    pub scale: Scale<'a, T>,
    /// Added last: rows without gaps, as many and as wide as the result.
    pub residual: Option<&'a [T]>,
}

/// A factor on the results.
#[derive(Clone, Copy)]
pub enum Scale<'a, T> {
    /// None.
    One,
    /// The same for all.
    Constant(T),
    /// One for each column.
    Columns(&'a [T]),
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// The sums as they are.
    pub const NONE: Self = Self {
        bias: None,
        up_bias: None,
        activation: None,
        scale: Scale::One,
        residual: None,
    };

    /// The sums and perhaps a bias.
    pub fn bias(bias: Option<&'a [T]>) -> Self {
        Self { bias, ..Self::NONE }
    }

    /// # Panics
    /// If a part does not fit results of this shape.
    pub(super) fn check(&self, rows: usize, columns: usize) {
        let fits = |values: Option<&[T]>, len| values.is_none_or(|values| values.len() == len);
        let scales = match self.scale {
            Scale::Columns(scales) => Some(scales),
            Scale::One | Scale::Constant(_) => None,
        };
        assert!(fits(self.bias, columns) && fits(self.up_bias, columns) && fits(scales, columns));
        assert!(fits(self.residual, rows * columns));
    }
}

/// Writes the results of a panel.
pub(super) struct Finish<'a, T> {
    pub epilogue: &'a Epilogue<'a, T>,
    pub halves: Halves,
    pub first_row: usize,
    /// Of the result.
    pub columns: Range<usize>,
    /// Columns of the whole result.
    pub n_columns: usize,
    /// `[rows, panel width]`, overwritten on the way.
    pub sums: &'a mut [T],
    pub place: &'a Place<'a, T>,
}

/// Where the results of a part go.
pub(super) struct Place<'a, T> {
    pub target: &'a Target<'a, T>,
    /// The target's row of the part's first.
    pub first_row: usize,
    /// The result's column that is the target's first.
    pub first_column: usize,
}

/// Rows that an activation is computed for at a time: they stay in the first cache.
const GROUP: usize = 16;

/// Numbers in the widest panel.
const MOST_COLUMNS: usize = WIDTH * MOST_LANES;

impl<T: Real> Task<T> for Finish<'_, T> {
    #[inline(always)]
    fn run<V: Vectors<T>>(mut self, v: V) {
        match self.halves {
            Halves::One => self.plain(v),
            Halves::GateAndUp => self.gated(v),
        }
    }
}

impl<T: Real> Finish<'_, T> {
    #[inline(always)]
    fn plain<V: Vectors<T>>(&mut self, v: V) {
        let bias = self.of_columns::<V, WIDTH>(v, self.epilogue.bias);
        let writer = Writer::<V, WIDTH, T>::new(v, self);
        let width = WIDTH * V::LANES;
        for (group, sums) in self.sums.chunks_mut(GROUP * width).enumerate() {
            let rows = group * GROUP..;
            let Some(activation) = self.epilogue.activation else {
                for (i, row) in rows.zip(sums.chunks_exact(width)) {
                    writer.write(i, add(v, load(v, row), bias));
                }
                continue;
            };
            for row in sums.chunks_exact_mut(width) {
                store(v, add(v, load(v, row), bias), row);
            }
            activation(sums);
            for (i, row) in rows.zip(sums.chunks_exact(width)) {
                writer.write(i, load(v, row));
            }
        }
    }

    #[inline(always)]
    fn gated<V: Vectors<T>>(&mut self, v: V) {
        let [bias] = self.of_columns::<V, 1>(v, self.epilogue.bias);
        let [up_bias] = self.of_columns::<V, 1>(v, self.epilogue.up_bias);
        let writer = Writer::<V, 1, T>::new(v, self);
        let width = WIDTH * V::LANES;
        for (group, sums) in self.sums.chunks(GROUP * width).enumerate() {
            let mut gates = [T::ZERO; GROUP * MOST_LANES];
            let gates = &mut gates[..sums.len() / WIDTH];
            let rows = sums.chunks_exact(width);
            for (gate, row) in gates.chunks_exact_mut(V::LANES).zip(rows.clone()) {
                let [sum] = load(v, &row[..V::LANES]);
                store(v, [v.add(sum, bias)], gate);
            }
            if let Some(activation) = self.epilogue.activation {
                activation(gates);
            }
            for (i, (gate, row)) in gates.chunks_exact(V::LANES).zip(rows).enumerate() {
                let ([gate], [up]) = (load(v, gate), load(v, &row[V::LANES..]));
                let result = v.multiply(gate, v.add(up, up_bias));
                writer.write(group * GROUP + i, [result]);
            }
        }
    }

    /// What each column has of its own; -0, which changes nothing that it is added to, where there is nothing.
    #[inline(always)]
    fn of_columns<V: Vectors<T>, const N: usize>(
        &self,
        v: V,
        values: Option<&[T]>,
    ) -> [V::Vector; N] {
        match values {
            Some(values) => load(v, &values[self.columns.clone()]),
            None => [v.splat(T::of(-0.0)); N],
        }
    }
}

/// Scales rows, adds the residual and writes them, each `N` vectors or, at the right edge, less.
struct Writer<'a, V: Vectors<T>, const N: usize, T: Real> {
    v: V,
    factors: Option<[V::Vector; N]>,
    residual: Option<&'a [T]>,
    first_row: usize,
    columns: Range<usize>,
    n_columns: usize,
    place: &'a Place<'a, T>,
}

impl<'a, V: Vectors<T>, const N: usize, T: Real> Writer<'a, V, N, T> {
    #[inline(always)]
    fn new(v: V, finish: &Finish<'a, T>) -> Self {
        Self {
            v,
            factors: match finish.epilogue.scale {
                Scale::One => None,
                Scale::Constant(factor) => Some([v.splat(factor); N]),
                Scale::Columns(factors) => Some(load(v, &factors[finish.columns.clone()])),
            },
            residual: finish.epilogue.residual,
            first_row: finish.first_row,
            columns: finish.columns.clone(),
            n_columns: finish.n_columns,
            place: finish.place,
        }
    }

    /// The `i`th row of the part.
    #[inline(always)]
    fn write(&self, i: usize, mut values: [V::Vector; N]) {
        let v = self.v;
        if let Some(factors) = self.factors {
            values = std::array::from_fn(|j| v.multiply(values[j], factors[j]));
        }
        if let Some(residual) = self.residual {
            let start = (self.first_row + i) * self.n_columns + self.columns.start;
            let residual = load(v, &residual[start..][..self.columns.len()]);
            values = add(v, residual, values);
        }
        let start = self.columns.start - self.place.first_column;
        let columns = start..start + self.columns.len();
        // SAFETY: of all tasks and panels only this one has this row and these columns.
        let out = unsafe { self.place.target.piece(self.place.first_row + i, columns) };
        store(v, values, out);
    }
}

/// Reads `N` vectors, or as much of them as there is.
#[inline(always)]
fn load<T: Real, V: Vectors<T>, const N: usize>(v: V, from: &[T]) -> [V::Vector; N] {
    if from.len() == N * V::LANES {
        return load_whole(v, from);
    }
    let mut padded = [T::ZERO; MOST_COLUMNS];
    padded[..from.len()].copy_from_slice(from);
    load_whole(v, &padded)
}

#[inline(always)]
fn load_whole<T: Real, V: Vectors<T>, const N: usize>(v: V, from: &[T]) -> [V::Vector; N] {
    let from = &from[..N * V::LANES];
    // SAFETY: `from` is N vectors long.
    std::array::from_fn(|j| unsafe { v.load(from.as_ptr().add(j * V::LANES)) })
}

/// Writes `N` vectors, or as much of them as there is room for.
#[inline(always)]
fn store<T: Real, V: Vectors<T>, const N: usize>(v: V, vectors: [V::Vector; N], to: &mut [T]) {
    if to.len() == N * V::LANES {
        return store_whole(v, vectors, to);
    }
    let mut padded = [T::ZERO; MOST_COLUMNS];
    store_whole(v, vectors, &mut padded);
    to.copy_from_slice(&padded[..to.len()]);
}

#[inline(always)]
fn store_whole<T: Real, V: Vectors<T>, const N: usize>(
    v: V,
    vectors: [V::Vector; N],
    to: &mut [T],
) {
    let to = &mut to[..N * V::LANES];
    for (j, &vector) in vectors.iter().enumerate() {
        // SAFETY: `to` is N vectors long.
        unsafe { v.store(vector, to.as_mut_ptr().add(j * V::LANES)) };
    }
}

/// `a + b`.
#[inline(always)]
fn add<T: Real, V: Vectors<T>, const N: usize>(
    v: V,
    a: [V::Vector; N],
    b: [V::Vector; N],
) -> [V::Vector; N] {
    std::array::from_fn(|j| v.add(a[j], b[j]))
}
