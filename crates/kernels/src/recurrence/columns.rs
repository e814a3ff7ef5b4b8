//! Two vectors of a state's columns, and the steps that a position takes with them.

use std::ops::Range;

use crate::threads::Target;
use crate::vectors::{MAX_LANES, Real, Vectors};

/// The term that a position adds to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `k ⊗ β (v - α Sᵀ k)`: the gated delta rule.
    Delta,
    /// `k ⊗ β v`: a sum that decays.
    Sum,
    /// The gated delta rule with a factor for each row of the state, `k ⊗ β (v - (α ⊙ S)ᵀ k)`: Kimi Delta Attention.
    ChannelDelta,
}

impl Rule {
    /// Returns whether an error reads the state by the key.
    pub fn reads(self) -> bool {
        self != Self::Sum
    }
}

/// A position's factors `α`.
#[derive(Clone, Copy)]
pub enum Factors<'a, T> {
    /// One for the whole state.
    One(T),
    /// One for each row.
    Each(&'a [T]),
}

/// The factors of two positions in turn, for [`Rule::ChannelDelta`]. By other rules, only the key after the last one is used.
pub struct Channels<'a, T> {
    /// `[2, key_dim]`.
    factors: &'a mut [T],
    /// The later position's key, times its factors.
    key: &'a mut [T],
    later: usize,
}

impl<'a, T: Real> Channels<'a, T> {
    /// Returns how many elements it has.
    pub fn len(key_dim: usize) -> usize {
        3 * key_dim
    }

    /// Creates it in memory of [`Self::len`] elements.
    pub fn new(memory: &'a mut [T], key_dim: usize) -> Self {
        let (factors, key) = memory.split_at_mut(2 * key_dim);
        key.fill(T::ZERO);
        factors.fill(T::ZERO);
        Self {
            factors,
            key,
            later: 0,
        }
    }

    /// Goes on to a later position with these logarithms and this key.
    #[inline(always)]
    pub fn go_on(&mut self, logarithms: &[T], key: &[T]) {
        let n = self.key.len();
        assert!(logarithms.len() == n && key.len() == n);
        self.later = 1 - self.later;
        let factors = &mut self.factors[self.later * n..][..n];
        for (factor, &logarithm) in factors.iter_mut().zip(logarithms) {
            *factor = logarithm.exp();
        }
        for ((to, &key), &factor) in self.key.iter_mut().zip(key).zip(&*factors) {
            *to = key * factor;
        }
    }

    /// Goes on beyond the last position, whose key is zeros.
    #[inline(always)]
    pub fn end(&mut self) {
        self.later = 1 - self.later;
        self.key.fill(T::ZERO);
    }

    /// Returns the factors of the position before the later one, of which `one` is that of the whole state.
    #[inline(always)]
    pub fn factors(&self, rule: Rule, one: T) -> Factors<'_, T> {
        let n = self.key.len();
        match rule {
            Rule::ChannelDelta => Factors::Each(&self.factors[(1 - self.later) * n..][..n]),
            Rule::Delta | Rule::Sum => Factors::One(one),
        }
    }

    /// Returns the later position's key times its factors.
    pub fn key(&self) -> &[T] {
        self.key
    }
}

/// Two vectors of columns.
pub type Pair<V> = [V; 2];

/// Sums that a pass over a state's rows adds up apart, so that additions do not wait for each other. They fix the
/// summation order, and so belong to the definition.
const SUMS: usize = 2;

/// Columns that are computed together.
#[derive(Clone, Debug)]
pub struct Columns {
    pub range: Range<usize>,
    /// How many columns two vectors have.
    lanes: usize,
}

/// Returns a head's columns, two vectors at a time.
#[inline(always)]
pub fn all<T: Real, L: Vectors<T>>(value_dim: usize) -> impl DoubleEndedIterator<Item = Columns> {
    within::<T, L>(0..value_dim)
}

/// Returns a range of columns, two vectors at a time.
#[inline(always)]
pub fn within<T: Real, L: Vectors<T>>(
    columns: Range<usize>,
) -> impl DoubleEndedIterator<Item = Columns> {
    let lanes = 2 * L::LANES;
    (0..columns.len().div_ceil(lanes)).map(move |i| Columns {
        range: columns.start + i * lanes..columns.end.min(columns.start + (i + 1) * lanes),
        lanes,
    })
}

/// A task's memory.
pub struct Memory<'a, T> {
    /// `[key_dim, 2 · LANES]`.
    pub state: &'a mut [T],
    pub channels: Channels<'a, T>,
}

/// Returns how many elements [`Memory`] has at most.
pub fn memory_len(key_dim: usize) -> usize {
    key_dim * 2 * MAX_LANES + Channels::<f64>::len(key_dim)
}

impl<'a, T> Memory<'a, T> {
    #[inline(always)]
    pub fn divided<L: Vectors<T>>(memory: &'a mut [T], key_dim: usize) -> Self
    where
        T: Real,
    {
        let (state, rest) = memory.split_at_mut(key_dim * 2 * L::LANES);
        Self {
            state,
            channels: Channels::new(&mut rest[..Channels::<T>::len(key_dim)], key_dim),
        }
    }
}

impl Columns {
    /// Returns whether they fill two vectors.
    pub fn is_whole(&self) -> bool {
        self.range.len() == self.lanes
    }

