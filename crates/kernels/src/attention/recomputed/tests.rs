//! Results compared with sums written out in f64, and gradients with finite differences.

use std::ops::Range;

use super::tile::BLOCK;
use super::*;
use crate::attention::{
    BiasLayout, ContentOf, Dropped, HeadRows, RelativeScores, RelativeTerm, ScoreBias,
};
use crate::reference::{self, alone, normal, on};

/// Sizes, and the steps between products and probabilities.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    /// Query positions and key positions.
    seq: [usize; 2],
    /// Query heads and key heads.
    heads: [usize; 2],
    /// Dimensions per key head and per value head.
    dims: [usize; 2],
    /// The keys that a query sees, up to its own: all for `usize::MAX`. `None` for keys on both sides.
    window: Option<usize>,
    soft_cap: Option<f64>,
    /// Rows in the tables of relative embeddings, 0 without these.
    relative: usize,
    /// A bias's layout, and its element count.
    bias: Option<(BiasLayout, usize)>,
    sinks: bool,
    keep: bool,
    dropout: bool,
}

const CAUSAL: Option<usize> = Some(usize::MAX);

const PLAIN: Case = Case {
    batch: 2,
    seq: [5, 7],
    heads: [4, 2],
    dims: [3, 2],
    window: None,
    soft_cap: None,
    relative: 0,
    bias: None,
    sinks: false,
    keep: false,
    dropout: false,
};

fn cases() -> Vec<Case> {
    let [q, k] = PLAIN.seq;
    let shared = ([0, q * k, k, 1], 4 * q * k);
    let by_sequence = ([q * k, 0, k, 1], 2 * q * k);
    let by_key = ([4 * k, k, 0, 1], 2 * 4 * k);
    let by_distance = Case {
        bias: Some((BiasLayout::by_distance(q, k), 4 * (q + k - 1))),
        ..PLAIN
    };
    let with_bias = |(strides, n)| Case {
        bias: Some((BiasLayout::strided(strides), n)),
        ..PLAIN
    };
    vec![
        PLAIN,
        Case {
            window: CAUSAL,
            keep: true,
            ..PLAIN
        },
        Case {
            soft_cap: Some(0.7),
            dropout: true,
            ..with_bias(shared)
        },
        Case {
            dropout: true,
            window: CAUSAL,
            heads: [3, 3],
            dims: [4, 4],
            ..PLAIN
        },
        Case {
            sinks: true,
            ..PLAIN
        },
        Case {
            sinks: true,
            window: CAUSAL,
            keep: true,
            dropout: true,
            soft_cap: Some(0.7),
            ..with_bias(shared)
        },
        with_bias(shared),
        with_bias(by_sequence),
        with_bias(by_key),
        by_distance,
        Case {
            batch: 1,
            seq: [1, 1],
            heads: [1, 1],
            ..PLAIN
        },
        Case {
            batch: 3,
            seq: [70, 130],
            heads: [2, 1],
            dims: [33, 17],
            window: CAUSAL,
            dropout: true,
            ..PLAIN
        },
        // Several tiles of queries, and several parts of tiles.
        Case {
            seq: [530, 530],
            dims: [2, 2],
            window: Some(200),
            keep: true,
            ..PLAIN
        },
        Case {
            batch: 1,
            seq: [300, 310],
            heads: [4, 1],
            window: CAUSAL,
            dropout: true,
            sinks: true,
            bias: Some((BiasLayout::by_distance(300, 310), 4 * (300 + 310 - 1))),
            ..PLAIN
        },
        // Several blocks of keys.
        Case {
            seq: [20, 2 * BLOCK + 100],
            keep: true,
            dropout: true,
            soft_cap: Some(3.0),
            bias: Some((
                BiasLayout::by_distance(20, 2 * BLOCK + 100),
                4 * (20 + 2 * BLOCK + 99),
            )),
            ..PLAIN
        },
        Case {
            batch: 1,
            seq: [2 * BLOCK + 5; 2],
            heads: [2, 1],
            window: Some(BLOCK / 2),
            ..PLAIN
        },
        Case {
            batch: 1,
            seq: [9, BLOCK + 9],
            sinks: true,
            window: CAUSAL,
            ..PLAIN
        },
        Case {
            seq: [7, 7],
            heads: [3, 3],
            relative: 4,
            keep: true,
            soft_cap: Some(0.7),
            ..PLAIN
        },
        Case {
            seq: [300, 300],
            heads: [2, 2],
            dims: [5, 3],
            relative: 37,
            dropout: true,
            bias: Some((BiasLayout::by_distance(300, 300), 2 * 599)),
            ..PLAIN
        },
        Case {
            batch: 1,
            seq: [BLOCK + 30; 2],
            heads: [1, 1],
            dims: [2, 2],
            window: Some(BLOCK / 2),
            relative: 9,
            ..PLAIN
        },
        // Many tiles and blocks.
        Case {
            batch: 1,
            seq: [4 * BLOCK + 1; 2],
            heads: [1, 1],
            dims: [2, 1],
            window: Some(3),
            ..PLAIN
        },
    ]
}

