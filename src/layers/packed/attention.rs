//! Attention with packed projections and without a matrix of scores.

mod groups;
mod head_maps;
mod latent;
mod memory;
mod mix;
mod own;
mod positions;
mod prepare;

use std::{fmt, sync::Arc};

use candle_blocks_kernels::attention::{OperandFormat, PanelShape};
use candle_blocks_kernels::{Cpu, rows::RowNorm, rows::Source, scratch};
use candle_core::{DType, Device, Result, bail};

use self::{latent::PackedLatent, own::Steps, prepare::Turn};
use super::linear::Product;
use super::{Packing, check_evaluation, elements, pass::PackedPass};
use super::{
    cache::{Cached, PackedLayerCache},
    norm::{SpanNorms, row_norm},
};
use crate::config::{AttentionConfig, Precision};
use crate::layers::visit::{PackedTogether, Visit};
use crate::layers::{Attention, LayerCaches, Pass, QueryKeyValue};
use crate::ops::Value;
use positions::Positions;

/// The packed weights of an [`Attention`]. The query, key and value projections form a single weight.
#[derive(Clone)]
pub(crate) struct PackedAttention {
    projections: Projections,
    output: Product,
    norms: Option<SpanNorms>,
    value_norm: Option<RowNorm>,
    positions: Option<Positions>,
    sinks: Option<Vec<f32>>,
    config: AttentionConfig,
    cpu: Cpu,
    /// What queries, keys and values are multiplied in.
    stored: OperandFormat,
}

#[derive(Clone)]
enum Projections {
    /// Self-attention: query, key and value from the input.
    Input(Product),
    /// Self-attention to keys and values of an earlier layer: query from the input.
    Query(Product),
    /// Self-attention to latents.
    Latent(Box<PackedLatent>),
    /// Cross-attention: the query from the input, key and value from an encoder's output.
    Memory { query: Product, key_value: Product },
}

scratch! {
    /// Queries, keys and values of all heads.
    PROJECTED_ROWS
}

scratch! {
    /// What distances add to the scores of all heads.
    RELATIVE_SCORES
}

impl Attention {
    /// Packs the weights of self-attention for inference on the CPU.
    ///
    /// # Errors
    /// If the layer is not on the CPU or is f64, if keys are not computed from the input, or if it is disentangled: what its
    /// distances add is made with the table of its stack.
    pub fn pack(&self, precision: Precision) -> Result<Self> {
        self.packed(&Packing::new(precision)?)
    }

    /// Packs the weights of cross-attention to an encoder's output.
    ///
    /// # Errors
    /// If the layer is not on the CPU or is f64, or if its projections are fused.
    pub fn pack_cross(&self, precision: Precision) -> Result<Self> {
        self.packed_cross(&Packing::new(precision)?)
    }

    pub(super) fn packed(&self, packing: &Packing) -> Result<Self> {
        self.with_packed(PackedAttention::new(packing, self)?)
    }

    pub(super) fn packed_cross(&self, packing: &Packing) -> Result<Self> {
        self.with_packed(PackedAttention::cross(packing, self)?)
    }

    fn with_packed(&self, packed: PackedAttention) -> Result<Self> {
        let mut layer = self.clone();
        layer.packed = Some(Arc::new(packed));
        layer.join_linears();
        Ok(layer)
    }
}

impl PackedAttention {
    fn new(packing: &Packing, attention: &Attention) -> Result<Self> {
        let config = attention.config();
        if config.d_memory != config.d_model {
            bail!(
                "attention: keys are made from vectors of {} and queries from {}; pack it with pack_cross",
                config.d_memory,
                config.d_model
            );
        }
        let projections = match attention.projections() {
            QueryKeyValue::Separate { query, key, value } => {
                let parts = [("query", query), ("key", key), ("value", value)];
                Projections::Input(Product::joined(packing, &parts)?)
            }
            QueryKeyValue::QueryKey { query, key } => {
                // Twice, so that one product makes what attention reads.
                let parts = [("query", query), ("key", key), ("key", key)];
                Projections::Input(Product::joined(packing, &parts)?)
            }
            QueryKeyValue::Fused(fused) => {
                Projections::Input(Product::new(&packing.at("query_key_value"), fused)?)
            }
            QueryKeyValue::Query(query) => {
                Projections::Query(Product::new(&packing.at("query"), query)?)
            }
            QueryKeyValue::Latent(latent) => {
                Projections::Latent(Box::new(PackedLatent::new(packing, attention, latent)?))
            }
        };
        Self::of_projections(packing, attention, projections)
    }

