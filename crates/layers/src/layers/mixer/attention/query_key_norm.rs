//! Norms for queries and keys, before or after the rotary embedding.

use candle_core::{Result, Tensor};

use crate::config::{AttentionConfig, NormConfig, NormWeight, QueryKeyNormSpan};
use crate::layers::ParameterSource;
use crate::{layers::Norm, ops::Value};

/// A norm for queries and one for keys (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>), over the spans of
/// [`QueryKeyNormSpan`].
#[derive(Clone, Debug)]
pub(crate) struct QueryKeyNorms {
    /// One norm for all spans of a row, or one for each head.
    pub query: Vec<Norm>,
    /// The norms for keys, in the same form. Empty if the keys are those of an earlier layer.
    pub key: Vec<Norm>,
}

impl QueryKeyNorms {
    /// Creates `query_norm` and `key_norm` from `vb`, if configured. With one norm per head, the names are
    /// `query_norm.{head}` and `key_norm.{head}`.
    pub(super) fn new(config: &AttentionConfig, vb: &ParameterSource) -> Result<Option<Self>> {
        let Some(norms) = config.query_key_norm else {
            return Ok(None);
        };
        let get = |name: &str, n_heads: usize| -> Result<Vec<Norm>> {
            let vb = vb.pp(name);
            let norm_of_width = |d_model| NormConfig {
                d_model,
                ..norms.norm
            };
            let head_norm = norm_of_width(config.head_dim);
            match norms.span {
                QueryKeyNormSpan::Head => Ok(vec![Norm::new(&head_norm, vb)?]),
                QueryKeyNormSpan::Whole => {
                    let whole = norm_of_width(n_heads * config.head_dim);
                    Ok(vec![Norm::new(&whole, vb)?])
                }
                QueryKeyNormSpan::EachHead => (0..n_heads)
                    .map(|head| Norm::new(&head_norm, vb.pp(head)))
                    .collect(),
            }
        };
        let key = match config.shared_keys {
            Some(_) => vec![],
            None => get("key_norm", config.n_kv_heads)?,
        };
        Ok(Some(Self {
            query: get("query_norm", config.n_heads)?,
            key,
        }))
    }
}

/// Normalizes each span of projected queries or keys.
pub(super) fn normalized(norms: &[Norm], x: &Value) -> Result<Value> {
    let (dims, config) = (x.dims().to_vec(), *norms[0].config());
    let rows = dims.iter().product::<usize>() / config.d_model.max(1);
    let spans = x.reshape(vec![rows, config.d_model])?;
    if let [norm] = norms {
        return norm.in_dtype(x.dtype())?.apply(&spans)?.reshape(dims);
    }
    // One pass over all heads without weights, then each head's own weights.
    let unit = config.with_weight(NormWeight::Absent).with_bias(false);
    let unit = Norm::from_parts(norms[0].weight().clone(), None, unit)?;
    let normal = unit.in_dtype(x.dtype())?.apply(&spans)?.reshape(dims)?;
    let joined = |parameters: Vec<&Tensor>| Tensor::cat(&parameters, 0)?.to_dtype(x.dtype());
    let weights = || joined(norms.iter().map(Norm::weight).collect()); // [heads · head_dim]
    let scaled = match config.weight {
        NormWeight::Absent => normal,
        NormWeight::Plain => normal.multiply_rows(&weights()?)?,
        NormWeight::OnePlus => normal.multiply_rows(&(weights()? + 1.0)?)?,
    };
    let biases: Vec<&Tensor> = norms.iter().filter_map(Norm::bias).collect();
    match biases.is_empty() {
        true => Ok(scaled),
        false => scaled.add_to_rows(&joined(biases)?),
    }
}
