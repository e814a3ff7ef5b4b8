//! Attention to latents. Each head's query is projected to the latents, and the weighted sum of latents to the head's
//! value.
//!
//! With `[kₕ, vₕ] = [Kₕ, Vₕ]·c` for a latent `c`, `qₕ·kₕ = (Kₕᵀ·qₕ)·c` and `Σ pᵢ·vₕᵢ = Vₕ·Σ pᵢ·cᵢ` (DeepSeek-V2,
//! section 2.1.2, <https://arxiv.org/abs/2405.04434>). So all heads attend to the same vectors: the latents, followed
//! by the shared keys. Expanding a cache's latents to keys and values would take `rank` multiplications for each
//! value, in each decoding step. With DeepSeek-V2-Lite's attention (16 heads, latents with 512 values), f32, on 2
//! cores of an AMD EPYC, that is 13 ms for 512 positions, where a whole step takes 1.2 ms this way. A whole sequence
//! uses the same method, for the same bits; 2048 positions take 1.4 times as long as attention with separate keys and
//! values for each head.

use candle_blocks_kernels::attention::{Heads, KeyValue, Sequences};
use candle_blocks_kernels::rows::{RowNorm, Source};
use candle_blocks_kernels::{Cpu, memory::lend, scratch, threads};
use candle_core::{Result, bail};

use super::head_maps::{HeadMaps, PerHeadRows};
use super::mix::MixInput;
use super::own::SequencePart;
use super::prepare::HeadRotation;
use super::{PROJECTED_ROWS, PackedAttention};
use crate::config::{Activation, LatentConfig};
use crate::layers::linear::packed::{PackedProduct, whole_weight};
use crate::layers::norm::packed::row_norm;
use crate::layers::packed::Packing;
use crate::layers::{Attention, LatentProjections};

/// Packed projections through latents.
#[derive(Clone)]
pub(super) struct PackedLatent {
    query_latent: Option<(PackedProduct, RowNorm)>,
    query: PackedProduct,
    latent: PackedProduct,
    latent_norm: RowNorm,
    /// `Kₕᵀ`, the projections from queries to latents.
    keys: HeadMaps,
    /// `Vₕ`, the projections from latents to values.
    pub values: HeadMaps,
    gate: Option<(Activation, PackedProduct)>,
    pub config: LatentConfig,
}

scratch! {
    /// Queries projected to the latents.
    MAPPED_ROWS
}
scratch! {
    /// A cache's latents, in f32.
    CACHED_ROWS
}

/// The number of rows per task.
const ROWS: usize = 16;

impl PackedLatent {
    pub fn new(packing: &Packing, attention: &Attention, of: &LatentProjections) -> Result<Self> {
        let whole = attention.config();
        let Some(config) = whole.latent else {
            bail!(
                "attention: the projections go through a latent, but the configuration has no latent"
            )
        };
        let plain = whole.head_dim - config.rotary_dim;
        let weight = whole_weight(&packing.at("key_value"), &of.key_value)?;
        let heads = (whole.n_heads, plain + config.value_dim, config.rank);
        let heads = weight.reshape(heads)?;
        let keys = heads.narrow(1, 0, plain)?.transpose(1, 2)?;
        let values = heads.narrow(1, plain, config.value_dim)?;
        let query_latent = of.query_latent.as_ref();
        let query_latent = query_latent.map(|(linear, norm)| -> Result<_> {
            let linear = PackedProduct::new(&packing.at("query_latent"), linear)?;
            Ok((linear, row_norm(norm)?))
        });
        let gate = whole.output_gate.zip(attention.gate());
        let gate = gate.map(|(of, linear)| -> Result<_> {
            Ok((
                of.activation,
                PackedProduct::new(&packing.at("gate"), linear)?,
            ))
        });
        Ok(Self {
            query_latent: query_latent.transpose()?,
            query: PackedProduct::new(&packing.at("query"), &of.query)?,
            latent: PackedProduct::new(&packing.at("latent"), &of.latent)?,
            latent_norm: row_norm(&of.latent_norm)?,
            keys: HeadMaps::new(packing, &keys)?,
            values: HeadMaps::new(packing, &values)?,
            gate: gate.transpose()?,
            config,
        })
    }

    pub fn bytes(&self) -> usize {
        let query_latent = self.query_latent.as_ref();
        let query_latent = query_latent.map_or(0, |(linear, _)| linear.bytes());
        let maps = self.keys.bytes() + self.values.bytes();
        let gate = self.gate.as_ref().map_or(0, |(_, gate)| gate.bytes());
        query_latent + self.query.bytes() + self.latent.bytes() + maps + gate
    }

    /// Computes queries `[rows, n_heads · head_dim]`, before the rotation.
    fn project_queries(&self, cpu: Cpu, x: &Source, query: &mut [f32]) {
        let Some((to_latent, norm)) = &self.query_latent else {
            return self.query.apply_on(cpu, x, None, query);
        };
        let rank = to_latent.d_out();
        lend(MAPPED_ROWS, x.rows() * rank, |latents: &mut [f32]| {
            to_latent.apply_on(cpu, x, None, latents);
            let latents = Source::new(latents, rank).with_norm(Some(norm));
            self.query.apply_on(cpu, &latents, None, query);
        });
    }