impl Case {
    /// Returns the same case without dropout and with one width for keys and values, so that keys in several blocks take the
    /// route of calls without a backward pass.
    fn undropped(&self) -> Self {
        Self {
            dims: [self.dims[0]; 2],
            dropout: false,
            ..self.clone()
        }
    }
}

/// Query, key, value, bias and sinks, in this order, in rows with unused columns; then the position keys and the position queries.
type Operands<T = f64> = [Vec<T>; 7];

const SCALE: f64 = 0.9;
const DIVISOR: f64 = 0.75;

impl Case {
    fn operands(&self) -> Operands {
        let bias = self.bias.map_or(0, |(_, len)| len);
        let rows = |of: usize| self.batch * self.seq[of.min(1)] * self.stride(of);
        let table = self.relative * self.width(0);
        [
            normal(rows(0), 0.0, 1.0, 1),
            normal(rows(1), 0.0, 1.0, 2),
            normal(rows(2), 0.3, 1.0, 3),
            normal(bias, 0.0, 1.0, 4),
            normal(if self.sinks { self.heads[0] } else { 0 }, 1.0, 1.0, 6),
            normal(table, 0.0, 1.0, 7),
            normal(table, 0.0, 1.0, 8),
        ]
    }

    /// Returns the columns in all heads: query (0), key (1) or value (2).
    fn width(&self, of: usize) -> usize {
        self.heads[of.min(1)] * self.dims[of / 2]
    }

    fn stride(&self, of: usize) -> usize {
        self.width(of) + 3
    }

    fn marks(&self) -> Vec<u8> {
        let keys = self.batch * self.seq[1];
        (0..keys).map(|i| u8::from(i % 5 != 2)).collect()
    }

    fn kept(&self) -> Vec<u8> {
        let n = self.batch * self.heads[0] * self.seq[0] * self.seq[1];
        (0..n).map(|i| u8::from(i * 7 % 11 > 2)).collect()
    }

    fn reach(&self, query: usize) -> Range<usize> {
        match self.window {
            Some(window) => {
                let end = query + 1 + self.seq[1] - self.seq[0];
                end.saturating_sub(window)..end
            }
            None => 0..self.seq[1],
        }
    }

    /// Returns the table row for each distance.
    fn distances(&self) -> Vec<u32> {
        let all = 0..2 * self.seq[0] - 1;
        all.map(|i| (i * self.relative / (2 * self.seq[0])) as u32)
            .collect()
    }

