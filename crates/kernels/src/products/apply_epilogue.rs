//! Applies an epilogue to totals, in full vectors even at the right edge: loads are padded, stores truncated.

use std::ops::Range;

use super::{Epilogue, GateClamp, Halves, MAX_PANEL, Scale, Totals, WIDTH};
use crate::rows::activation::{ActivationFunction, Computed};
use crate::threads::Target;
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::{Isa, MAX_LANES, Real, Task, Vectors};

/// The epilogue, columns and destination for one panel in a task's results.
pub(crate) struct Results<'a, T> {
    pub epilogue: &'a Epilogue<'a, T>,
    /// The instruction set for the epilogue's activation.
    pub isa: Isa,
    pub halves: Halves,
    /// The result row of the task's first row.
    pub first_row: usize,
    /// The result columns that the panel holds.
    pub columns: Range<usize>,
    /// Columns in the result.
    pub n_columns: usize,
    pub place: &'a Place<'a, T>,
}

/// Applies the epilogue to some task rows, and writes the results.
pub(crate) struct ApplyEpilogue<'a, T> {
    pub results: &'a Results<'a, T>,
    pub rows: Range<usize>,
    /// Totals, `[rows, panel width]`; used as working memory.
    pub sums: &'a mut [T],
}

/// Like [`ApplyEpilogue`], for some rows in several consecutive panels.
pub(crate) struct ApplyEpilogueToPanels<'a, T> {
    /// The first panel's results.
    pub first: Results<'a, T>,
    pub n_rows: usize,
    /// Totals, `[panels, rows, panel width]`; used as working memory.
    pub totals: &'a mut [T],
}

/// The destination for a task's results.
pub(crate) struct Place<'a, T> {
    pub target: &'a Target<'a, T>,
    /// The target row of the task's first row.
    pub first_row: usize,
    /// The result column of the target's first column.
    pub first_column: usize,
}

/// The size of a typical first-level cache.
const IN_CACHE: usize = 32 << 10;

/// Rows per activation call, whose sums stay in the L1 cache.
const GROUP: usize = 16;

impl<T: Computed, V: Vectors<T>> Task<V> for ApplyEpilogue<'_, T> {
    #[inline(always)]
    fn compute(mut self, v: V) {
        match self.results.halves {
            Halves::One => self.plain(v),
            Halves::GateAndUp => self.gated(v),
        }
    }
}

impl<T: Computed, V: Vectors<T>> Task<V> for ApplyEpilogueToPanels<'_, T> {
    #[inline(always)]
    fn compute(self, v: V) {
        let (all, n_rows, totals) = (self.first.epilogue, self.n_rows, self.totals);
        let rest = Epilogue {
            bias: None,
            activation: ActivationFunction::Identity,
            ..*all
        };
        let mut first = self.first;
        let (width, columns) = (WIDTH * V::LANES, first.columns.clone());
        let n_columns = first.n_columns;
        let panel_part = |panel: usize| {
            let start = columns.start + panel * columns.len();
            start..n_columns.min(start + columns.len())
        };
        if first.halves == Halves::One && all.activation != ActivationFunction::Identity {
            // One call for all panels, because the activation has a start-up cost.
            for (panel, sums) in totals.chunks_exact_mut(n_rows * width).enumerate() {
                first.columns = panel_part(panel);
                first.add_to_rows(v, all.bias, sums);
            }
            all.activation.apply(first.isa, totals);
            first.epilogue = &rest;
        }
        for (panel, sums) in totals.chunks_exact_mut(n_rows * width).enumerate() {
            first.columns = panel_part(panel);
            let finish = ApplyEpilogue {
                results: &first,
                rows: 0..n_rows,
                sums,
            };
            finish.compute(v);
        }
    }
}

