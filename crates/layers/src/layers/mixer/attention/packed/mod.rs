//! Attention with packed projections, without a matrix of scores.

mod cross;
mod groups;
mod head_maps;
mod latent;
mod mix;
mod own;
mod positions;
mod prepare;

use std::{fmt, sync::Arc};

use candle_blocks_kernels::attention::{OperandFormat, PanelShape};
use candle_blocks_kernels::{Cpu, rows::RowNorm, rows::Source, scratch};
use candle_core::{DType, Device, Result, bail};

use self::{latent::PackedLatent, own::ProjectionSteps, prepare::RotateBy};
use super::gated_bias::BiasGate;
use crate::config::{AttentionConfig, Precision};
use crate::layers::linear::packed::PackedProduct;
use crate::layers::norm::packed::{SpanNorms, row_norm};
use crate::layers::packed::{
    Packing, check_evaluation, elements, pass::PackedPass, with_elements, with_last,
};
use crate::layers::state::{CacheShape, Cached, EncoderState, LayerState, OwnRows, Panels};
use crate::layers::visit::{PackedTogether, Visit};
use crate::layers::{Attention, Linear, Pass, QueryKeyValue};
use crate::ops::Value;
use positions::PackedPositions;

/// The packed weights of an [`Attention`]. The query, key and value projections form a single weight.
#[derive(Clone)]
pub(crate) struct PackedAttention {
    projections: Projections,
    /// Applied to the rows that `output` reads.
    sub_norm: Option<RowNorm>,
    output: PackedProduct,
    norms: Option<SpanNorms>,
    value_norm: Option<RowNorm>,
    positions: Option<PackedPositions>,
    sinks: Option<Vec<f32>>,
    config: AttentionConfig,
    cpu: Cpu,
    /// The format in which queries, keys and values are multiplied.
    stored: OperandFormat,
}

#[derive(Clone)]
enum Projections {
    /// Self-attention: query, key, value and the gates, if there are any, are projected from the input.
    Input(PackedProduct),
    /// Self-attention to an earlier layer's keys and values: only the query is projected.
    Query(PackedProduct),
    /// Self-attention to latents.
    Latent(Box<PackedLatent>),
    /// Cross-attention: the query is projected from the input, key and value from the encoder output.
    Cross {
        query: PackedProduct,
        key_value: PackedProduct,
    },
}

scratch! {
    /// Queries, keys and values of all heads.
    PROJECTED_ROWS
}

impl Attention {
    /// Packs the weights of self-attention for inference on the CPU.
    ///
    /// # Errors
    /// If the layer is not on the CPU or is f64, if the keys are not computed from the input, or if the attention reads its
    /// stack's relative embeddings.
    pub fn pack(&self, precision: Precision) -> Result<Self> {
        Packing::whole(precision, |packing| self.packed(packing))
    }

    /// Packs the weights of cross-attention for inference on the CPU.
    ///
    /// # Errors
    /// If the layer is not on the CPU or is f64, or if its projections are fused.
    pub fn pack_cross(&self, precision: Precision) -> Result<Self> {
        Packing::whole(precision, |packing| self.packed_cross(packing))
    }

    pub(crate) fn packed(&self, packing: &Packing) -> Result<Self> {
        self.with_packed(PackedAttention::new(packing, self)?)
    }