    /// Runs `work` with the attention call for these operands.
    fn with<T: Stored, R>(
        &self,
        operands: &Operands<T>,
        work: impl FnOnce(&Differentiable) -> R,
    ) -> R {
        let heads = |i: usize| HeadRows {
            data: T::slice(&operands[i]),
            seq: self.seq[i.min(1)],
            heads: self.heads[i.min(1)],
            head_dim: self.dims[i / 2],
            row_stride: self.stride(i),
            offset: 2,
        };
        let biases = self.bias.map(|(layout, _)| ScoreBias {
            data: T::slice(&operands[3]),
            layout,
        });
        let rows = self.distances();
        let term = |(i, of)| RelativeTerm {
            content: HeadRows {
                seq: self.batch * self.seq[0],
                ..heads(i)
            },
            of,
            table: HeadRows {
                data: T::slice(&operands[5 + i]),
                seq: self.relative,
                row_stride: self.width(0),
                offset: 0,
                ..heads(i)
            },
        };
        let terms = [(0, ContentOf::Queries), (1, ContentOf::Keys)].map(term);
        let relative = RelativeScores {
            terms: &terms,
            rows: &rows,
            scale: SCALE,
        };
        let (marks, kept) = (self.marks(), self.kept());
        let dropped = Dropped {
            keep: &kept,
            divisor: DIVISOR,
        };
        work(&Differentiable {
            batch: self.batch,
            query: heads(0),
            key: heads(1),
            value: heads(2),
            scale: SCALE,
            soft_cap: self.soft_cap,
            relative: (self.relative > 0).then_some(relative),
            biases: biases.as_slice(),
            sinks: self.sinks.then(|| T::slice(&operands[4])),
            keep: self.keep.then_some(&marks[..]),
            reach: &|query| self.reach(query),
            dropped: self.dropout.then_some(dropped),
        })
    }

    fn forward<T: Stored>(&self, cpu: Cpu, of: &Operands<T>) -> Vec<T> {
        let [y, _] = self.written(cpu, of);
        y
    }

    /// Returns the result and the rows' normalizers.
    fn written<T: Stored>(&self, cpu: Cpu, of: &Operands<T>) -> [Vec<T>; 2] {
        let mut y = vec![T::ZERO; self.batch * self.seq[0] * self.heads[0] * self.dims[1]];
        self.with(of, |attention| {
            let mut normalizers = vec![T::ZERO; attention.n_normalizers()];
            attention.forward(cpu, T::slice_mut(&mut y), T::slice_mut(&mut normalizers));
            [y, normalizers]
        })
    }

    /// Returns query, key and value gradients in contiguous rows, and bias, sink and table gradients.
    fn backward<T: Plain + Stored>(&self, cpu: Cpu, of: &Operands<T>, dy: &[T]) -> Operands<T> {
        let rows = |i: usize| vec![T::ZERO; self.batch * self.seq[i.min(1)] * self.width(i)];
        let [mut dq, mut dk, mut dv] = [0, 1, 2].map(rows);
        let [mut dbias, mut dsinks, mut dkeys, mut dqueries] =
            [3, 4, 5, 6].map(|i| vec![T::ZERO; of[i].len()]);
        let mut contents = [0, 1].map(rows);
        let [of_queries, of_keys] = &mut contents;
        let relative = [[of_queries, &mut dkeys], [of_keys, &mut dqueries]];
        let relative = relative.map(|term| term.map(|to| T::slice_mut(to)));
        let n_terms = if self.relative > 0 { 2 } else { 0 };
        let to = AttentionGradients {
            query: T::slice_mut(&mut dq),
            key: T::slice_mut(&mut dk),
            value: T::slice_mut(&mut dv),
            relative: relative.into_iter().take(n_terms).collect(),
            biases: match self.bias {
                Some(_) => vec![Some(T::slice_mut(&mut dbias))],
                None => Vec::new(),
            },
            sinks: self.sinks.then(|| T::slice_mut(&mut dsinks)),
        };
        let [y, normalizers] = &self.written(cpu, of);
        let forward = (!normalizers.is_empty()).then_some(Written {
            y: T::slice(y),
            normalizers: T::slice(normalizers),
        });
        self.with(of, |attention| {
            attention.backward(cpu, T::slice(dy), forward, to);
        });
        for (to, content) in [(&mut dq, &contents[0]), (&mut dk, &contents[1])]
            .into_iter()
            .take(n_terms)
        {
            to.iter_mut().zip(content).for_each(|(sum, &x)| *sum += x);
        }
        [dq, dk, dv, dbias, dsinks, dkeys, dqueries]
    }