impl<T: Computed> ApplyEpilogue<'_, T> {
    #[inline(always)]
    fn plain<V: Vectors<T>>(&mut self, v: V) {
        let (results, epilogue) = (self.results, self.results.epilogue);
        let bias = results.of_columns::<V, WIDTH>(v, epilogue.bias);
        let writer = Writer::<V, WIDTH, T>::new(v, results);
        let width = WIDTH * V::LANES;
        for (group, sums) in self.sums.chunks_mut(GROUP * width).enumerate() {
            let rows = self.rows.start + group * GROUP..;
            if epilogue.activation == ActivationFunction::Identity {
                for (i, row) in rows.zip(sums.chunks_exact(width)) {
                    writer.write(i, add(v, load(v, row), bias));
                }
                continue;
            }
            for row in sums.chunks_exact_mut(width) {
                store(v, add(v, load(v, row), bias), row);
            }
            epilogue.activation.apply(results.isa, sums);
            for (i, row) in rows.zip(sums.chunks_exact(width)) {
                writer.write(i, load(v, row));
            }
        }
    }

    #[inline(always)]
    fn gated<V: Vectors<T>>(&mut self, v: V) {
        let (results, epilogue) = (self.results, self.results.epilogue);
        let [bias] = results.of_columns::<V, 1>(v, epilogue.bias);
        let [up_bias] = results.of_columns::<V, 1>(v, epilogue.up_bias);
        let writer = Writer::<V, 1, T>::new(v, results);
        let width = WIDTH * V::LANES;
        for (group, sums) in self.sums.chunks(GROUP * width).enumerate() {
            let mut gates = [T::ZERO; GROUP * MAX_LANES];
            let gates = &mut gates[..sums.len() / WIDTH];
            let rows = sums.chunks_exact(width);
            for (gate, row) in gates.chunks_exact_mut(V::LANES).zip(rows.clone()) {
                let [sum] = load(v, &row[..V::LANES]);
                store(v, [v.add(sum, bias)], gate);
            }
            if let Some(factor) = epilogue.gate_factor {
                gates.iter_mut().for_each(|gate| *gate = *gate * factor);
            }
            if let Some(GateClamp { limit, .. }) = epilogue.clamp {
                gates
                    .iter_mut()
                    .for_each(|gate| *gate = gate.at_most(limit));
            }
            epilogue.activation.apply(results.isa, gates);
            let first_row = self.rows.start + group * GROUP;
            for (i, (gate, row)) in gates.chunks_exact(V::LANES).zip(rows).enumerate() {
                let ([gate], [up]) = (load(v, gate), load(v, &row[V::LANES..]));
                let mut up = v.add(up, up_bias);
                if let Some(clamp) = epilogue.clamp {
                    up = clamped(v, up, clamp);
                }
                let result = v.multiply(gate, up);
                writer.write(first_row + i, [result]);
            }
        }
    }
}

impl<T: Real> Results<'_, T> {
    /// Prefetches the memory for some task rows' results, and their residual.
    pub fn prefetch(&self, rows: Range<usize>) {
        let numbers = LINE / size_of::<T>();
        for row in rows {
            let (target_row, columns) = self.target(row);
            let target = self.place.target.address(target_row, columns.start);
            let residual = self.residual(row).map(<[T]>::as_ptr);
            for line in (0..columns.len()).step_by(numbers) {
                prefetch::far(target.wrapping_add(line));
                if let Some(residual) = residual {
                    prefetch::far(residual.wrapping_add(line));
                }
            }
        }
    }

    /// Returns whether a panel's totals are the results, and are as fast to reach there as in working memory: they are
    /// written once, or the rows lie in the first-level cache.
    pub fn are_totals(&self, n_rows: usize, n_chunks: usize, panel: usize) -> bool {
        let bytes = n_rows * self.place.target.columns() * size_of::<T>();
        let fast = n_chunks == 1 || bytes <= IN_CACHE;
        fast && self.columns.len() == panel && self.epilogue.is_none()
    }

    /// Returns the target's memory for the totals of the task's rows.
    ///
    /// # Safety
    /// No other borrow of these elements is in use.
    pub unsafe fn as_totals(&self, n_rows: usize) -> Totals<'_, T> {
        let (first, columns) = self.target(0);
        // SAFETY: the caller's promise.
        unsafe { Totals::in_target(self.place.target, first..first + n_rows, columns) }
    }

    /// Reads the target's rows, as totals of `width` each.
    pub fn read(&self, totals: &mut [T], width: usize) {
        for (row, totals) in totals.chunks_exact_mut(width).enumerate() {
            let (row, columns) = self.target(row);
            let n = columns.len();
            // SAFETY: among all tasks and panels, only this one has these columns of this row.
            totals[..n].copy_from_slice(unsafe { self.place.target.piece(row, columns) });
        }
    }

    /// Returns the row and target columns for a row's results.
    #[inline(always)]
    fn target(&self, row: usize) -> (usize, Range<usize>) {
        let start = self.columns.start - self.place.first_column;
        let columns = start..start + self.columns.len();
        (self.place.first_row + row, columns)
    }

    #[inline(always)]
    fn residual(&self, row: usize) -> Option<&[T]> {
        let start = (self.first_row + row) * self.n_columns + self.columns.start;
        let residual = self.epilogue.residual?;
        Some(&residual[start..][..self.columns.len()])
    }

    /// Adds the per-column values to the totals of a panel's rows.
    #[inline(always)]
    fn add_to_rows<V: Vectors<T>>(&self, v: V, values: Option<&[T]>, sums: &mut [T]) {
        let values = self.of_columns::<V, WIDTH>(v, values);
        for row in sums.chunks_exact_mut(WIDTH * V::LANES) {
            store(v, add(v, load(v, row), values), row);
        }
    }

    /// Loads the per-column values, or -0 if there are none. Adding -0 leaves every value unchanged.
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

