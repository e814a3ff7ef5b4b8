//! Self-attention.

use std::sync::Arc;

use candle_blocks_kernels::attention::{Heads, KeyValue, KeyValuePanels, Origin, Sequences};
use candle_blocks_kernels::{memory::lend, rows::Source};
use candle_core::{Result, bail};

use super::mix::{AttentionOutput, MixInput, Scored};
use super::prepare::{HeadRotation, Prepare, ProjectedColumns, RotateBy};
use super::{
    AttentionCall, PackedAttention, PackedLatent,
    groups::for_groups,
    positions::{PackedPositions, ProjectedContents},
};
use crate::config::OutputGate;
use crate::layers::linear::packed::PackedProduct;
use crate::layers::packed::pass::PackedPass;
use crate::layers::state::Panels;
use crate::layers::{DistanceRows, KeySource};
use crate::memory::check_pass;
use crate::ops::{Reach, Visible};

/// Self-attention in a pass: the state that all its sequences share.
struct Own<'a> {
    of: &'a PackedAttention,
    steps: ProjectionSteps<'a>,
    /// The number of positions before the pass, and the sequences' origins if padding precedes some.
    seen: (usize, Option<&'a [Origin]>),
    /// The scores by distance, if attention has any.
    positions: Option<(&'a PackedPositions, Arc<DistanceRows>)>,
}

/// The projections from the input to queries, keys and values.
pub(super) enum ProjectionSteps<'a> {
    /// Query, key and value in one projection, or only the query.
    Joined(&'a PackedProduct, ProjectedColumns, Prepare<'a>),
    Latent(&'a PackedLatent, HeadRotation<'a>),
}

/// Rows for some sequences in the pass.
pub(super) struct SequencePart<'a> {
    pub x: Source<'a>,
    /// Added to the joined projections.
    pub added: Option<&'a [f32]>,
    /// The index of the first row in the pass.
    pub first_row: usize,
    /// The rows' positions.
    pub rows: Sequences<'a>,
    /// The positions whose output is requested: all, or each sequence's last.
    pub queries: Sequences<'a>,
    /// The cache with keys and values from earlier positions. New rows are appended.
    pub cache: Option<&'a mut Panels>,
    pub scored: &'a Scored<'a>,
    pub output: AttentionOutput<'a>,
}

impl PackedAttention {
    /// Returns the steps for a projection to queries, and to keys and values with `kv` columns each.
    pub(super) fn joined_steps<'a>(
        &'a self,
        joined: &'a PackedProduct,
        kv: usize,
        pass: PackedPass<'a>,
    ) -> Result<ProjectionSteps<'a>> {
        let q = self.config.query_width();
        let width = joined.d_out();
        let columns = ProjectedColumns { q, kv, width };
        let prepare = self.preparation(columns, RotateBy::Position, pass)?;
        Ok(ProjectionSteps::Joined(joined, columns, prepare))
    }

    /// Computes self-attention for positions after the cached ones.
    pub(super) fn attend_own(
        &self,
        steps: ProjectionSteps,
        cache: Option<&mut Panels>,
        call: AttentionCall,
    ) -> Result<()> {
        let (pass, requested) = (call.pass, call.requested);
        let keys = pass.seen() + pass.seq();
        if let Some(layer) = self.config.shared_keys
            && cache
                .as_deref()
                .is_none_or(|of_layer| of_layer.end() != keys)
        {
            bail!(
                "attention: keys and values come from layer {layer}, which has not run; run the block in its stack"
            );
        }
        let alibi = self.alibi(requested, (KeySource::Input, keys), pass.keep())?;
        let chunks = self.config.chunk.map(|chunk| requested.chunks(chunk));
        let chunks = chunks.transpose()?.flatten();
        let added = requested.added(&self.config)?;
        let scored = Scored {
            keys,
            keep: pass.mask_bytes()?,
            reach: Reach::of(&Visible {
                on_host: None,
                keep: None,
                visibility: self.config.visibility,
                window: self.config.window,
                first_query: requested.seen(),
            }),
            origins: requested.sequences().map(|of| &of.origins[..]),
            biases: self.biases(
                alibi.iter().chain(&chunks).chain(&added).map(Arc::as_ref),
                requested,
                keys,
            )?,
        };
        let own = Own {
            of: self,
            steps,
            seen: (pass.seen(), pass.sequences().map(|of| &of.origins[..])),
            positions: match &self.positions {
                Some(of) => Some((of, pass.distances(&of.distances)?)),
                None => None,
            },
        };
        own.check_memory(&pass, cache.is_some())?;
        match cache {
            None => for_groups(pass.queries(), self.cpu.threads, call.y, |group, y| {
                let rows = group.rows;
                own.apply(SequencePart {
                    x: call.x.part(rows.clone()),
                    added: call.added.map(|added| {
                        let width = added.len() / call.x.rows();
                        &added[rows.start * width..rows.end * width]
                    }),
                    first_row: rows.start,
                    rows: group.queries,
                    queries: group.queries,
                    cache: None,
                    scored: &scored.part(group.sequences),
                    output: AttentionOutput {
                        residual: call.residual.map(|residual| {
                            let width = self.output.d_out();
                            &residual[rows.start * width..rows.end * width]
                        }),
                        y,
                        cpu: self.cpu.on(group.threads),
                    },
                });
            }),
            Some(cache) => {
                cache.computed(keys);
                own.apply(SequencePart {
                    x: *call.x,
                    added: call.added,
                    first_row: 0,
                    rows: pass.queries(),
                    queries: requested.queries(),
                    cache: Some(cache),
                    scored: &scored,
                    output: AttentionOutput {
                        residual: call.residual,
                        y: call.y,
                        cpu: self.cpu,
                    },
                });
            }
        }
        Ok(())
    }
}

