//! Multi-head latent attention.

use candle_core::{Error, Result, bail};

use super::own::rotated;
use crate::config::{AttentionConfig, LatentConfig, LinearConfig};
use crate::layers::{Linear, Norm, ParameterSource, pass::Pass, visit::parts};
use crate::ops::Value;

/// The input projections of multi-head latent attention. [`LatentConfig`] has the formula.
#[derive(Clone, Debug)]
pub struct LatentProjections {
    /// The projection to the query latent, `[query_rank, d_model]`, and its norm. `None` if queries are projected
    /// from the input itself.
    pub query_latent: Option<(Linear, Norm)>,
    /// `[n_heads · head_dim, query_rank or d_model]`.
    pub query: Linear,
    /// The projection to the latent of keys and values, followed by the key that all heads share: `[rank +
    /// rotary_dim, d_model]`.
    pub latent: Linear,
    /// `[rank]`.
    pub latent_norm: Norm,
    /// The projection to each head's key and value, without a bias: `[n_heads · (head_dim - rotary_dim + value_dim),
    /// rank]`.
    pub key_value: Linear,
}

impl LatentProjections {
    /// Creates the projections with `query`, `latent`, `latent_norm`, `key_value` and, if queries have a latent,
    /// `query_latent` and `query_latent_norm` from `vb`.
    pub(super) fn new(config: &AttentionConfig, vb: &ParameterSource) -> Result<Self> {
        let latent = &of(config)?;
        let linear = |name, [d_out, d_in]: [usize; 2], bias| {
            Linear::new(&LinearConfig::new(d_in, d_out).with_bias(bias), vb.pp(name))
        };
        let norm = |name, width| Norm::new(&latent.norm_of(width), vb.pp(name));
        let [query, of_latent, key_value] = shapes(config, latent);
        let bias = config.bias;
        let query_latent = |rank| -> Result<_> {
            let to_latent = linear("query_latent", [rank, config.d_model], bias.query)?;
            Ok((to_latent, norm("query_latent_norm", rank)?))
        };
        Ok(Self {
            query_latent: latent.query_rank.map(query_latent).transpose()?,
            query: linear("query", query, latent.query_rank.is_none() && bias.query)?,
            latent: linear("latent", of_latent, bias.key)?,
            latent_norm: norm("latent_norm", latent.rank)?,
            key_value: linear("key_value", key_value, false)?,
        })
    }

    /// Returns the queries, and the rows that a cache keeps: normalized latents and rotated shared keys, both in the
    /// dtype of `x`.
    pub(super) fn project(
        &self,
        config: &AttentionConfig,
        x: &Value,
        pass: &Pass,
    ) -> Result<(Value, [Value; 2])> {
        let latent = of(config)?;
        let train = pass.context.train();
        let query = match &self.query_latent {
            None => self.query.apply(x, None, train)?,
            Some((to_latent, norm)) => {
                let query_latent = norm.apply(&to_latent.apply(x, None, train)?)?;
                self.query.apply(&query_latent, None, train)?
            }
        };
        let (batch, seq, heads) = (pass.batch, pass.seq, config.n_heads);
        let plain = config.head_dim - latent.rotary_dim;
        let query = query
            .widened()?
            .reshape(vec![batch, seq, heads, config.head_dim])?;
        let turning = rotated(config, query.columns(plain..config.head_dim), pass)?;
        let rows = |of: Value| of.reshape(vec![batch * seq, of.dims()[2], of.width()]);
        let query = rows(query.columns(0..plain))?.joined(&rows(turning)?)?;

        let all = self.latent.apply(x, None, train)?;
        let latents = self.latent_norm.apply(&all.columns(0..latent.rank))?;
        let shared = all.columns(latent.rank..latent.kept_width()).widened()?;
        let shared = shared.reshape(vec![batch, seq, 1, latent.rotary_dim])?;
        let shared = rotated(config, shared, pass)?.to_dtype(x.dtype())?;
        let by_position = |of: Value| of.reshape(vec![batch, seq, of.width()]);
        let query = query.reshape(vec![batch, seq, config.query_width()])?;
        Ok((query, [by_position(latents)?, by_position(shared)?]))
    }

    /// Returns the keys and values of all heads, given latents and shared keys `[batch, keys, ..]`.
    pub(super) fn expanded(
        &self,
        config: &AttentionConfig,
        [latents, shared]: [Value; 2],
        train: bool,
    ) -> Result<[Value; 2]> {
        let latent = of(config)?;
        let &[batch, keys, _] = latents.dims() else {
            bail!("latents {:?}, expected [batch, keys, rank]", latents.dims())
        };
        let plain = config.head_dim - latent.rotary_dim;
        let both = self.key_value.apply(&latents, None, train)?.widened()?;
        let head_dims = vec![batch * keys, config.n_heads, plain + latent.value_dim];
        let both = both.reshape(head_dims)?;
        let shared = shared.widened()?;
        let shared = shared.reshape(vec![batch * keys, 1, latent.rotary_dim])?;
        let key = both.columns(0..plain).joined(&shared)?;
        let value = both.columns(plain..plain + latent.value_dim);
        Ok([
            key.reshape(vec![batch, keys, config.key_width()])?,
            value.reshape(vec![batch, keys, config.mixed_width()])?,
        ])
    }
}

parts!((Linear, Norm): (of, _) => [of] []);
parts!(LatentProjections: Self { query_latent, query, latent, key_value, .. }
    => [] [query_latent, query, latent, key_value]);

/// # Errors
/// If the configuration has no latent.
fn of(config: &AttentionConfig) -> Result<LatentConfig> {
    let missing =
        "attention: the projections go through a latent, but the configuration has no latent";
    config.latent.ok_or_else(|| Error::msg(missing))
}

/// Returns the weight shapes for queries, for the latent, and for keys and values.
fn shapes(config: &AttentionConfig, latent: &LatentConfig) -> [[usize; 2]; 3] {
    let plain = config.head_dim - latent.rotary_dim;
    [
        [
            config.query_width(),
            latent.query_rank.unwrap_or(config.d_model),
        ],
        [latent.kept_width(), config.d_model],
        [config.n_heads * (plain + latent.value_dim), latent.rank],
    ]
}
