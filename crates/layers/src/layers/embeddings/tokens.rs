//! Token embeddings.

use candle_core::{DType, Module, ModuleT, Result, Tensor};
use candle_nn::Init;

use crate::Error;
use crate::config::{
    CountedTokens, LinearConfig, PositionTableConfig, PositionVectors, Projected,
    TokenEmbeddingsConfig, getters,
};
use crate::layers::{Dropout, DropoutSource, Linear, Norm, ParameterSource, Weight};

use super::input::{Tokens, integers, shape};
use super::lookup::{looked_up, row_numbers};
use super::positions::{counts, positions, rows};
use super::sines::sines;
use super::token_dropout::{in_place_of_hidden, scale_rows};

/// Word, position and token type embeddings: `dropout(norm(scale · word + type + position))`.
///
/// Names in a `VarBuilder`: `word`, `position`, `type`, `task`, `norm`, `projection`, `layer_inputs`.
#[derive(Clone, Debug)]
pub struct TokenEmbeddings {
    config: TokenEmbeddingsConfig,
    table: Weight, // [n_tokens, width]
    /// The dtype of the word embeddings.
    dtype: DType,
    positions: Option<Tensor>,    // [n_rows, sum_width]
    types: Option<Tensor>,        // [n_types, sum_width]
    tasks: Option<Tensor>,        // [n_tasks, sum_width]
    layer_inputs: Option<Tensor>, // [n_tokens, n_layers · width]
    norm: Option<Norm>,
    projection: Option<Linear>,
    pub(super) dropout: Dropout,
}

