//! Attention with packed projections, and no matrix of scores.

use std::{cell::Cell, fmt};

use candle_core::{Result, Tensor, bail};

use super::{
    Packing,
    cache::PackedLayerCache,
    linear::{Finishing, PackedLinear},
    map_rows,
    norm::SpanNorms,
    pass::PackedPass,
    with_elements,
};
use crate::{
    config::{AttentionConfig, Position, Precision, Visibility},
    cpu::{
        attention::{Bias, Heads, KeyValue, KeyValuePanels, Scoring, Shape, attend},
        isa::Isa,
        parallel,
        rotary::rotate_heads,
        scratch::{Aligned, Scratch, lend},
        source::Source,
    },
    layers::{Attention, ForwardContext, QueryKeyValue, batch_and_seq},
    ops::{Reach, Visible},
};

/// An [`Attention`] packed for inference on the CPU; made by [`Attention::pack`] and [`Attention::pack_cross`].
///
/// Query, key and value are one weight.
#[derive(Clone)]
pub struct PackedAttention {
    projections: Projections,
    output: PackedLinear,
    norms: Option<SpanNorms>,
    config: AttentionConfig,
    isa: Isa,
    threads: usize,
}

#[derive(Clone)]
enum Projections {
    /// Query, key and value of the input.
    Input(PackedLinear),
    /// The query of the input, key and value of an encoder's output.
    Memory {
        query: PackedLinear,
        key_value: PackedLinear,
    },
}

thread_local!(static PROJECTED: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static PROJECTED_ROWS: &Scratch<f32> = &PROJECTED;
thread_local!(static MIXED: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) });
static MIXED_ROWS: &Scratch<f32> = &MIXED;

/// Rows whose queries and keys a task normalises and rotates.
const ROWS: usize = 16;

impl Attention {
    /// Packs the weights for attention to the input itself, for inference on the CPU.
    ///
    /// # Errors
    /// If the layer is not on the CPU, or is f64; if keys are not made from the input.
    pub fn pack(&self, precision: Precision) -> Result<PackedAttention> {
        PackedAttention::new(&Packing::new(precision)?, self)
    }

    /// Packs the weights for attention to an encoder's output; errors as [`Self::pack`], or if the projections are
    /// fused.
    pub fn pack_cross(&self, precision: Precision) -> Result<PackedAttention> {
        PackedAttention::cross(&Packing::new(precision)?, self)
    }
}

impl PackedAttention {
    pub(super) fn new(packing: &Packing, attention: &Attention) -> Result<Self> {
        let config = attention.config();
        if config.d_memory != config.d_model {
            bail!(
                "attention: keys are made from vectors of {} and queries from {}; pack it with pack_cross",
                config.d_memory,
                config.d_model
            );
        }
        let joined = match attention.projections() {
            QueryKeyValue::Separate { query, key, value } => {
                PackedLinear::joined(packing, &[query, key, value])?
            }
            QueryKeyValue::Fused(fused) => PackedLinear::new(packing, fused)?,
        };
        Self::of_projections(packing, attention, Projections::Input(joined))
    }

    pub(super) fn cross(packing: &Packing, attention: &Attention) -> Result<Self> {
        let QueryKeyValue::Separate { query, key, value } = attention.projections() else {
            bail!("cross-attention needs separate projections of query, key and value")
        };
        let projections = Projections::Memory {
            query: PackedLinear::new(packing, query)?,
            key_value: PackedLinear::joined(packing, &[key, value])?,
        };
        Self::of_projections(packing, attention, projections)
    }

    fn of_projections(
        packing: &Packing,
        attention: &Attention,
        projections: Projections,
    ) -> Result<Self> {
        Ok(Self {
            projections,
            output: PackedLinear::new(packing, attention.output())?,
            norms: attention.norms().map(SpanNorms::new).transpose()?,
            config: attention.config().clone(),
            isa: packing.isa,
            threads: packing.threads,
        })
    }

    /// Sizes, scale and visibility.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// The memory of the packed weights.
    pub fn bytes(&self) -> usize {
        let inputs = match &self.projections {
            Projections::Input(joined) => joined.bytes(),
            Projections::Memory { query, key_value } => query.bytes() + key_value.bytes(),
        };
        inputs + self.output.bytes()
    }