    /// Computes the latents followed by the shared keys. The first row is row `first_row` of the pass.
    fn project_latents(
        &self,
        cpu: Cpu,
        part: (&Source, usize),
        rotation: &HeadRotation,
        latents: &mut [f32],
    ) {
        let (x, first_row) = part;
        let width = self.config.kept_width();
        self.latent.apply_on(cpu, x, None, latents);
        let n_threads = threads::threads_for(latents.len(), cpu.threads);
        threads::for_chunks(n_threads, latents, ROWS * width, |start, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let (latent, shared) = row.split_at_mut(self.config.rank);
                self.latent_norm.row_in_place(cpu.isa, latent);
                rotation.rotate(cpu.isa, first_row + start / width + i, shared, shared.len());
            }
        });
    }

    /// Projects each head's query to the latents, and rotates its part for the shared keys.
    fn map_queries(
        &self,
        cpu: Cpu,
        query: &[f32],
        head_dim: usize,
        rotation: &HeadRotation,
        first_row: usize,
        mapped: &mut [f32],
    ) {
        let LatentConfig {
            rank, rotary_dim, ..
        } = self.config;
        let (width, plain) = (rank + rotary_dim, head_dim - rotary_dim);
        let head_rows = PerHeadRows {
            data: query,
            head_width: head_dim,
        };
        self.keys.apply(cpu, head_rows, mapped, width);
        let n_heads = self.keys.n_heads();
        let n_threads = threads::threads_for(mapped.len(), cpu.threads);
        threads::for_chunks(n_threads, mapped, ROWS * n_heads * width, |start, heads| {
            for (i, head) in heads.chunks_exact_mut(width).enumerate() {
                let at = start / width + i;
                let rotated_part = &mut head[rank..];
                rotated_part.copy_from_slice(&query[at * head_dim + plain..][..rotary_dim]);
                rotation.rotate(cpu.isa, first_row + at / n_heads, rotated_part, rotary_dim);
            }
        });
    }
}

impl PackedAttention {
    /// Computes attention for some sequences to their own latents, and to those in a cache if there is one.
    pub(super) fn attend_latents(
        &self,
        latent: &PackedLatent,
        rotation: &HeadRotation,
        part: SequencePart,
    ) {
        let (cpu, rows) = (part.output.cpu, part.x.rows());
        let (q, width) = (self.config.query_width(), latent.config.kept_width());
        let n_gates = self.config.gate_width();
        let n = rows * (q + width + n_gates);
        lend(PROJECTED_ROWS, n, |memory: &mut [f32]| {
            let (query, memory) = memory.split_at_mut(rows * q);
            let (latents, gates) = memory.split_at_mut(rows * width);
            let gate = latent.gate.as_ref().map(|(activation, gate)| {
                gate.apply_on(cpu, &part.x, None, gates);
                (*activation, part.requested(gates, n_gates))
            });
            latent.project_queries(cpu, &part.x, query);
            for (i, row) in query.chunks_exact_mut(q).enumerate() {
                rotation.temper(cpu.isa, part.first_row + i, row, self.config.head_dim);
            }
            latent.project_latents(cpu, (&part.x, part.first_row), rotation, latents);
            let n = rows * self.config.n_heads * width;
            lend(MAPPED_ROWS, n, |mapped: &mut [f32]| {
                latent.map_queries(
                    cpu,
                    query,
                    self.config.head_dim,
                    rotation,
                    part.first_row,
                    mapped,
                );
                self.attend_projected(mapped, latents, gate, part);
            });
        });
    }

    /// Attends with projected queries to the latents at their own positions and in the cache.
    fn attend_projected(
        &self,
        mapped: &[f32],
        latents: &[f32],
        gate: Option<(Activation, Heads)>,
        part: SequencePart,
    ) {
        let (_, width) = self.attended_heads();
        let (cpu, batch) = (part.output.cpu, part.rows.batch());
        let query = part.requested(mapped, self.config.n_heads * width);
        let attend = |keys: Sequences, latents: &[f32]| {
            let (key, value) = (heads(latents, width), heads(latents, width));
            let attended = MixInput {
                queries: part.queries,
                query,
                key_value: KeyValue::Projected { keys, key, value },
                scored: part.scored,
                relative: None,
                gate,
            };
            self.mix(&attended, part.output);
        };
        let Some(cache) = part.cache else {
            return attend(part.rows, latents);
        };
        let cached = cache.latents(self.cache_shape(batch));
        cached.append(latents, part.rows);
        lend(CACHED_ROWS, cached.len(), |all: &mut [f32]| {
            cached.copy_to(cpu, all);
            let starts = cached.starts();
            attend(Sequences::Ragged { starts: &starts }, all);
        });
    }
}

/// Returns heads that lie side by side, in rows with `row_stride` columns.
fn heads(data: &[f32], row_stride: usize) -> Heads<'_> {
    Heads {
        data,
        row_stride,
        offset: 0,
    }
}