    /// Returns the result, written out.
    fn exact(&self, [q, k, v, bias, sinks, keys_at, queries_at]: &Operands) -> Vec<f64> {
        let distances = self.distances();
        let ([queries, keys], [n_heads, n_kv_heads]) = (self.seq, self.heads);
        let (marks, kept) = (self.marks(), self.kept());
        let mut y = Vec::new();
        for (b, i) in (0..self.batch).flat_map(|b| (0..queries).map(move |i| (b, i))) {
            for h in 0..n_heads {
                let kv_head = h / (n_heads / n_kv_heads);
                let at = |of: usize, row: usize, head: usize| {
                    row * self.stride(of) + 2 + head * self.dims[of / 2]
                };
                let score = |j: usize| {
                    let q = &q[at(0, b * queries + i, h)..][..self.dims[0]];
                    let k = &k[at(1, b * keys + j, kv_head)..][..self.dims[0]];
                    let product: f64 = q.iter().zip(k).map(|(q, k)| SCALE * q * k).sum();
                    let capped = self
                        .soft_cap
                        .map_or(product, |cap| cap * (product / cap).tanh());
                    let by_distance = |content: &[f64], table: &[f64]| -> f64 {
                        let row = distances[i + queries - 1 - j] as usize;
                        let table = &table[row * self.width(0) + h * self.dims[0]..];
                        let both = content.iter().zip(table);
                        both.map(|(x, y)| SCALE * x * y).sum()
                    };
                    let relative = match self.relative {
                        0 => 0.0,
                        _ => by_distance(q, keys_at) + by_distance(k, queries_at),
                    };
                    capped
                        + relative
                        + self.bias.map_or(0.0, |(layout, _)| {
                            let at = [b, h, i, j].into_iter().zip(layout.strides);
                            let offset: isize = at.map(|(i, stride)| i as isize * stride).sum();
                            bias[(layout.first as isize + offset) as usize]
                        })
                };
                let sink = sinks.get(h).copied();
                let scores: Vec<f64> = (0..keys).map(score).chain(sink).collect();
                let sees = |j: usize| {
                    let is_kept = j == keys || !self.keep || marks[b * keys + j] != 0;
                    is_kept && (j == keys || self.reach(i).contains(&j))
                };
                let p = reference::softmax(&scores, sees);
                for column in 0..self.dims[1] {
                    y.push((0..keys).fold(0.0, |sum, j| {
                        let drawn = kept[((b * n_heads + h) * queries + i) * keys + j];
                        let factor = match (self.dropout, drawn) {
                            (false, _) => 1.0,
                            (true, 0) => 0.0,
                            (true, _) => 1.0 / DIVISOR,
                        };
                        sum + p[j] * factor * v[at(2, b * keys + j, kv_head) + column]
                    }));
                }
            }
        }
        y
    }
}