    pub(in crate::layers) fn packed_cross(&self, packing: &Packing) -> Result<Self> {
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
        if config.d_encoder != config.d_model {
            bail!(
                "attention: keys are computed from inputs of width {}, but queries from width {}; pack the layer with pack_cross",
                config.d_encoder,
                config.d_model
            );
        }
        let bias_gate = attention.bias_gate.as_ref().map(BiasGate::of_all_heads);
        let bias_gate = bias_gate.transpose()?;
        let gates = [
            ("gate", attention.gate()),
            ("position_gate", bias_gate.as_ref()),
        ];
        let joined = |parts: &[(&str, &Linear)]| {
            let gates = gates.iter().filter_map(|&(role, gate)| Some((role, gate?)));
            let parts: Vec<_> = parts.iter().copied().chain(gates).collect();
            PackedProduct::joined(packing, &parts).map(Projections::Input)
        };
        let projections = match attention.projections() {
            QueryKeyValue::Separate { query, key, value } => {
                joined(&[("query", query), ("key", key), ("value", value)])?
            }
            // The keys are values too.
            QueryKeyValue::QueryKey { query, key } => {
                joined(&[("query", query), ("key", key), ("key", key)])?
            }
            QueryKeyValue::Fused(fused) => joined(&[("query_key_value", fused)])?,
            QueryKeyValue::Query(query) => {
                Projections::Query(PackedProduct::new(&packing.at("query"), query)?)
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
        let projections = Projections::Cross {
            query: PackedProduct::new(&packing.at("query"), query)?,
            key_value: PackedProduct::joined(packing, &[("key", key), ("value", value)])?,
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
            sub_norm: attention.sub_norm().map(row_norm).transpose()?,
            output: PackedProduct::new(&packing.at("output"), attention.output())?,
            norms: attention.norms.as_ref().map(SpanNorms::new).transpose()?,
            value_norm: attention
                .value_norm(DType::F32, &Device::Cpu)?
                .as_ref()
                .map(row_norm)
                .transpose()?,
            positions: PackedPositions::new(packing, attention)?,
            sinks: attention.sinks().map(elements).transpose()?,
            config: attention.config().clone(),
            cpu: packing.cpu,
            stored: packing.stored,
        })
    }

    /// Computes attention with the pass's mask and positions, for positions after the cached ones. The output covers
    /// the positions requested from the current layer, and is added to `residual`. `added` is added to the joined
    /// projections of the input.
    pub fn apply(
        &self,
        x: &Value,
        added: Option<&Value>,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let own = state.map(LayerState::as_panels).transpose()?;
        let Some(added) = added else {
            return self.step(x, None, pass, residual, (own, None));
        };
        with_elements("attention", &added.clone().tensor()?, |added| {
            self.step(x, Some(added), pass, residual, (own, None))
        })
    }

    /// Computes attention to the encoder output, whose keys and values `state` keeps, and adds it to `residual`.
    pub fn apply_cross(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut EncoderState>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        self.step(x, None, pass, residual, (None, state))
    }

    fn step(
        &self,
        x: &Value,
        added: Option<&[f32]>,
        pass: &Pass,
        residual: Option<&Value>,
        states: (Option<&mut Panels>, Option<&mut EncoderState>),
    ) -> Result<Value> {
        check_evaluation(pass.context.train())?;
        let (pass, requested) = (PackedPass(pass), PackedPass(pass.requested()));
        let d_in = self.config.d_model;
        let dims = match pass.seq() == requested.seq() {
            true => with_last(x.dims().to_vec(), self.output.d_out()),
            false => vec![requested.batch(), requested.seq(), self.output.d_out()],
        };
        x.packed_step("attention", d_in, dims, residual, |_, x, residual, y| {
            let call = AttentionCall {
                x,
                added,
                residual,
                pass,
                requested,
                y,
            };
            self.attend(call, states)
        })
    }

    fn attend(
        &self,
        call: AttentionCall,
        (own, encoder): (Option<&mut Panels>, Option<&mut EncoderState>),
    ) -> Result<()> {
        let pass = call.pass;
        let steps = match &self.projections {
            Projections::Cross { query, key_value } => {
                return self.attend_cross(query, key_value, encoder, call);
            }
            Projections::Input(joined) => {
                self.joined_steps(joined, self.config.key_width(), pass)?
            }
            Projections::Query(query) => self.joined_steps(query, 0, pass)?,
            Projections::Latent(latent) => {
                ProjectionSteps::Latent(latent, self.rotation(RotateBy::Position, pass)?)
            }
        };
        self.attend_own(steps, own, call)
    }

    /// Returns the projections through a latent, if the layer has them.
    fn latent(&self) -> Option<&PackedLatent> {
        match &self.projections {
            Projections::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// Returns the number and width of the heads that queries attend to. With a latent, all queries attend to one
    /// head.
    fn attended_heads(&self) -> (usize, usize) {
        match self.latent() {
            Some(latent) => (1, latent.config.kept_width()),
            None => (self.config.n_kv_heads, self.config.head_dim),
        }
    }

    /// Returns the shape and number format of a cache for a batch.
    fn cache_shape(&self, batch: usize) -> CacheShape {
        let (n_kv_heads, head_dim) = self.attended_heads();
        let sequence = PanelShape {
            isa: self.cpu.isa,
            stored: self.stored,
            n_kv_heads,
            head_dim,
        };
        CacheShape { batch, sequence }
    }

    /// Returns the form of a cache for a batch.
    pub fn own_rows(&self, batch: usize) -> OwnRows {
        OwnRows {
            cached: self.cached(batch),
            cpu: self.cpu,
        }
    }

    /// Returns the kind and shape of a cache for a batch.
    pub fn cached(&self, batch: usize) -> Cached {
        match self.latent() {
            Some(_) => Cached::Latents(self.cache_shape(batch)),
            None => Cached::Panels(self.cache_shape(batch)),
        }
    }
}

/// A call's arguments: input rows, additions, residual, pass, the pass for requested positions, and output.
struct AttentionCall<'a> {
    x: &'a Source<'a>,
    /// Added to the joined projections.
    added: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
    pass: PackedPass<'a>,
    requested: PackedPass<'a>,
    y: &'a mut [f32],
}

impl PackedTogether for PackedAttention {
    fn bytes(&self) -> usize {
        let inputs = match &self.projections {
            Projections::Input(projection) | Projections::Query(projection) => projection.bytes(),
            Projections::Latent(latent) => latent.bytes(),
            Projections::Cross { query, key_value } => query.bytes() + key_value.bytes(),
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