    /// Copies the columns in as many rows as `state` has, and zeros beyond the last column.
    #[inline(always)]
    pub fn load<'r, T: Real + 'r, L: Vectors<T>>(
        &self,
        level: L,
        rows: impl Iterator<Item = &'r [T]>,
        state: &mut [T],
    ) {
        for (row, to) in rows.zip(state.chunks_exact_mut(self.lanes)) {
            store(level, self.vectors(level, row), to, 0);
        }
    }

    /// Copies the columns back.
    #[inline(always)]
    pub fn store<T: Real, L: Vectors<T>>(
        &self,
        level: L,
        state: &[T],
        to: &Target<T>,
        first: usize,
    ) {
        for i in 0..state.len() / self.lanes {
            // SAFETY: only this task uses this head's rows.
            let row = unsafe { to.piece(first + i, self.range.clone()) };
            store_some(level, load(level, state, i * self.lanes), row);
        }
    }

    /// Loads these columns from a head's row.
    #[inline(always)]
    pub fn vectors<T: Real, L: Vectors<T>>(&self, level: L, row: &[T]) -> Pair<L::Vector> {
        load_some(level, &row[self.range.clone()])
    }
}

/// Loads two vectors from element `at` on.
#[inline(always)]
pub fn load<T: Real, L: Vectors<T>>(level: L, from: &[T], at: usize) -> Pair<L::Vector> {
    assert!(at + 2 * L::LANES <= from.len());
    // SAFETY: two vectors from `at` on are within the slice, by the assertion.
    unsafe {
        let from = from.as_ptr().add(at);
        [level.load(from), level.load(from.add(L::LANES))]
    }
}

/// Stores two vectors from element `at` on.
#[inline(always)]
pub fn store<T: Real, L: Vectors<T>>(level: L, of: Pair<L::Vector>, to: &mut [T], at: usize) {
    assert!(at + 2 * L::LANES <= to.len());
    // SAFETY: two vectors from `at` on are within the slice, by the assertion.
    unsafe {
        let to = to.as_mut_ptr().add(at);
        level.store(of[0], to);
        level.store(of[1], to.add(L::LANES));
    }
}

/// Loads a whole slice, at most two vectors, and zeros after it.
#[inline(always)]
pub fn load_some<T: Real, L: Vectors<T>>(level: L, from: &[T]) -> Pair<L::Vector> {
    if from.len() == 2 * L::LANES {
        return load(level, from, 0);
    }
    let mut memory = [T::ZERO; 2 * MAX_LANES];
    memory[..from.len()].copy_from_slice(from);
    load(level, &memory, 0)
}

/// Stores as many elements as `to` has, at most two vectors.
#[inline(always)]
pub fn store_some<T: Real, L: Vectors<T>>(level: L, of: Pair<L::Vector>, to: &mut [T]) {
    if to.len() == 2 * L::LANES {
        return store(level, of, to, 0);
    }
    let mut memory = [T::ZERO; 2 * MAX_LANES];
    store(level, of, &mut memory, 0);
    to.copy_from_slice(&memory[..to.len()]);
}

/// Returns `value - decay · reads`.
#[inline(always)]
pub fn error<T: Real, L: Vectors<T>>(
    level: L,
    value: Pair<L::Vector>,
    decay: T,
    reads: Pair<L::Vector>,
) -> Pair<L::Vector> {
    let minus = level.splat(-decay);
    let of = |c: usize| level.multiply_add(minus, reads[c], value[c]);
    [of(0), of(1)]
}

/// Returns `factor · of`.
#[inline(always)]
pub fn times<T: Real, L: Vectors<T>>(level: L, factor: T, of: Pair<L::Vector>) -> Pair<L::Vector> {
    let factor = level.splat(factor);
    of.map(|of| level.multiply(factor, of))
}

/// Returns the sum `a + b`.
#[inline(always)]
pub fn add<T: Real, L: Vectors<T>>(
    level: L,
    a: Pair<L::Vector>,
    b: Pair<L::Vector>,
) -> Pair<L::Vector> {
    [level.add(a[0], b[0]), level.add(a[1], b[1])]
}

/// The rows of a state with two vectors each, and how many elements the next row begins after one.
#[derive(Clone, Copy)]
pub struct StateRows<T> {
    pub start: *mut T,
    pub stride: usize,
}

impl<T: Real> StateRows<T> {
    /// Rows without gaps.
    #[inline(always)]
    pub fn dense<L: Vectors<T>>(state: &mut [T]) -> Self {
        Self {
            start: state.as_mut_ptr(),
            stride: 2 * L::LANES,
        }
    }

    /// Returns one of a row's vectors.
    ///
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    unsafe fn at<L: Vectors<T>>(self, row: usize, vector: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(row * self.stride + vector * L::LANES) }
    }
}

