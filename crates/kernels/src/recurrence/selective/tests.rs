use super::*;
use crate::recurrence::n_snapshots;
use crate::recurrence::tests::{Precise, computed, distance, slopes, typed};
use crate::reference::{assert_same, assert_share, normal, on, softplus};
use crate::vectors::Isa;

/// A scan's inputs in f64.
#[derive(Clone)]
struct Case {
    state_dim: usize,
    channels: usize,
    n_rows: usize,
    sequences: Vec<Vec<u32>>,
    state: Vec<f64>,
    /// Rates, steps, queries, keys and values.
    inputs: [Vec<f64>; 5],
}

impl Case {
    /// Draws inputs for sequences with these lengths. Their rows alternate, after a row that no sequence has.
    fn new([state_dim, channels]: [usize; 2], lengths: &[usize]) -> Self {
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
        let drawn = |n, seed| normal(n, 0.0, 1.0, seed);
        let positive = |n, seed| {
            let all = drawn(n, seed).into_iter();
            all.map(|x| f64::from(softplus(x) as f32))
                .collect::<Vec<_>>()
        };
        Self {
            state_dim,
            channels,
            n_rows,
            state: drawn(lengths.len() * state_dim * channels, 6),
            sequences,
            inputs: [
                positive(state_dim * channels, 1)
                    .iter()
                    .map(|x| -x)
                    .collect(),
                positive(n_rows * channels, 2),
                drawn(n_rows * state_dim, 3),
                drawn(n_rows * state_dim, 4),
                drawn(n_rows * channels, 5),
            ],
        }
    }

    /// Computes the formula: results and states.
    fn expected(&self) -> [Vec<f64>; 2] {
        let (n, channels) = (self.state_dim, self.channels);
        let mut state = self.state.clone();
        let mut y = vec![0.0; self.n_rows * channels];
        let [rate, step, query, key, value] = &self.inputs;
        for (sequence, rows) in self.sequences.iter().enumerate() {
            let state = &mut state[sequence * n * channels..][..n * channels];
            for row in rows.iter().map(|row| *row as usize) {
                for c in 0..channels {
                    let of = row * channels + c;
                    for i in 0..n {
                        let s = &mut state[i * channels + c];
                        *s = (rate[i * channels + c] * step[of]).exp() * *s
                            + key[row * n + i] * value[of];
                        y[of] += query[row * n + i] * *s;
                    }
                }
            }
        }
        [y, state]
    }

    fn scan<'a, T: Stored>(
        &'a self,
        [rate, step, query, key, value]: &'a [Vec<T>; 5],
    ) -> SelectiveScan<'a> {
        SelectiveScan {
            state_dim: self.state_dim,
            channels: self.channels,
            rate: T::slice(rate),
            step: T::slice(step),
            query: T::slice(query),
            key: T::slice(key),
            value: T::slice(value),
            sequences: &self.sequences,
        }
    }

    /// Computes in a type: results, states and snapshots.
    fn computed<T: Stored + Precise>(&self, isa: Isa, threads: usize) -> [Vec<T>; 3] {
        let inputs = self.inputs.each_ref().map(|of| typed::<T>(of));
        let n_results = self.n_rows * self.channels;
        let n_snapshots = n_snapshots(&self.sequences) * self.state_dim * self.channels;
        let scan = self.scan(&inputs);
        computed(
            &scan,
            on(isa, threads),
            &self.state,
            [n_results, n_snapshots],
        )
    }

    /// Computes the gradients for `Σ w · y` in a type.
    fn gradients<T: Stored + Precise>(&self, isa: Isa, threads: usize, w: &[f64]) -> [Vec<T>; 5] {
        let inputs = self.inputs.each_ref().map(|of| typed::<T>(of));
        let [_, _, snapshots] = self.computed::<T>(isa, threads);
        let mut all = self.inputs.each_ref().map(|of| vec![T::of(0.0); of.len()]);
        let gradients = all.each_mut().map(|of| T::slice_mut(of));
        let (dy, scan) = (typed::<T>(w), self.scan(&inputs));
        let (snapshots, dy) = (T::slice(&snapshots), T::slice(&dy));
        scan.backward(on(isa, threads), snapshots, dy, gradients);
        all
    }
}