#[test]
fn results_equal_sums_written_out() {
    for case in cases()
        .into_iter()
        .flat_map(|case| [case.undropped(), case])
    {
        let operands = case.operands();
        let found = case.forward(alone(), &operands);
        assert!(!found.is_empty());
        for (found, exact) in found.iter().zip(case.exact(&operands)) {
            assert!((found - exact).abs() < 1e-13, "{case:?}: {found} {exact}");
        }
        let single = operands
            .each_ref()
            .map(|x| x.iter().map(|&x| x as f32).collect());
        for isa in crate::Isa::levels() {
            let y = case.forward(on(isa, 2), &single);
            // Scores up to about 16, whose rounding errors the exponential amplifies, and the rounding errors in
            // exponential, sum and product. All relative to a mean of values.
            let largest = operands[2].iter().fold(0.0, |a: f64, v| a.max(v.abs()));
            let allowed = 24.0 * f64::from(f32::EPSILON) * largest / DIVISOR;
            for (y, found) in y.iter().zip(&found) {
                let error = (f64::from(*y) - found).abs();
                assert!(error < allowed, "{case:?}: {y} {found}");
            }
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let step = 1e-5;
    for case in cases() {
        // Each place takes two passes.
        let places = if case.seq[0] > BLOCK { 4 } else { 40 };
        let operands = case.operands();
        let dy = normal(case.exact(&operands).len(), 0.1, 1.0, 5);
        let gradients = case.backward(alone(), &operands, &dy);
        let loss = |operands: &Operands| -> f64 {
            let y = case.forward(alone(), operands);
            y.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
        };
        for (of, gradient) in gradients.iter().enumerate() {
            let n = gradient.len();
            for at in (0..n).step_by(n.div_ceil(places).max(1)) {
                let place = match of {
                    3.. => at,
                    _ => at / case.width(of) * case.stride(of) + 2 + at % case.width(of),
                };
                let moved = |by: f64| {
                    let mut moved = operands.clone();
                    moved[of][place] += by;
                    loss(&moved)
                };
                let expected = (moved(step) - moved(-step)) / (2.0 * step);
                let error = (gradient[at] - expected).abs();
                assert!(
                    error < 1e-7 * (1.0 + expected.abs()),
                    "{case:?} {of} {at}: {error}"
                );
            }
        }
    }
}

#[test]
fn neither_threads_nor_the_rest_of_the_batch_change_a_bit() {
    for case in cases() {
        let single = case
            .operands()
            .map(|x| x.iter().map(|&x| x as f32).collect());
        let y = case.forward(alone(), &single);
        let dy: Vec<f32> = y.iter().map(|y| y + 0.5).collect();
        let alone = case.backward(alone(), &single, &dy);
        for threads in [2, 3] {
            let cpu = on(crate::Isa::best(), threads);
            assert_eq!(case.forward(cpu, &single), y);
            assert_eq!(case.backward(cpu, &single, &dy), alone, "{case:?}");
        }
    }
}

#[test]
fn gradients_and_normalizers_in_f32_are_those_in_f64() {
    let in_f32 = |x: &Vec<f64>| -> Vec<f32> { x.iter().map(|&x| x as f32).collect() };
    for case in cases()
        .into_iter()
        .flat_map(|case| [case.undropped(), case])
    {
        let operands = case.operands();
        let single: Operands<f32> = operands.each_ref().map(in_f32);
        let dy = normal(case.forward(alone(), &operands).len(), 0.1, 1.0, 5);
        let [_, expected_normalizers] = case.written(alone(), &operands);
        let expected = case.backward(alone(), &operands, &dy);
        for isa in crate::Isa::levels() {
            let [_, normalizers] = case.written(on(isa, 2), &single);
            assert_eq!(normalizers.len(), expected_normalizers.len());
            let pairs = normalizers.as_chunks().0.iter();
            for (&[largest, total], expected) in pairs.zip(expected_normalizers.as_chunks::<2>().0)
            {
                let found = f64::from(largest) + f64::from(total).ln();
                let expected = expected[0] + expected[1].ln();
                assert!(
                    found == expected || (found - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                    "{case:?}: {found} {expected}"
                );
            }
            let found = case.backward(on(isa, 2), &single, &in_f32(&dy));
            for (of, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let largest = expected.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
                for (&found, expected) in found.iter().zip(expected) {
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error <= 2e-5 * largest,
                        "{case:?} {of}: {found} {expected} of {largest}"
                    );
                }
            }
        }
    }
}

/// Otherwise a token would depend on whether a cache holds the tokens before it.
#[test]
fn a_query_has_the_same_bits_in_any_tile() {
    let case = Case {
        batch: 1,
        seq: [4 * BLOCK + 10; 2],
        heads: [2, 1],
        window: CAUSAL,
        ..PLAIN
    };
    same_bits_in_any_tile(&case);
    same_bits_in_any_tile(&case.undropped());
}

fn same_bits_in_any_tile(case: &Case) {
    let n = case.seq[0];
    let single: Operands<f32> = case
        .operands()
        .map(|x| x.iter().map(|&x| x as f32).collect());
    let all = case.forward(on(crate::Isa::best(), 2), &single);
    let width = case.heads[0] * case.dims[1];
    for query in [0, 1, BLOCK - 1, BLOCK, BLOCK + 130, 3 * BLOCK - 1, n - 1] {
        let own = Case {
            seq: [1, query + 1],
            ..case.clone()
        };
        let rows = |of: usize, rows: Range<usize>| {
            let stride = case.stride(of);
            single[of][rows.start * stride..rows.end * stride].to_vec()
        };
        let operands = [
            rows(0, query..query + 1),
            rows(1, 0..query + 1),
            rows(2, 0..query + 1),
            Vec::new(),
            Vec::new(),
            Vec::new(),
            Vec::new(),
        ];
        assert_eq!(
            own.forward(alone(), &operands),
            all[query * width..(query + 1) * width],
            "query {query}"
        );
    }
}