/// Scales rows, adds the residual and writes them, `N` vectors at a time. Writes fewer columns at the right
/// edge.
struct Writer<'a, V: Vectors<T>, const N: usize, T: Real> {
    v: V,
    factors: Option<[V::Vector; N]>,
    results: &'a Results<'a, T>,
}

impl<'a, V: Vectors<T>, const N: usize, T: Real> Writer<'a, V, N, T> {
    #[inline(always)]
    fn new(v: V, results: &'a Results<'a, T>) -> Self {
        Self {
            v,
            factors: match results.epilogue.scale {
                Scale::One => None,
                Scale::Constant(factor) => Some([v.splat(factor); N]),
                Scale::Columns(factors) => Some(load(v, &factors[results.columns.clone()])),
            },
            results,
        }
    }

    #[inline(always)]
    fn write(&self, row: usize, mut values: [V::Vector; N]) {
        let v = self.v;
        if let Some(factors) = self.factors {
            values = std::array::from_fn(|j| v.multiply(values[j], factors[j]));
        }
        if let Some(residual) = self.results.residual(row) {
            values = add(v, load(v, residual), values);
        }
        let (row, columns) = self.results.target(row);
        // SAFETY: among all tasks and panels, only this one writes these columns of this row.
        let out = unsafe { self.results.place.target.piece(row, columns) };
        store(v, values, out);
    }
}

/// Loads `N` vectors. A shorter slice is padded with zeros.
#[inline(always)]
fn load<T: Real, V: Vectors<T>, const N: usize>(v: V, from: &[T]) -> [V::Vector; N] {
    if from.len() == N * V::LANES {
        return load_whole(v, from);
    }
    let mut padded = [T::ZERO; MAX_PANEL];
    padded[..from.len()].copy_from_slice(from);
    load_whole(v, &padded)
}

#[inline(always)]
fn load_whole<T: Real, V: Vectors<T>, const N: usize>(v: V, from: &[T]) -> [V::Vector; N] {
    let from = &from[..N * V::LANES];
    // SAFETY: `from` holds N vectors.
    std::array::from_fn(|j| unsafe { v.load(from.as_ptr().add(j * V::LANES)) })
}

/// Stores `N` vectors, truncated to the slice's length.
#[inline(always)]
fn store<T: Real, V: Vectors<T>, const N: usize>(v: V, vectors: [V::Vector; N], to: &mut [T]) {
    if to.len() == N * V::LANES {
        return store_whole(v, vectors, to);
    }
    let mut padded = [T::ZERO; MAX_PANEL];
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
        // SAFETY: `to` holds N vectors.
        unsafe { v.store(vector, to.as_mut_ptr().add(j * V::LANES)) };
    }
}

/// Returns a gated product's `up` half, clamped and shifted.
#[inline(always)]
fn clamped<T: Real, V: Vectors<T>>(v: V, up: V::Vector, clamp: GateClamp<T>) -> V::Vector {
    let GateClamp { limit, offset } = clamp;
    let mut lanes = [T::ZERO; MAX_LANES];
    let lanes = &mut lanes[..V::LANES];
    store_whole(v, [up], lanes);
    for up in lanes.iter_mut() {
        *up = up.at_most(limit).at_least(-limit) + offset;
    }
    let [up] = load_whole(v, lanes);
    up
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
