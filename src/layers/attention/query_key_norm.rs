//! Norms of queries and keys, applied before the rotary embedding or after it.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::config::{AttentionConfig, NormConfig, NormWeight, QueryKeyNormSpan};
use crate::{layers::Norm, ops::Value};

/// A norm for queries and one for keys (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>), over the spans of
/// [`QueryKeyNormSpan`].
#[derive(Clone, Debug)]
pub struct QueryKeyNorms {
    /// One norm for all spans of a row, or one for each head.
    query: Vec<Norm>,
    key: Vec<Norm>,
}

impl QueryKeyNorms {
    /// Builds the norms from those of queries and those of keys: a single one, `[head_dim]` or as wide as all heads
    /// together, or one of `[head_dim]` for each head. [`Attention::from_parts`](crate::Attention::from_parts) takes them.
    ///
    /// # Errors
    /// If there is no norm, or norms of one list differ in their configuration.
    pub fn from_parts(query: Vec<Norm>, key: Vec<Norm>) -> Result<Self> {
        check_alike("queries", &query)?;
        check_alike("keys", &key)?;
        Ok(Self { query, key })
    }

    /// Norms of queries alone, of attention to the keys of an earlier layer; errors as for [`Self::from_parts`].
    pub fn of_queries(query: Vec<Norm>) -> Result<Self> {
        check_alike("queries", &query)?;
        Ok(Self { query, key: vec![] })
    }

    /// Gets `query_norm` and `key_norm` from `vb`, if the configuration has them; with one norm per head,
    /// `query_norm.{head}` and `key_norm.{head}`.
    pub(super) fn new(config: &AttentionConfig, vb: &VarBuilder) -> Result<Option<Self>> {
        let Some(norms) = config.query_key_norm else {
            return Ok(None);
        };
        let get = |name: &str, n_heads: usize| -> Result<Vec<Norm>> {
            let vb = vb.pp(name);
            let of_width = |d_model| NormConfig {
                d_model,
                ..norms.norm
            };
            let of_head = of_width(config.head_dim);
            match norms.span {
                QueryKeyNormSpan::Head => Ok(vec![Norm::new(&of_head, vb)?]),
                QueryKeyNormSpan::Whole => {
                    let whole = of_width(n_heads * config.head_dim);
                    Ok(vec![Norm::new(&whole, vb)?])
                }
                QueryKeyNormSpan::EachHead => (0..n_heads)
                    .map(|head| Norm::new(&of_head, vb.pp(head)))
                    .collect(),
            }
        };
        let query = get("query_norm", config.n_heads)?;
        if config.shared_keys.is_some() {
            return Self::of_queries(query).map(Some);
        }
        Self::from_parts(query, get("key_norm", config.n_kv_heads)?).map(Some)
    }

    /// # Errors
    /// If the norms do not fill the rows of queries and keys of this configuration.
    pub(crate) fn check_widths(&self, config: &AttentionConfig) -> Result<()> {
        check_width("queries", &self.query, config.query_width())?;
        match (config.shared_keys, &self.key[..]) {
            (None, []) => {
                bail!("attention: no norm of keys given; expected one, or one for each head")
            }
            (None, key) => check_width("keys", key, config.key_width()),
            (Some(_), []) => Ok(()),
            (Some(_), _) => {
                bail!("attention: norms of keys were given, but another layer has these")
            }
        }
    }

    /// The norms of a row's queries: one for all spans, or one for each.
    pub(crate) fn query_spans(&self) -> &[Norm] {
        &self.query
    }

    /// The norms of a row's keys: one for all spans, or one for each.
    pub(crate) fn key_spans(&self) -> &[Norm] {
        &self.key
    }
}

/// # Errors
/// If there is no norm, or they differ in their configuration.
fn check_alike(of: &str, norms: &[Norm]) -> Result<()> {
    let Some(first) = norms.first() else {
        bail!("attention: no norm of {of} given; expected one, or one for each head");
    };
    match norms.iter().find(|norm| norm.config() != first.config()) {
        None => Ok(()),
        Some(other) => bail!(
            "attention: the norms of {of} differ: {:?} and {:?}; expected one configuration",
            first.config(),
            other.config()
        ),
    }
}

/// # Errors
/// If the norms are not of spans that fill a row: one norm any number of times, or each once.
fn check_width(of: &str, norms: &[Norm], row: usize) -> Result<()> {
    let span = norms[0].config().d_model;
    let fits = match norms.len() {
        1 => span > 0 && row.is_multiple_of(span),
        n => n * span == row,
    };
    if !fits {
        let n = norms.len();
        bail!("attention: {n} norms of {of}, each of {span}, expected to fill {row} columns");
    }
    Ok(())
}

/// Rows of queries or keys, of which each span is normalized.
pub(super) fn normalized(norms: &[Norm], x: &Value) -> Result<Value> {
    let (dims, config) = (x.dims().to_vec(), *norms[0].config());
    let rows = dims.iter().product::<usize>() / config.d_model.max(1);
    let spans = x.reshape(vec![rows, config.d_model])?;
    if let [norm] = norms {
        return norm.in_dtype(x.dtype())?.apply(&spans)?.reshape(dims);
    }
    // One pass over all heads without weights, then each head's own.
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
