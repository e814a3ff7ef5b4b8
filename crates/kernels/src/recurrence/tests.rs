use super::*;
use crate::Cpu;
use crate::reference::{assert_same, assert_share, normal, on, sigmoid, softplus};
use crate::vectors::{Isa, Stored};

/// A recurrence's inputs in f64.
#[derive(Clone)]
struct Case {
    rule: Rule,
    heads: StateHeads,
    n_rows: usize,
    sequences: Vec<Vec<u32>>,
    state: Vec<f64>,
    /// Queries, keys, values, the logarithms of `α`, and `β`.
    inputs: [Vec<f64>; 5],
}

impl Case {
    /// Draws inputs for sequences with these lengths. Their rows alternate, after a row that no sequence has.
    fn new(
        rule: Rule,
        [n_keys, n_values, key_dim, value_dim]: [usize; 4],
        lengths: &[usize],
    ) -> Self {
        let heads = StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        };
        let mut sequences = vec![Vec::new(); lengths.len()];
        let mut n_rows = 1;
        for position in 0..lengths.iter().copied().max().unwrap_or(0) {
            for (rows, &length) in sequences.iter_mut().zip(lengths) {
                if position < length {
                    rows.push(n_rows as u32);
                    n_rows += 1;
                }
            }
        }
        let unit = |seed| {
            let x = normal(n_rows * n_keys * key_dim, 0.0, 1.0, seed);
            let heads = x.chunks(key_dim).flat_map(|x| {
                let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                x.iter().map(move |x| f64::from((x / length) as f32))
            });
            heads.collect::<Vec<_>>()
        };
        let factors = |seed, of: fn(f64) -> f64| {
            let x = normal(n_rows * n_values, 0.0, 2.0, seed).into_iter();
            x.map(|x| f64::from(of(x) as f32)).collect::<Vec<_>>()
        };
        Self {
            rule,
            heads,
            n_rows,
            state: normal(lengths.len() * heads.state_len(), 0.0, 1.0, 6),
            sequences,
            inputs: [
                unit(1),
                unit(2),
                normal(n_rows * n_values * value_dim, 0.0, 1.0, 3),
                {
                    let n = n_rows * heads.decay_width(rule);
                    let x = normal(n, 0.0, 2.0, 4).into_iter();
                    x.map(|x| f64::from(-softplus(x) as f32)).collect()
                },
                factors(5, sigmoid),
            ],
        }
    }

    /// Computes the formula: results and states.
    fn expected(&self) -> [Vec<f64>; 2] {
        let StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        } = self.heads;
        let mut state = self.state.clone();
        let mut y = vec![0.0; self.n_rows * n_values * value_dim];
        let [query, key, value, decay, write] = &self.inputs;
        for (sequence, rows) in self.sequences.iter().enumerate() {
            for head in 0..n_values {
                let key_head = head * n_keys / n_values;
                let at = (sequence * n_values + head) * key_dim * value_dim;
                let state = &mut state[at..at + key_dim * value_dim];
                for row in rows.iter().map(|row| *row as usize) {
                    let keys = (row * n_keys + key_head) * key_dim;
                    let at = row * n_values + head;
                    let (write, decay) = (write[at], |i: usize| match self.rule {
                        Rule::ChannelDelta => decay[at * key_dim + i],
                        Rule::Delta | Rule::Sum => decay[at],
                    });
                    for c in 0..value_dim {
                        let column = |i: usize| i * value_dim + c;
                        let of = (row * n_values + head) * value_dim + c;
                        (0..key_dim).for_each(|i| state[column(i)] *= decay(i).exp());
                        let read: f64 =
                            (0..key_dim).map(|i| key[keys + i] * state[column(i)]).sum();
                        let delta = match self.rule {
                            Rule::Delta | Rule::ChannelDelta => write * (value[of] - read),
                            Rule::Sum => write * value[of],
                        };
                        (0..key_dim).for_each(|i| state[column(i)] += key[keys + i] * delta);
                        y[of] = (0..key_dim)
                            .map(|i| query[keys + i] * state[column(i)])
                            .sum();
                    }
                }
            }
        }
        [y, state]
    }

    /// Computes in a type: results, states and snapshots.
    fn computed<T: Stored + Precise>(&self, isa: Isa, threads: usize) -> [Vec<T>; 3] {
        let inputs = self.inputs.each_ref().map(|of| typed::<T>(of));
        let n_results = self.n_rows * self.heads.n_values * self.heads.value_dim;
        let n_snapshots = n_snapshots(&self.sequences) * self.heads.state_len();
        let rule = self.rule(&inputs);
        computed(
            &rule,
            on(isa, threads),
            &self.state,
            [n_results, n_snapshots],
        )
    }

    fn rule<'a, T: Stored>(
        &'a self,
        [query, key, value, decay, write]: &'a [Vec<T>; 5],
    ) -> Recurrence<'a> {
        Recurrence {
            rule: self.rule,
            heads: self.heads,
            query: T::slice(query),
            key: T::slice(key),
            value: T::slice(value),
            decay: T::slice(decay),
            write: T::slice(write),
            sequences: &self.sequences,
        }
    }

    /// Computes the gradients for `Σ w · y` in a type.
    fn gradients<T: Stored + Precise>(&self, isa: Isa, threads: usize, w: &[f64]) -> [Vec<T>; 5] {
        let inputs = self.inputs.each_ref().map(|of| typed::<T>(of));
        let [_, _, snapshots] = self.computed::<T>(isa, threads);
        let mut all = self.inputs.each_ref().map(|of| vec![T::of(0.0); of.len()]);
        let gradients = all.each_mut().map(|of| T::slice_mut(of));
        let (dy, rule) = (typed::<T>(w), self.rule(&inputs));
        let (snapshots, dy) = (T::slice(&snapshots), T::slice(&dy));
        rule.backward(on(isa, threads), snapshots, dy, gradients);
        all
    }
}

