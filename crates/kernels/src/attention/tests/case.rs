//! An attention call, with operands in a fused projection's layout.

use std::ops::Range;

use super::*;
use crate::reference;

/// The positions visible to a query, as the layers define them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    All,
    Causal,
    /// This many keys, ending at the query's own position.
    CausalWindow(usize),
    /// The keys at most this far away.
    Window(usize),
}

impl Reach {
    pub fn range(self, position: usize, keys: usize) -> Range<usize> {
        match self {
            Self::All => 0..keys,
            Self::Causal => 0..(position + 1).min(keys),
            Self::CausalWindow(w) => (position + 1).saturating_sub(w)..position + 1,
            Self::Window(w) => position.saturating_sub(w)..position + w + 1,
        }
    }
}

#[derive(Clone)]
pub struct Case {
    pub batch: usize,
    pub queries: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub keys: usize,
    pub reach: Reach,
    pub first_query: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// `[n_heads]`.
    pub sinks: Option<Vec<f32>>,
    /// `[batch, keys]`.
    pub keep: Option<Vec<u8>>,
    pub biases: Vec<(Vec<f32>, BiasLayout)>,
    /// `[batch · queries, 2 + n_heads · head_dim + 1]`.
    pub query: Vec<f32>,
    /// `[batch · keys, 3 + key width + value width]`.
    pub key_value: Vec<f32>,
}

pub fn random(n: usize, deviation: f64, seed: u64) -> Vec<f32> {
    reference::random(n, 0.1, deviation, seed)
}

impl Case {
    /// Creates a case without masks.
    pub fn new(
        (batch, queries, keys): (usize, usize, usize),
        (n_heads, n_kv_heads, head_dim): (usize, usize, usize),
    ) -> Self {
        let query_stride = 3 + n_heads * head_dim;
        let key_stride = 3 + 2 * n_kv_heads * head_dim;
        Self {
            batch,
            queries,
            n_heads,
            n_kv_heads,
            head_dim,
            keys,
            reach: Reach::All,
            first_query: keys.saturating_sub(queries),
            // Scores differ by a few units, as in a trained model.
            scale: 1.5 / (head_dim as f32).sqrt(),
            soft_cap: None,
            sinks: None,
            keep: None,
            biases: Vec::new(),
            query: random(batch * queries * query_stride, 1.0, 1),
            key_value: random(batch * keys * key_stride, 1.0, 2),
        }
    }

    /// Returns the same case with other random values.
    pub fn reseeded(mut self, seed: u64) -> Self {
        self.query = random(self.query.len(), 1.0, 2 * seed + 10);
        self.key_value = random(self.key_value.len(), 1.0, 2 * seed + 11);
        self
    }

    /// Returns the same case with another reach.
    pub fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Returns sequences with `seq` positions each.
    fn sequences(&self, seq: usize) -> Sequences<'_> {
        let batch = self.batch;
        Sequences::Equal { batch, seq }
    }

    pub fn shape(&self) -> Shape<'_> {
        Shape {
            queries: self.sequences(self.queries),
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Keeps the keys for which `rule` returns true, given sequence and position.
    pub fn keeping(mut self, rule: impl Fn(usize, usize) -> bool) -> Self {
        let n = self.batch * self.keys;
        let mark = |i: usize| u8::from(rule(i / self.keys, i % self.keys));
        self.keep = Some((0..n).map(mark).collect());
        self
    }

    pub fn query_heads(&self) -> Heads<'_> {
        Heads {
            data: &self.query,
            row_stride: 3 + self.n_heads * self.head_dim,
            offset: 2,
        }
    }

    pub fn key_heads(&self) -> Heads<'_> {
        Heads {
            data: &self.key_value,
            row_stride: 3 + 2 * self.n_kv_heads * self.head_dim,
            offset: 1,
        }
    }

    pub fn value_heads(&self) -> Heads<'_> {
        Heads {
            offset: 2 + self.n_kv_heads * self.head_dim,
            ..self.key_heads()
        }
    }

    /// Returns the index in `key_value` for one key or value element.
    pub fn at(&self, heads: Heads, sequence: usize, position: usize, column: usize) -> usize {
        (sequence * self.keys + position) * heads.row_stride + heads.offset + column
    }

    /// `[batch · queries, n_heads · head_dim]`.
    pub fn compute(&self, way: Way, threads: usize) -> Vec<f32> {
        let key_value = KeyValue::Projected {
            keys: self.sequences(self.keys),
            key: self.key_heads(),
            value: self.value_heads(),
        };
        self.attend(way, key_value, threads)
    }

    pub fn attend(&self, way: Way, key_value: KeyValue, threads: usize) -> Vec<f32> {
        self.attend_as(way, &self.shape(), key_value, threads)
    }

    /// Like [`Self::attend`], with other sequences than the case's own.
    pub fn attend_as(
        &self,
        way: Way,
        shape: &Shape,
        key_value: KeyValue,
        threads: usize,
    ) -> Vec<f32> {
        let width = self.n_heads * self.head_dim;
        let biases = self.biases.iter();
        let biases: Vec<Bias> = biases
            .map(|&(ref data, layout)| Bias { data, layout })
            .collect();
        let scoring = Scoring {
            scale: self.scale,
            soft_cap: self.soft_cap,
            sinks: self.sinks.as_deref(),
            relative: None,
            biases: &biases,
            keep: self.keep.as_deref(),
            reach: &|_, query| self.reach.range(self.first_query + query, self.keys),
            origins: None,
        };
        // Two more columns, which must not be written.
        let n_rows = shape.queries.n_rows();
        let mut out = vec![9.0; n_rows * (width + 2)];
        let query = self.query_heads();
        let cpu = on(way.isa, threads);
        attend(cpu, way.stored, shape, &scoring, query, key_value, &mut out);
        let rows = out.chunks_exact(width + 2);
        rows.flat_map(|row| {
            assert_eq!(row[width..], [9.0; 2], "columns after the heads");
            &row[..width]
        })
        .copied()
        .collect()
    }

    /// Returns whether a query sees a key.
    pub fn sees(&self, sequence: usize, query: usize, key: usize) -> bool {
        let kept = self.keep.as_ref();
        self.reach
            .range(self.first_query + query, self.keys)
            .contains(&key)
            && kept.is_none_or(|keep| keep[sequence * self.keys + key] != 0)
    }
}
