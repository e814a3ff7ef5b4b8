//! Norms of queries and keys, applied before the rotary embedding.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::{
    config::{AttentionConfig, NormConfig, QueryKeyNormSpan},
    layers::Norm,
};

/// A norm for queries and one for keys (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>).
#[derive(Clone, Debug)]
pub struct QueryKeyNorms {
    query: SpanNorm,
    key: SpanNorm,
}

/// A norm over one of the spans of [`QueryKeyNormSpan`].
#[derive(Clone, Debug)]
enum SpanNorm {
    /// Over each head, or over all together: the norm's width says which.
    Shared(Norm),
    /// Over each head, then times that head's own weight `[head_dim]`.
    EachHead { unit: Norm, weights: Vec<Tensor> },
}

impl QueryKeyNorms {
    /// Takes `query_norm` and `key_norm` from `vb`, if the configuration has them.
    pub(super) fn new(config: &AttentionConfig, vb: &VarBuilder) -> Result<Option<Self>> {
        let Some(norms) = config.query_key_norm else {
            return Ok(None);
        };
        let norm = |name: &str, n_heads: usize| -> Result<SpanNorm> {
            let vb = vb.pp(name);
            let with_width = |d_model| NormConfig {
                d_model,
                ..norms.norm
            };
            match norms.span {
                QueryKeyNormSpan::Head => Ok(SpanNorm::Shared(Norm::new(
                    &with_width(config.head_dim),
                    vb,
                )?)),
                QueryKeyNormSpan::Whole => Ok(SpanNorm::Shared(Norm::new(
                    &with_width(n_heads * config.head_dim),
                    vb,
                )?)),
                QueryKeyNormSpan::EachHead => {
                    let init = Init::Const(1.0);
                    let weight = |head| vb.pp(head).get_with_hints(config.head_dim, "weight", init);
                    let weights = (0..n_heads).map(weight).collect::<Result<Vec<_>>>()?;
                    let unit = Tensor::ones(config.head_dim, vb.dtype(), vb.device())?;
                    let unit_config = with_width(config.head_dim).with_bias(false);
                    let unit = Norm::from_parts(unit, None, unit_config)?;
                    Ok(SpanNorm::EachHead { unit, weights })
                }
            }
        };
        Ok(Some(Self {
            query: norm("query_norm", config.n_heads)?,
            key: norm("key_norm", config.n_kv_heads)?,
        }))
    }

    /// The norms of a row's queries, span by span; one for all where they share it.
    pub(crate) fn query_spans(&self) -> Result<Vec<Norm>> {
        self.query.spans()
    }

    /// As [`Self::query_spans`], of keys.
    pub(crate) fn key_spans(&self) -> Result<Vec<Norm>> {
        self.key.spans()
    }

    /// Of queries `[.., n_heads · head_dim]`, to the same.
    pub(super) fn query(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        self.query.forward(x, n_heads)
    }

    /// Of keys `[.., n_kv_heads · head_dim]`, to the same.
    pub(super) fn key(&self, x: &Tensor, n_kv_heads: usize) -> Result<Tensor> {
        self.key.forward(x, n_kv_heads)
    }
}

impl SpanNorm {
    fn spans(&self) -> Result<Vec<Norm>> {
        match self {
            Self::Shared(norm) => Ok(vec![norm.clone()]),
            Self::EachHead { unit, weights } => weights
                .iter()
                .map(|weight| Norm::from_parts(weight.clone(), None, *unit.config()))
                .collect(),
        }
    }

    fn forward(&self, x: &Tensor, n_heads: usize) -> Result<Tensor> {
        let width = match self {
            Self::Shared(norm) => norm.config().d_model,
            Self::EachHead { unit, .. } => unit.config().d_model,
        };
        let spans = x.reshape((x.elem_count() / width, width))?;
        let normal = match self {
            Self::Shared(norm) => norm.in_dtype(x.dtype())?.forward(&spans)?,
            Self::EachHead { unit, weights } => {
                let normal = unit.in_dtype(x.dtype())?.forward(&spans)?;
                let weight = Tensor::stack(weights, 0)?.to_dtype(x.dtype())?; // [n_heads, head_dim]
                normal
                    .reshape((x.elem_count() / (n_heads * width), n_heads, width))?
                    .broadcast_mul(&weight)?
            }
        };
        normal.reshape(x.shape())
    }
}