impl TokenEmbeddings {
    /// Creates the layer with the tables from `vb`: `word.weight` `[n_tokens, width]` and, if configured,
    /// `position.weight`, `type.weight`, `task.weight`, `norm`, `projection` and `layer_inputs.weight`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &TokenEmbeddingsConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let init = Init::Randn {
            mean: 0.0,
            stdev: 0.02,
        };
        let table = |name: &str, rows: usize, width: usize| {
            vb.pp(name).get_with_hints((rows, width), "weight", init)
        };
        let sum_width = config.sum_width();
        let learned = |table: &PositionTableConfig| table.vectors == PositionVectors::Learned;
        let rows = config.positions.filter(learned).map(|table| table.n_rows);
        let norm = |norm| Norm::new(norm, vb.pp("norm"));
        let projection = config.projection.map(|projection| {
            let linear = LinearConfig::new(config.width, config.d_model).with_bias(projection.bias);
            Linear::new(&linear, vb.pp("projection"))
        });
        Ok(Self {
            table: vb
                .pp("word")
                .weight((config.n_tokens, config.width), init)?,
            dtype: vb.dtype(),
            positions: rows
                .map(|rows| table("position", rows, sum_width))
                .transpose()?,
            types: config
                .n_types
                .map(|rows| table("type", rows, sum_width))
                .transpose()?,
            tasks: config
                .n_tasks
                .map(|rows| table("task", rows, sum_width))
                .transpose()?,
            layer_inputs: config
                .layer_inputs
                .map(|of| table("layer_inputs", of.n_tokens, of.width))
                .transpose()?,
            norm: config.norm.as_ref().map(norm).transpose()?,
            projection: projection.transpose()?,
            dropout: Dropout::new(config.dropout, DropoutSource::default())?,
            config: config.clone(),
        })
    }

    getters! {
        /// The configuration.
        config(&self) -> &TokenEmbeddingsConfig => &self.config;
    }

    /// Returns the word embedding table, `[n_tokens, width]`, or `None` if it is quantized or packed.
    pub fn word_embeddings(&self) -> Option<&Tensor> {
        self.table.dense()
    }

    #[deprecated(note = "renamed to `word_embeddings`")]
    #[doc(hidden)]
    pub fn words(&self) -> Option<&Tensor> {
        self.word_embeddings()
    }

    /// Returns the word embedding table in its own form: dense, quantized or packed.
    #[doc(hidden)]
    pub fn word_weight(&self) -> &Weight {
        &self.table
    }

    /// Replaces the word embedding table by one with the same rows in another form.
    #[doc(hidden)]
    pub fn set_word_weight(&mut self, table: Weight) {
        self.table = table;
    }

    /// Computes the first block's input, `[batch, seq, d_model]`.
    ///
    /// # Errors
    /// If the ids are not integers of rank 2, a token, type or position is beyond its table, or another input has a
    /// different shape.
    pub fn forward_t(&self, tokens: &Tokens, train: bool) -> Result<Tensor> {
        let (batch, seq) = shape(tokens)?;
        let ids = integers(tokens.name, tokens.ids, (batch, seq))?;
        let mut x = match &self.table {
            Weight::Packed(table) => {
                let rows = row_numbers(tokens.name, self.config.n_tokens, &ids, seq)?;
                let rows = table.rows(&rows)?.to_dtype(self.dtype)?;
                rows.reshape((batch, seq, self.config.width))?
            }
            table => looked_up(tokens.name, &table.tensor()?, &ids, (batch, seq))?,
        };
        if let Some(padding) = self.config.padding {
            x = untrained_where(x, &ids, i64::from(padding))?;
        }
        if self.config.scale != 1.0 {
            x = (x * self.config.scale)?;
        }
        if let Some(dropout) = &self.config.token_dropout {
            x = in_place_of_hidden(&x, dropout, &ids, tokens)?;
        }
        let projected = self.config.projection.map(|projection| projection.of);
        if let (Some(Projected::Words), Some(projection)) = (projected, &self.projection) {
            x = projection.forward(&x)?;
        }
        let (of_words, of_sum) = match self.config.norm_of_words {
            true => (&self.norm, &None),
            false => (&None, &self.norm),
        };
        if let Some(norm) = of_words {
            x = norm.forward(&x)?;
        }
        if let Some(table) = &self.types {
            let types = match tokens.types {
                Some(types) => integers("token_type_ids", types, (batch, seq))?,
                None => vec![0; batch * seq],
            };
            x = (x + looked_up("token_type_ids", table, &types, (batch, seq))?)?;
        } else if tokens.types.is_some() {
            let reason = "the model has no table of token types; leave them out";
            return Err(Error::input("token_type_ids", reason).into());
        }
        if let Some(config) = &self.config.positions {
            let rows = rows(config, &ids, tokens, (batch, seq))?;
            let at = match (&self.positions, config.counted) {
                (None, _) => sines(config, &rows, (batch, seq), &x)?,
                (Some(table), CountedTokens::Except(padding)) => {
                    let at = positions(table, &rows, (batch, seq))?;
                    untrained_where(at, &rows, i64::from(padding))?
                }
                (Some(table), _) => positions(table, &rows, (batch, seq))?,
            };
            x = x.broadcast_add(&at)?;
        }
        if let Some(table) = &self.tasks {
            x = x.broadcast_add(&table.narrow(0, 0, 1)?)?;
        }
        if let Some(norm) = of_sum {
            x = norm.forward(&x)?;
        }
        if let (true, Some(mask)) = (self.config.blank_padding, tokens.mask) {
            let marks = integers("attention_mask", mask, (batch, seq))?;
            let kept = marks.iter().map(|&mark| f64::from(u8::from(mark != 0)));
            x = scale_rows(&x, kept)?;
        }
        x = self.dropout.forward_t(&x, train)?;
        match (projected, &self.projection) {
            (Some(Projected::Sum), Some(projection)) => projection.forward(&x),
            _ => Ok(x),
        }
    }

    /// Returns the token rows for per-layer inputs, `[batch, seq, n_layers · width]`, or `None` if the model has no
    /// such inputs: see [`ForwardContext::with_layer_inputs`](crate::ForwardContext::with_layer_inputs).
    ///
    /// # Errors
    /// If the ids are not integers of rank 2, or an id is negative.
    pub fn layer_inputs(&self, tokens: &Tokens) -> Result<Option<Tensor>> {
        let (Some(table), Some(config)) = (&self.layer_inputs, &self.config.layer_inputs) else {
            return Ok(None);
        };
        let (batch, seq) = shape(tokens)?;
        let mut ids = integers(tokens.name, tokens.ids, (batch, seq))?;
        for id in ids.iter_mut().filter(|id| **id >= config.n_tokens as i64) {
            *id = 0;
        }
        let mut rows = looked_up(tokens.name, table, &ids, (batch, seq))?;
        if let Some(padding) = self.config.padding {
            rows = untrained_where(rows, &ids, i64::from(padding))?;
        }
        (rows * config.scale).map(Some)
    }

    /// Returns how many tokens are counted in each sequence, with these tokens: [`Tokens::counted`] for the next
    /// pass.
    ///
    /// # Errors
    /// Same as [`Self::forward_t`].
    #[doc(hidden)]
    pub fn counted(&self, tokens: &Tokens) -> Result<Vec<u32>> {
        let (batch, seq) = shape(tokens)?;
        let counted = self
            .config
            .positions
            .map_or(CountedTokens::All, |p| p.counted);
        let ids = integers(tokens.name, tokens.ids, (batch, seq))?;
        let counts = counts(counted, &ids, tokens, (batch, seq))?;
        let before = |row| tokens.counted.get(row).copied().unwrap_or(0);
        let sum = |(row, counts): (usize, &[bool])| {
            before(row) + counts.iter().filter(|&&counts| counts).count() as u32
        };
        match seq {
            0 => Ok((0..batch).map(before).collect()),
            _ => Ok(counts.chunks_exact(seq).enumerate().map(sum).collect()),
        }
    }
}

/// Returns `x` `[batch or 1, seq, width]` with the gradient of one table `row` cut off.
fn untrained_where(x: Tensor, rows: &[i64], row: i64) -> Result<Tensor> {
    let (batch, seq, width) = x.dims3()?;
    let rows = &rows[..batch * seq];
    if !x.track_op() || !rows.contains(&row) {
        return Ok(x);
    }
    let is_row: Vec<u8> = rows.iter().map(|&of| u8::from(of == row)).collect();
    let is_row = Tensor::from_vec(is_row, (batch, seq, 1), x.device())?;
    is_row
        .broadcast_as((batch, seq, width))?
        .where_cond(&x.detach(), &x)
}