/// Returns `Sᵀ k`.
///
/// # Safety
/// The state has a row for each element in the key.
#[inline(always)]
pub unsafe fn read<T: Real, L: Vectors<T>>(
    level: L,
    state: StateRows<T>,
    key: &[T],
) -> Pair<L::Vector> {
    let mut sums = [[level.splat(T::ZERO); 2]; SUMS];
    for (i, &k) in key.iter().enumerate() {
        let (k, sum) = (level.splat(k), &mut sums[i % SUMS]);
        for (c, sum) in sum.iter_mut().enumerate() {
            // SAFETY: the caller promises a row `i`.
            let s = unsafe { level.load(state.at::<L>(i, c)) };
            *sum = level.multiply_add(k, s, *sum);
        }
    }
    add(level, sums[0], sums[1])
}

/// Writes `α S + k ⊗ delta` from one state to another, and returns `Sᵀ q` for it and what the next position's error reads: by
/// a delta rule `Sᵀ next`, else zeros. `keys` are `k`, `q` and `next`.
///
/// # Safety
/// Both states have a row for each element in the keys. They are the same memory, or do not overlap.
#[inline(always)]
pub unsafe fn update<T: Real, L: Vectors<T>>(
    level: L,
    rule: Rule,
    states: [StateRows<T>; 2],
    keys: [&[T]; 3],
    factors: Factors<T>,
    delta: Pair<L::Vector>,
) -> [Pair<L::Vector>; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match (rule, factors) {
            (Rule::Sum, Factors::One(_)) => {
                update_rows::<T, L, false, false>(level, states, keys, factors, delta)
            }
            (_, Factors::One(_)) => {
                update_rows::<T, L, true, false>(level, states, keys, factors, delta)
            }
            (_, Factors::Each(_)) => {
                update_rows::<T, L, true, true>(level, states, keys, factors, delta)
            }
        }
    }
}

/// [`update`], which returns `Sᵀ next` if `READS`, else zeros, with a factor for each row if `EACH`.
///
/// # Safety
/// Same as for [`update`].
#[inline(always)]
unsafe fn update_rows<T: Real, L: Vectors<T>, const READS: bool, const EACH: bool>(
    level: L,
    [from, to]: [StateRows<T>; 2],
    keys: [&[T]; 3],
    factors: Factors<T>,
    delta: Pair<L::Vector>,
) -> [Pair<L::Vector>; 2] {
    let n = keys[0].len();
    let (one, each) = match factors {
        Factors::One(one) => (one, keys[0]),
        Factors::Each(each) => (T::ZERO, each),
    };
    assert!(keys.iter().all(|keys| keys.len() == n) && each.len() == n);
    let zero = level.splat(T::ZERO);
    let one = level.splat(one);
    let (mut y, mut reads) = ([[zero; 2]; SUMS], [[zero; 2]; SUMS]);
    let mut i = 0;
    while i + SUMS <= n {
        for part in 0..SUMS {
            let sums = [&mut y[part], &mut reads[part]];
            // SAFETY: `i + part` is below `n`, and the caller promises as many rows.
            unsafe {
                update_row::<T, L, READS, EACH>(
                    level,
                    [from, to],
                    i + part,
                    keys,
                    (one, each),
                    delta,
                    sums,
                )
            };
        }
        i += SUMS;
    }
    if i < n {
        let sums = [&mut y[0], &mut reads[0]];
        // SAFETY: as above.
        unsafe {
            update_row::<T, L, READS, EACH>(level, [from, to], i, keys, (one, each), delta, sums)
        };
    }
    [add(level, y[0], y[1]), add(level, reads[0], reads[1])]
}

/// Replaces a row in `S`, and adds its terms to `Sᵀ q` and `Sᵀ next`.
///
/// # Safety
/// The states have a row `i`, and the keys and factors have an element `i`.
#[inline(always)]
unsafe fn update_row<T: Real, L: Vectors<T>, const READS: bool, const EACH: bool>(
    level: L,
    [from, to]: [StateRows<T>; 2],
    i: usize,
    [key, query, next]: [&[T]; 3],
    (one, each): (L::Vector, &[T]),
    delta: Pair<L::Vector>,
    [y, reads]: [&mut Pair<L::Vector>; 2],
) {
    // SAFETY: the caller promises an element `i`.
    let (k, q, next, decay) = unsafe {
        (
            level.splat(*key.get_unchecked(i)),
            level.splat(*query.get_unchecked(i)),
            level.splat(*next.get_unchecked(i)),
            match EACH {
                true => level.splat(*each.get_unchecked(i)),
                false => one,
            },
        )
    };
    for c in 0..2 {
        // SAFETY: the caller promises a row `i`.
        let s = unsafe { level.load(from.at::<L>(i, c)) };
        let s = level.multiply_add(k, delta[c], level.multiply(decay, s));
        // SAFETY: as above.
        unsafe { level.store(s, to.at::<L>(i, c)) };
        y[c] = level.multiply_add(q, s, y[c]);
        if READS {
            reads[c] = level.multiply_add(next, s, reads[c]);
        }
    }
}