/// Computes results, states and snapshots of these lengths. Without snapshots, and without a state before if that is zeros,
/// results and states have the same bits.
pub fn computed<T: Stored + Precise>(
    kernel: &impl StateKernel,
    cpu: Cpu,
    state: &[f64],
    [n_results, n_snapshots]: [usize; 2],
) -> [Vec<T>; 3] {
    let before = typed::<T>(state);
    let nothing = |n: usize| vec![T::of(f64::NAN); n];
    let mut snapshots = nothing(n_snapshots);
    let run = |before: Option<&[T]>, snapshots: Option<&mut [T]>| {
        let (mut y, mut after) = (nothing(n_results), nothing(state.len()));
        let states = States {
            before: before.map(T::slice),
            after: T::slice_mut(&mut after),
            snapshots: snapshots.map(T::slice_mut),
        };
        kernel.forward(cpu, states, T::slice_mut(&mut y));
        [y, after]
    };
    let [y, after] = run(Some(&before), Some(&mut snapshots));
    let is_zero = state.iter().all(|x| *x == 0.0);
    let again = run(Some(&before[..]).filter(|_| !is_zero), None);
    assert_same(&again[0], &y, "without snapshots");
    assert_same(&again[1], &after, "states without snapshots");
    [y, after, snapshots]
}

/// A type that recurrences have.
pub trait Precise: Copy + bytemuck::Pod + crate::reference::RoundingErrors {
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
}

impl Precise for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Precise for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
}

pub fn typed<T: Precise>(of: &[f64]) -> Vec<T> {
    of.iter().map(|&x| T::of(x)).collect()
}

/// Returns the largest difference, divided by the largest expected number if that is above 1.
pub fn distance<T: Precise>(found: &[T], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let largest = expected.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
    pairs.map(|(a, b)| (a.wide() - b).abs()).fold(0.0, f64::max) / largest
}

/// Heads and widths: around a vector's length, with and without shared keys.
const SIZES: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [1, 3, 3, 5],
    [2, 4, 17, 33],
    [2, 2, 16, 32],
    [3, 6, 5, 16],
    [1, 2, 64, 70],
    [1, 1, 128, 64],
];

/// Returns each of these with each rule.
fn rules_and<C: Clone, const N: usize>(cases: [C; N]) -> impl Iterator<Item = (Rule, C)> {
    let rules = [Rule::Delta, Rule::Sum, Rule::ChannelDelta];
    rules
        .into_iter()
        .flat_map(move |rule| cases.clone().map(|case| (rule, case)))
}

const LENGTHS: [&[usize]; 4] = [&[1], &[2, 0, 5], &[63, 64, 65], &[200, 7]];

#[test]
fn results_and_states_are_those_of_the_formula_on_every_level() {
    let mut worst = [0f64; 2];
    for (rule, sizes) in rules_and(SIZES) {
        for lengths in LENGTHS {
            let case = Case::new(rule, sizes, lengths);
            let expected = case.expected();
            for isa in Isa::levels() {
                let single = case.computed::<f32>(isa, 3);
                let double = case.computed::<f64>(isa, 3);
                for (i, expected) in expected.iter().enumerate() {
                    worst[0] = worst[0].max(distance(&single[i], expected) / 8e-7);
                    worst[1] = worst[1].max(distance(&double[i], expected) / 3e-15);
                }
            }
        }
    }
    assert_share(worst[0], 0.2, "f32");
    assert_share(worst[1], 0.2, "f64");
}

#[test]
fn absent_states_are_zeros() {
    let mut worst = 0f64;
    for (rule, sizes) in rules_and([[2, 4, 16, 32]]) {
        let mut case = Case::new(rule, sizes, &[3, 0, 1]);
        case.state.fill(0.0);
        let expected = case.expected();
        for isa in Isa::levels() {
            let [y, after, _] = case.computed::<f32>(isa, 2);
            let distances = distance(&y, &expected[0]).max(distance(&after, &expected[1]));
            worst = worst.max(distances / 2e-7);
        }
    }
    assert_share(worst, 0.2, "f32");
}