impl SequencePart<'_> {
    /// Returns the heads at the requested positions. `data` has rows with `width` columns for all positions.
    pub fn requested<'d>(&self, data: &'d [f32], width: usize) -> Heads<'d> {
        let is_all = self.rows.n_rows() == self.queries.n_rows();
        let each = if is_all { 1 } else { self.rows.longest() };
        Heads {
            data,
            row_stride: each * width,
            offset: (each - 1) * width,
        }
    }
}

impl Own<'_> {
    /// Compares the memory for the longest sequence's projected rows, its cached keys and values, and the threads' packed
    /// keys and values and scores with what the system would give.
    fn check_memory(&self, pass: &PackedPass, is_cached: bool) -> Result<()> {
        /// A task's queries, at most.
        const QUERIES: usize = 128;
        let ProjectionSteps::Joined(_, columns, _) = &self.steps else {
            return Ok(());
        };
        let (queries, keys) = (pass.queries().longest(), pass.seen() + pass.seq());
        let (cached, packed) = match is_cached {
            true => (2 * columns.kv, 0),
            false => (0, 2 * self.of.config.head_dim),
        };
        let in_threads = self.of.cpu.threads * keys * (QUERIES.min(queries) + packed);
        let relative = self.positions.as_ref().map_or(0, |(of, distances)| {
            self.of.cpu.threads * queries * of.n_terms() * distances.range.len()
        });
        let elements = queries * (columns.width + cached) + in_threads + relative;
        Ok(check_pass(elements * size_of::<f32>())?)
    }

    fn apply(&self, part: SequencePart) {
        let (joined, columns, prepare) = match &self.steps {
            ProjectionSteps::Latent(latent, rotation) => {
                return self.of.attend_latents(latent, rotation, part);
            }
            ProjectionSteps::Joined(joined, columns, prepare) => (joined, columns, prepare),
        };
        let &ProjectedColumns { q, kv, width } = columns;
        let cpu = part.output.cpu;
        let n = part.x.rows() * width;
        lend(super::PROJECTED_ROWS, n, |projected: &mut [f32]| {
            joined.apply_on(cpu, &part.x, part.added, projected);
            prepare.rows(cpu, projected, part.first_row);
            let heads = |offset| Heads {
                data: projected,
                row_stride: width,
                offset,
            };
            let (key, value) = (heads(q), heads(q + kv));
            let query = part.requested(projected, width);
            let gate = self
                .of
                .config
                .output_gate
                .map(|OutputGate { activation, .. }| {
                    let mut gate = query;
                    gate.offset += q + 2 * kv;
                    (activation, gate)
                });
            let key_value = match part.cache {
                None => KeyValue::Projected {
                    keys: part.rows,
                    key,
                    value,
                },
                Some(cache) => {
                    let shape = self.of.cache_shape(part.rows.batch());
                    let panels = cache.own(shape, self.seen, self.of.config.window);
                    if kv > 0 {
                        KeyValuePanels::append_all(panels, cpu, part.rows, key, value);
                    }
                    KeyValue::Packed(panels)
                }
            };
            let attended = MixInput {
                queries: part.queries,
                query,
                key_value,
                scored: part.scored,
                relative: None,
                gate,
            };
            let Some((positions, distances)) = &self.positions else {
                return self.of.mix(&attended, part.output);
            };
            let contents = ProjectedContents {
                queries: heads(0),
                keys: heads(q),
                logits: heads(q + 2 * kv),
                n_rows: part.rows.n_rows(),
            };
            positions.with(cpu, distances, contents, &self.of.config, |relative| {
                let attended = MixInput {
                    relative: Some(relative),
                    ..attended
                };
                self.of.mix(&attended, part.output);
            });
        });
    }
}