    fn cross(packing: &Packing, attention: &Attention) -> Result<Self> {
        let QueryKeyValue::Separate { query, key, value } = attention.projections() else {
            bail!("cross-attention needs separate projections of query, key and value")
        };
        let projections = Projections::Memory {
            query: Product::new(&packing.at("query"), query)?,
            key_value: Product::joined(packing, &[("key", key), ("value", value)])?,
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
            output: Product::new(&packing.at("output"), attention.output())?,
            norms: attention.norms.as_ref().map(SpanNorms::new).transpose()?,
            value_norm: attention
                .value_norm(DType::F32, &Device::Cpu)?
                .as_ref()
                .map(row_norm)
                .transpose()?,
            positions: Positions::new(packing, attention)?,
            sinks: attention.sinks().map(elements).transpose()?,
            config: attention.config().clone(),
            cpu: packing.cpu,
            stored: packing.stored,
        })
    }

    /// Attention with the pass's mask and positions, for positions after the cached ones: the output for the positions that
    /// the pass requests of the layer that runs, added to `residual`.
    pub fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        cache: Option<&mut LayerCaches>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        check_evaluation(pass.context.train())?;
        let (pass, asked) = (PackedPass(pass), PackedPass(pass.asked()));
        let of = ("attention", self.config.d_model);
        let dims = match pass.seq() == asked.seq() {
            true => x.dims().to_vec(),
            false => vec![asked.batch(), asked.seq(), self.config.d_model],
        };
        let cache = cache.map(|cache| cache.packed(self.config.shared_keys.is_some()));
        let cache = cache.transpose()?;
        x.packed_step(of, dims, residual, |_, x, residual, y| {
            self.apply_rows(x, residual, (pass, asked), cache, y)
        })
    }

    fn apply_rows(
        &self,
        x: &Source,
        residual: Option<&[f32]>,
        (pass, asked): (PackedPass, PackedPass),
        cache: Option<&mut PackedLayerCache>,
        y: &mut [f32],
    ) -> Result<()> {
        let call = Call {
            x,
            residual,
            pass,
            asked,
            y,
        };
        let steps = match &self.projections {
            Projections::Memory { query, key_value } => {
                return self.attend_memory(query, key_value, cache, call);
            }
            Projections::Input(joined) => {
                self.joined_steps(joined, self.config.key_width(), pass)?
            }
            Projections::Query(query) => self.joined_steps(query, 0, pass)?,
            Projections::Latent(latent) => Steps::Latent(latent, self.turning(Turn::Yes, pass)?),
        };
        self.attend_own(steps, cache, call)
    }

    /// The projections through a latent, if there is one.
    fn latent(&self) -> Option<&PackedLatent> {
        match &self.projections {
            Projections::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// The number of heads that queries attend to, and their width: with a latent, it is the one of all.
    fn attended_heads(&self) -> (usize, usize) {
        match self.latent() {
            Some(latent) => (1, latent.config.kept_width()),
            None => (self.config.n_kv_heads, self.config.head_dim),
        }
    }

    /// The shape and number format of what a cache holds for a batch.
    fn panel_shape(&self, batch: usize) -> PanelShape {
        let (n_kv_heads, head_dim) = self.attended_heads();
        PanelShape {
            isa: self.cpu.isa,
            stored: self.stored,
            batch,
            n_kv_heads,
            head_dim,
        }
    }

    /// What a cache holds for a batch.
    pub fn cached(&self, batch: usize) -> Cached {
        match self.latent() {
            Some(_) => Cached::Latents(self.panel_shape(batch)),
            None => Cached::Panels(self.panel_shape(batch)),
        }
    }
}

/// The arguments of a call: input rows, the last step on the output, the pass, that of the output's positions, and the output.
struct Call<'a> {
    x: &'a Source<'a>,
    residual: Option<&'a [f32]>,
    pass: PackedPass<'a>,
    asked: PackedPass<'a>,
    y: &'a mut [f32],
}

impl PackedTogether for PackedAttention {
    fn bytes(&self) -> usize {
        let inputs = match &self.projections {
            Projections::Input(projection) | Projections::Query(projection) => projection.bytes(),
            Projections::Latent(latent) => latent.bytes(),
            Projections::Memory { query, key_value } => query.bytes() + key_value.bytes(),
        };
        inputs + self.output.bytes()
    }
}

impl fmt::Debug for PackedAttention {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedAttention")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