#[test]
fn rows_outside_all_sequences_are_zeros() {
    let case = Case::new(Rule::Delta, [1, 2, 4, 5], &[3]);
    let [y, ..] = case.computed::<f32>(Isa::levels()[0], 1);
    assert_eq!(y[..10], [0.0; 10]);
}

#[test]
fn a_sequence_has_the_same_bits_alone_in_pieces_and_on_any_number_of_threads() {
    let cases = rules_and([[2, 4, 17, 33]]);
    let on_levels = cases.flat_map(|case| Isa::levels().into_iter().map(move |isa| (case, isa)));
    for ((rule, sizes), isa) in on_levels {
        let case = Case::new(rule, sizes, &[150, 3, 70]);
        let [y, state, snapshots] = case.computed::<f32>(isa, 1);
        let [again, ..] = case.computed::<f32>(isa, 3);
        assert_same(&again, &y, format!("{isa}: threads"));
        let n = case.heads.state_len();
        let width = 4 * 33;
        for (i, rows) in case.sequences.iter().enumerate() {
            for piece in [1, 63, 64, 65, 150] {
                let mut alone = case.clone();
                alone.state = case.state[i * n..(i + 1) * n].to_vec();
                let mut own = Vec::new();
                for rows in rows.chunks(piece) {
                    alone.sequences = vec![rows.to_vec()];
                    let [y, state, _] = alone.computed::<f32>(isa, 2);
                    own.extend(
                        rows.iter()
                            .flat_map(|&row| y[row as usize * width..][..width].to_vec()),
                    );
                    alone.state = state.iter().map(|x| f64::from(*x)).collect();
                }
                let expected = rows
                    .iter()
                    .flat_map(|&row| y[row as usize * width..][..width].to_vec());
                assert_same(
                    &own,
                    &expected.collect::<Vec<_>>(),
                    format!("{isa}: pieces of {piece}"),
                );
                let after: Vec<f32> = typed(&alone.state);
                assert_same(
                    &after,
                    &state[i * n..(i + 1) * n],
                    format!("{isa}: state after {piece}"),
                );
            }
        }
        // The first snapshots are the states before.
        assert_same(&snapshots[..n], &typed::<f32>(&case.state[..n]), "snapshot");
    }
}

/// Returns `(f(x + h) - f(x - h)) / 2h` for some elements, as pairs of an index and a slope.
pub fn slopes(x: &[f64], h: f64, mut f: impl FnMut(&[f64]) -> f64) -> Vec<(usize, f64)> {
    let step = x.len().div_ceil(23);
    let mut x = x.to_vec();
    let mut all = Vec::new();
    for i in (0..x.len()).step_by(step) {
        let before = x[i];
        x[i] = before + h;
        let above = f(&x);
        x[i] = before - h;
        let below = f(&x);
        x[i] = before;
        all.push((i, (above - below) / (2.0 * h)));
    }
    all
}

#[test]
fn gradients_are_the_slopes_of_the_formula() {
    for (rule, (sizes, lengths)) in rules_and([
        ([1, 1, 3, 2], &[2][..]),
        ([2, 4, 5, 6], &[4, 0, 3]),
        ([1, 2, 17, 33], &[70, 65]),
    ]) {
        let case = Case::new(rule, sizes, lengths);
        let w = normal(
            case.n_rows * case.heads.n_values * case.heads.value_dim,
            0.0,
            1.0,
            9,
        );
        for isa in Isa::levels() {
            let found = case.gradients::<f64>(isa, 2, &w);
            let mut n_compared = 0;
            for (input, found) in found.iter().enumerate() {
                let of = slopes(&case.inputs[input], 1e-5, |x| {
                    let mut moved = case.clone();
                    moved.inputs[input] = x.to_vec();
                    let [y, _] = moved.expected();
                    y.iter().zip(&w).map(|(y, w)| y * w).sum()
                });
                n_compared += of.len();
                for (i, slope) in of {
                    let bound = 2e-7 * (1.0 + slope.abs());
                    assert!(
                        (found[i] - slope).abs() < bound,
                        "{isa} {rule:?} {sizes:?} {input}: {} {slope}",
                        found[i]
                    );
                }
                assert!(found.iter().any(|x| *x != 0.0));
            }
            assert!(n_compared >= 10, "{n_compared}");
        }
    }
}

#[test]
fn gradients_in_f32_are_near_those_in_f64_and_have_the_same_bits_on_any_number_of_threads() {
    let mut worst = 0f64;
    for (rule, sizes) in rules_and(SIZES) {
        let case = Case::new(rule, sizes, &[130, 3]);
        let w = normal(
            case.n_rows * case.heads.n_values * case.heads.value_dim,
            0.0,
            1.0,
            9,
        );
        for isa in Isa::levels() {
            let exact = case.gradients::<f64>(isa, 1, &w);
            let found = case.gradients::<f32>(isa, 1, &w);
            let again = case.gradients::<f32>(isa, 3, &w);
            for ((found, again), exact) in found.iter().zip(&again).zip(&exact) {
                assert_same(again, found, "threads");
                worst = worst.max(distance(found, exact) / 3e-6);
            }
        }
    }
    assert_share(worst, 0.1, "f32");
}
