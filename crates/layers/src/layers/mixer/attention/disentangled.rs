//! Disentangled attention, which adds terms for the distance between query and key to the scores.

use candle_core::Result;

use super::{Attention, QueryKeyValue};
use crate::config::{
    AttentionConfig, DisentangledConfig, LinearConfig, Position, PositionProjections,
};
use crate::layers::{Dropout, DropoutSource, Linear, ParameterSource, visit::parts};
use crate::ops::{Content, Term, Value};

/// The projections of relative embeddings, if these are not projected like hidden states: see [`DisentangledConfig`].
#[derive(Clone, Debug)]
pub(super) struct PositionLinears {
    /// The projection to position keys, `[n_heads · head_dim, d_model]`.
    key: Option<Linear>,
    /// The projection to position queries, `[n_heads · head_dim, d_model]`.
    query: Option<Linear>,
}

impl PositionLinears {
    /// Creates `position_key` and `position_query` from `vb`, as configured.
    pub(super) fn new(config: &AttentionConfig, vb: &ParameterSource) -> Result<Self> {
        let [key, query] = wanted(config);
        let get = |name: &str, bias: Option<bool>| {
            let linear =
                |bias| LinearConfig::new(config.d_model, config.query_width()).with_bias(bias);
            let linear = bias.map(|bias| Linear::new(&linear(bias), vb.pp(name)));
            linear.transpose()
        };
        Ok(Self {
            key: get("position_key", key)?,
            query: get("position_query", query)?,
        })
    }
}

parts!(PositionLinears: Self { key: position_key, query: position_query }
    => [] [position_key, position_query]);

/// Returns, for `P_k` and for `P_q`, `None` without a separate projection, else true if that projection has a bias.
fn wanted(config: &AttentionConfig) -> [Option<bool>; 2] {
    match config.position {
        Position::Disentangled(DisentangledConfig {
            content_to_position,
            position_to_content,
            projections:
                PositionProjections::Own {
                    key_bias,
                    query_bias,
                },
            ..
        }) => [
            content_to_position.then_some(key_bias),
            position_to_content.then_some(query_bias),
        ],
        _ => [None; 2],
    }
}

/// Returns the dropout for relative embeddings.
pub(super) fn position_dropout(config: &AttentionConfig) -> Result<Dropout> {
    match &config.position {
        Position::Disentangled(of) => Dropout::new(of.dropout, DropoutSource::default()),
        _ => Ok(Dropout::none()),
    }
}

impl Attention {
    /// Projects a table `[rows, d_model]` of relative embeddings, and returns the terms for scores.
    pub(super) fn disentangled_terms(
        &self,
        table: &Value,
        train: bool,
    ) -> Result<Vec<Term<Content, Value>>> {
        let Position::Disentangled(config) = &self.config.position else {
            return Ok(Vec::new());
        };
        let tables = self.project_positions(table, config, train)?.into_iter();
        let terms = tables.zip([Content::Queries, Content::Keys]);
        let terms = terms.filter_map(|(table, content)| {
            let table = table?;
            Some(Term { content, table })
        });
        Ok(terms.collect())
    }

    /// Returns `P_k` and `P_q`. The configuration may leave out one of them.
    fn project_positions(
        &self,
        table: &Value,
        config: &DisentangledConfig,
        train: bool,
    ) -> Result<[Option<Value>; 2]> {
        let (q, kv) = (self.config.query_width(), self.config.key_width());
        let is_wanted = [config.content_to_position, config.position_to_content];
        let project = |linear: &Linear| linear.apply(table, None, train)?.widened();
        let own = [&self.positions.key, &self.positions.query];
        if let PositionProjections::Own { .. } = config.projections {
            let [key, query] = own.map(|linear| linear.as_ref().map(project).transpose());
            return Ok([key?, query?]);
        }
        let [key, query] = match &self.projections {
            QueryKeyValue::Separate { query, key, .. } => {
                let of = |wanted: bool, linear| wanted.then(|| project(linear)).transpose();
                [of(is_wanted[0], key)?, of(is_wanted[1], query)?]
            }
            QueryKeyValue::Fused(fused) => {
                let all = project(fused)?;
                [
                    is_wanted[0].then(|| all.columns(q..q + kv)),
                    is_wanted[1].then(|| all.columns(0..q)),
                ]
            }
            // Validation refuses this configuration.
            QueryKeyValue::Latent(_) | QueryKeyValue::Query(_) | QueryKeyValue::QueryKey { .. } => {
                [None, None]
            }
        };
        Ok([key, query])
    }
}
