//! Scores, softmax and values for one tile at a time, then the output projection.

use std::{ops::Range, sync::Arc};

use candle_blocks_kernels::attention::{
    Bias, Heads, KeyValue, Origin, RelativeScores, Scoring, Sequences, Shape, attend,
};
use candle_blocks_kernels::{Cpu, scratch};
use candle_blocks_kernels::{memory::lend, rows, rows::Source};
use candle_core::{Result, Tensor};

use super::{PackedAttention, head_maps::PerHeadRows};
use crate::config::{Activation, Position};
use crate::layers::KeySource;
use crate::layers::packed::{additive::Additive, padding_seen, pass::PackedPass};
use crate::ops::{Reach, activation_kernel};

scratch!(MIXED_ROWS);
scratch!(VALUE_ROWS);
scratch!(GATE_ROWS);
scratch!(ACTIVATED_ROWS);

/// The queries for some sequences, and the keys and values they attend to.
pub(super) struct MixInput<'a> {
    pub queries: Sequences<'a>,
    pub query: Heads<'a>,
    pub key_value: KeyValue<'a>,
    pub scored: &'a Scored<'a>,
    /// The terms of disentangled attention.
    pub relative: Option<RelativeScores<'a>>,
    /// The gate on the heads' results, before its activation.
    pub gate: Option<(Activation, Heads<'a>)>,
}

/// The visible keys, and the biases on their scores.
pub(super) struct Scored<'a> {
    /// The number of keys in each sequence.
    pub keys: usize,
    /// The key mask, `[batch, keys]`, 1 = keep.
    pub keep: Option<&'a [u8]>,
    pub reach: Reach,
    /// Each sequence's origin in mask and biases, if these have others before it.
    pub origins: Option<&'a [Origin]>,
    /// Added to the scores in this order.
    pub biases: Vec<Bias<'a>>,
}

impl<'a> Scored<'a> {
    /// Returns the part for a range of sequences.
    pub fn part(&self, sequences: Range<usize>) -> Scored<'a> {
        let biases = self.biases.iter();
        Scored {
            keep: self
                .keep
                .map(|keep| &keep[sequences.start * self.keys..sequences.end * self.keys]),
            biases: biases
                .map(|bias| bias.from_sequence(sequences.start))
                .collect(),
            ..*self
        }
    }
}

/// The output's destination, and the CPU to compute on.
pub(super) struct AttentionOutput<'a> {
    pub residual: Option<&'a [f32]>,
    pub y: &'a mut [f32],
    pub cpu: Cpu,
}

impl PackedAttention {
    /// Returns the linear bias (ALiBi), if configured.
    pub(super) fn alibi(
        &self,
        pass: PackedPass,
        keys: (KeySource, usize),
        keep: Option<&Tensor>,
    ) -> Result<Option<Arc<Additive>>> {
        match &self.config.position {
            Position::Alibi(alibi) => {
                let key = ((*alibi, self.config.n_heads), keys);
                pass.alibi(key, keep).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the biases to add to the scores.
    ///
    /// # Errors
    /// If a bias does not broadcast to the scores.
    pub(super) fn biases<'a>(
        &self,
        added: impl IntoIterator<Item = &'a Additive>,
        pass: PackedPass,
        keys: usize,
    ) -> Result<Vec<Bias<'a>>> {
        let lengths = [pass.batch(), self.config.n_heads, pass.seq(), keys];
        let added = added.into_iter();
        added.map(|added| added.checked(lengths)).collect()
    }

    /// Computes attention, applies the output projection, and writes the output.
    pub(super) fn mix(&self, attended: &MixInput, output: AttentionOutput) {
        let config = &self.config;
        let (n_kv_heads, head_dim) = self.attended_heads();
        let shape = Shape {
            queries: attended.queries,
            n_heads: config.n_heads,
            n_kv_heads,
            head_dim,
        };
        let &Scored {
            keys,
            keep,
            reach,
            origins,
            ..
        } = attended.scored;
        let scoring = Scoring {
            scale: config.scale as f32,
            soft_cap: config.soft_cap.map(|cap| cap as f32),
            relative: attended.relative,
            biases: &attended.scored.biases,
            sinks: self.sinks.as_deref(),
            keep,
            reach: &|sequence, query| {
                let padding = origins.map_or(0, |origins| padding_seen(origins[sequence]));
                reach.without(padding).range(query, keys)
            },
            origins,
        };
        let width = config.n_heads * head_dim;
        let (cpu, query, key_value) = (output.cpu, attended.query, attended.key_value);
        let n = shape.queries.n_rows() * width;
        lend(MIXED_ROWS, n, |mixed: &mut [f32]| {
            attend(cpu, self.stored, &shape, &scoring, query, key_value, mixed);
            let Some(latent) = self.latent() else {
                self.multiply_by_gate(cpu, mixed, attended.gate);
                return self.project(mixed, output);
            };
            let (rows, value_dim) = (shape.queries.n_rows(), config.value_dim());
            let n = rows * config.mixed_width();
            lend(VALUE_ROWS, n, |values: &mut [f32]| {
                let mixed = PerHeadRows {
                    data: mixed,
                    head_width: head_dim,
                };
                latent.values.apply(cpu, mixed, values, value_dim);
                self.multiply_by_gate(cpu, values, attended.gate);
                self.project(values, output);
            });
        });
    }

    /// Multiplies the heads' results by `activation(gate)`, if there is a gate. A row has gates for as many equal parts
    /// of it.
    fn multiply_by_gate(&self, cpu: Cpu, mixed: &mut [f32], gate: Option<(Activation, Heads)>) {
        let Some((activation, gate)) = gate else {
            return;
        };
        let (width, n_gates) = (self.config.mixed_width(), self.config.gate_width());
        let n_rows = mixed.len() / width;
        with_activated(cpu, activation, gate, [n_rows, n_gates], |activated| {
            if n_gates == width {
                return rows::elements::multiply(cpu, mixed.into(), activated.into());
            }
            for (part, gate) in mixed.chunks_exact_mut(width / n_gates).zip(activated) {
                part.iter_mut().for_each(|x| *x *= *gate);
            }
        });
    }

    /// Applies the output projection to the results of all heads.
    fn project(&self, mixed: &[f32], output: AttentionOutput) {
        let mixed = Source::new(mixed, self.config.mixed_width());
        let mixed = mixed.with_norm(self.sub_norm.as_ref());
        self.output
            .apply_on(output.cpu, &mixed, output.residual, output.y);
    }
}

/// Runs `work` with the activated columns of `of`, `[n_rows, n_columns]`.
pub(super) fn with_activated<R>(
    cpu: Cpu,
    activation: Activation,
    of: Heads,
    [n_rows, n_columns]: [usize; 2],
    work: impl FnOnce(&[f32]) -> R,
) -> R {
    let n = n_rows * n_columns;
    lend(GATE_ROWS, n, |rows: &mut [f32]| {
        for (i, row) in rows.chunks_exact_mut(n_columns).enumerate() {
            row.copy_from_slice(&of.data[i * of.row_stride + of.offset..][..n_columns]);
        }
        lend(ACTIVATED_ROWS, n, |activated: &mut [f32]| {
            let kernel = activation_kernel(activation);
            kernel.forward(cpu, (&*rows).into(), (&mut *activated).into());
            work(activated)
        })
    })
}