/// State sizes and channels: around a vector's length and a task's columns.
const SIZES: [[usize; 2]; 6] = [[1, 1], [3, 5], [16, 32], [17, 33], [16, 70], [5, 16]];

const LENGTHS: [&[usize]; 4] = [&[1], &[2, 0, 5], &[63, 64, 65], &[200, 7]];

#[test]
fn results_and_states_are_those_of_the_formula_on_every_level() {
    let mut worst = [0f64; 2];
    for sizes in SIZES {
        for lengths in LENGTHS {
            let case = Case::new(sizes, lengths);
            let expected = case.expected();
            for isa in Isa::levels() {
                let single = case.computed::<f32>(isa, 3);
                let double = case.computed::<f64>(isa, 3);
                for (i, expected) in expected.iter().enumerate() {
                    worst[0] = worst[0].max(distance(&single[i], expected) / 8e-7);
                    worst[1] = worst[1].max(distance(&double[i], expected) / 1.2e-15);
                }
            }
        }
    }
    assert_share(worst[0], 0.2, "f32");
    assert_share(worst[1], 0.2, "f64");
}

#[test]
fn absent_states_are_zeros() {
    let mut case = Case::new([16, 70], &[3, 0, 1]);
    case.state.fill(0.0);
    let expected = case.expected();
    for isa in Isa::levels() {
        let [y, after, _] = case.computed::<f32>(isa, 2);
        assert!(distance(&y, &expected[0]).max(distance(&after, &expected[1])) < 4e-7);
    }
}

#[test]
fn rows_outside_all_sequences_are_zeros() {
    let case = Case::new([4, 5], &[3]);
    let [y, ..] = case.computed::<f32>(Isa::levels()[0], 1);
    assert_eq!(y[..5], [0.0; 5]);
}

#[test]
fn a_sequence_has_the_same_bits_alone_in_pieces_and_on_any_number_of_threads() {
    let (n, channels) = (17, 70);
    for isa in Isa::levels() {
        let case = Case::new([n, channels], &[150, 3, 70]);
        let [y, state, snapshots] = case.computed::<f32>(isa, 1);
        let [again, ..] = case.computed::<f32>(isa, 3);
        assert_same(&again, &y, format!("{isa}: threads"));
        let len = n * channels;
        for (i, rows) in case.sequences.iter().enumerate() {
            for piece in [1, 63, 64, 65, 150] {
                let mut alone = case.clone();
                alone.state = case.state[i * len..(i + 1) * len].to_vec();
                for rows in rows.chunks(piece) {
                    alone.sequences = vec![rows.to_vec()];
                    let [own, state, _] = alone.computed::<f32>(isa, 2);
                    for &row in rows {
                        let of = row as usize * channels..(row as usize + 1) * channels;
                        assert_same(&own[of.clone()], &y[of], format!("{isa}: {piece}"));
                    }
                    alone.state = state.iter().map(|x| f64::from(*x)).collect();
                }
                let after: Vec<f32> = typed(&alone.state);
                let whole = &state[i * len..(i + 1) * len];
                assert_same(&after, whole, format!("{isa}: state after {piece}"));
            }
        }
        // The first snapshots are the states before.
        assert_same(
            &snapshots[..len],
            &typed::<f32>(&case.state[..len]),
            "snapshot",
        );
    }
}

#[test]
fn gradients_are_the_slopes_of_the_formula() {
    for (sizes, lengths) in [
        ([3, 2], &[2][..]),
        ([5, 6], &[4, 0, 3]),
        ([17, 33], &[70, 65]),
    ] {
        let case = Case::new(sizes, lengths);
        let w = normal(case.n_rows * case.channels, 0.0, 1.0, 9);
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
                    let difference = (found[i] - slope).abs();
                    assert!(
                        difference < bound,
                        "{isa} {sizes:?} {input}: {} {slope}",
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
    for sizes in SIZES {
        let case = Case::new(sizes, &[130, 3]);
        let w = normal(case.n_rows * case.channels, 0.0, 1.0, 9);
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