    /// The output with nothing masked; shapes as [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Attention under the context's mask and positions, or of the context's memory.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same. `[seq, d_model]` is one sequence, `[d_model]` one position.
    ///
    /// # Errors
    /// If the width is not `d_model`, the rank is above 3, a mask does not fit, the context trains, or cross-attention
    /// has no memory; if the input asks for a gradient, is f64 or not on the CPU.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let (batch, seq) = batch_and_seq(x)?;
        let pass = PackedPass::new(context, batch, seq)?;
        let d_model = self.config.d_model;
        map_rows("attention", x, (d_model, d_model), |x, y| {
            parallel::with_team(self.threads, || {
                let x = Source::new(x, d_model);
                self.run(&x, &Finishing::NONE, &pass, None, y)
            })
        })
    }

    /// `y = finishing(attention(x))` in a pass, behind the cached positions.
    pub(super) fn run(
        &self,
        x: &Source,
        finishing: &Finishing,
        pass: &PackedPass,
        cache: Option<&mut PackedLayerCache>,
        y: &mut [f32],
    ) -> Result<()> {
        match &self.projections {
            Projections::Input(joined) => self.attend_input(joined, x, finishing, pass, cache, y),
            Projections::Memory { query, key_value } => {
                self.attend_memory(query, key_value, x, finishing, pass, cache, y)
            }
        }
    }

    fn attend_input(
        &self,
        joined: &PackedLinear,
        x: &Source,
        finishing: &Finishing,
        pass: &PackedPass,
        cache: Option<&mut PackedLayerCache>,
        y: &mut [f32],
    ) -> Result<()> {
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let width = q + 2 * kv;
        lend(PROJECTED_ROWS, x.rows() * width, |projected| {
            joined.run(x, &Finishing::NONE, projected);
            self.prepare(projected, width, Columns { q, kv }, pass)?;
            let heads = |offset| Heads {
                data: projected,
                row_stride: width,
                offset,
            };
            let (key, value) = (heads(q), heads(q + kv));
            let keys = pass.seen + pass.seq;
            let visible = Visible {
                keep: None,
                visibility: self.config.visibility,
                window: self.config.window,
                first_query: pass.seen,
            };
            let key_value = match cache {
                None => KeyValue::Projected { keys, key, value },
                Some(cache) => {
                    let panels = cache.panels(self.isa, pass.batch, &self.config)?;
                    if let Some(window) = self.config.window {
                        panels.drop_before(pass.seen.saturating_sub(window - 1));
                    }
                    panels.append(pass.seq, key, value);
                    KeyValue::Packed(panels)
                }
            };
            let keep = pass.keep(keys)?;
            self.mix(heads(0), key_value, keys, keep, visible, finishing, pass, y)
        })
    }

    #[allow(clippy::too_many_arguments)] // the two weights beside what `run` is given
    fn attend_memory(
        &self,
        query: &PackedLinear,
        key_value: &PackedLinear,
        x: &Source,
        finishing: &Finishing,
        pass: &PackedPass,
        cache: Option<&mut PackedLayerCache>,
        y: &mut [f32],
    ) -> Result<()> {
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let Some(memory) = pass.context.memory() else {
            bail!(
                "cross-attention: no encoder_hidden_states given; see ForwardContext::with_memory"
            )
        };
        let (batch, keys) = batch_and_seq(&memory.hidden_states)?;
        if batch != pass.batch {
            bail!(
                "encoder_hidden_states: a batch of {batch}, expected {}",
                pass.batch
            );
        }
        memory.mask.check(batch, keys)?;
        let keep = memory.mask.keep().map(Tensor::flatten_all).transpose()?;
        let keep = keep.map(|keep| keep.to_vec1::<u8>()).transpose()?;
        let known = cache.as_ref().is_some_and(|cache| cache.memory.is_some());
        let mut of_memory = vec![0.0; if known { 0 } else { batch * keys * 2 * kv }];
        if !known {
            with_elements("cross-attention", &memory.hidden_states, |rows| {
                let rows = Source::new(rows, self.config.d_memory);
                key_value.run(&rows, &Finishing::NONE, &mut of_memory);
                Ok(())
            })?;
            self.prepare(&mut of_memory, 2 * kv, Columns { q: 0, kv }, pass)?;
        }
        let heads = |offset| Heads {
            data: &of_memory,
            row_stride: 2 * kv,
            offset,
        };
        let (key, value) = (heads(0), heads(kv));
        let key_value = match cache {
            None => KeyValue::Projected { keys, key, value },
            Some(cache) => {
                let (isa, config) = (self.isa, &self.config);
                KeyValue::Packed(cache.memory.get_or_insert_with(|| {
                    let mut panels =
                        KeyValuePanels::new(isa, batch, config.n_kv_heads, config.head_dim);
                    panels.append(keys, key, value);
                    panels
                }))
            }
        };
        lend(PROJECTED_ROWS, x.rows() * q, |projected| {
            query.run(x, &Finishing::NONE, projected);
            self.prepare(projected, q, Columns { q, kv: 0 }, pass)?;
            let query = Heads {
                data: projected,
                row_stride: q,
                offset: 0,
            };
            let visible = Visible::default();
            self.mix(
                query,
                key_value,
                keys,
                keep.as_deref(),
                visible,
                finishing,
                pass,
                y,
            )
        })
    }

    /// Clips projections, and normalises and rotates their queries and keys.
    fn prepare(
        &self,
        projected: &mut [f32],
        width: usize,
        columns: Columns,
        pass: &PackedPass,
    ) -> Result<()> {
        let Columns { q, kv } = columns;
        let is_cross = matches!(self.projections, Projections::Memory { .. });
        let tables = match &self.config.position {
            Position::Rotary(rotary) if !is_cross => {
                Some((pass.rotary_tables(rotary)?, rotary.pairing))
            }
            _ => None,
        };
        if self.config.clip.is_none() && self.norms.is_none() && tables.is_none() {
            return Ok(());
        }
        parallel::for_chunks(projected, ROWS * width, |start, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                if let Some(clip) = self.config.clip {
                    let clip = clip as f32;
                    row.iter_mut().for_each(|x| *x = x.clamp(-clip, clip));
                }
                if let Some(norms) = &self.norms {
                    norms.query(self.isa, &mut row[..q]);
                    norms.key(self.isa, &mut row[q..q + kv]);
                }
                if let Some((tables, pairing)) = &tables {
                    let (cos, sin) = tables.row(start / width + i);
                    let turned = &mut row[..q + kv];
                    rotate_heads(
                        self.isa,
                        turned,
                        self.config.head_dim,
                        cos,
                        sin,
                        (*pairing).into(),
                    );
                }
            }
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // all that attention depends on
    fn mix(
        &self,
        query: Heads,
        key_value: KeyValue,
        keys: usize,
        keep: Option<&[u8]>,
        visible: Visible,
        finishing: &Finishing,
        pass: &PackedPass,
        y: &mut [f32],
    ) -> Result<()> {
        let config = &self.config;
        let shape = Shape {
            batch: pass.batch,
            queries: pass.seq,
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        };
        let is_cross = matches!(self.projections, Projections::Memory { .. });
        let mut biases: Vec<Bias> = Vec::new();
        let alibi = match &config.position {
            Position::Alibi(alibi) => Some(pass.alibi(alibi, config.n_heads, keys)?),
            _ => None,
        };
        biases.extend(alibi.as_ref().map(|bias| bias.as_bias()));
        let lengths = [shape.batch, shape.n_heads, shape.queries, keys];
        let additive = if is_cross {
            let memory = pass.context.memory();
            let mask = memory.and_then(|memory| memory.mask.additive());
            mask.map(super::pass::Additive::new)
                .transpose()?
                .into_iter()
                .collect()
        } else {
            pass.additive.clone()
        };
        for bias in &additive {
            biases.push(bias.checked(lengths)?);
        }
        let reach = Reach::of(&visible);
        let scoring = Scoring {
            scale: config.scale as f32,
            soft_cap: config.soft_cap.map(|cap| cap as f32),
            biases: &biases,
            keep,
            reach: &|query| reach.range(query, keys),
        };
        let rows = shape.batch * shape.queries;
        lend(MIXED_ROWS, rows * config.query_width(), |mixed| {
            attend(
                self.isa,
                &shape,
                &scoring,
                query,
                key_value,
                mixed,
                self.threads,
            );
            let mixed = Source::new(mixed, config.query_width());
            self.output.run(&mixed, finishing, y);
        });
        Ok(())
    }

    /// Whether later positions are unseen, so that a cache may serve.
    pub(super) fn is_causal(&self) -> bool {
        self.config.visibility == Visibility::Causal
    }
}

/// The columns of queries and of keys in projected rows.
#[derive(Clone, Copy)]
struct Columns {
    q: usize,
    kv: usize,
}

impl fmt::Debug for PackedAttention {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedAttention")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
