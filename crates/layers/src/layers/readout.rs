//! Poolers and heads, which read the output of the blocks.

use candle_core::{D, DType, Device, Module, ModuleT, Result, Tensor, bail};

use crate::Error;
use crate::config::{
    LinearConfig, OutputForm, OutputWeight, ReadoutConfig, TokenSelection, getters,
};
use crate::layers::own::unit_rows;
use crate::layers::packed::Packing;
use crate::layers::{
    AttentionPool, Dropout, DropoutSource, Embeddings, Linear, Norm, ParameterSource,
};
use crate::ops;

/// A pooler or a head.
///
/// Names in a `VarBuilder`: `pool`, `window_norm`, `transform`, `norm`, `output`, `second_output`.
#[derive(Clone, Debug)]
pub struct Readout {
    config: ReadoutConfig,
    pool: Option<Box<AttentionPool>>,
    window_norm: Option<Norm>,
    transform: Option<Linear>,
    norm: Option<Norm>,
    output: Option<Linear>,
    second_output: Option<Box<Linear>>,
    /// The lengths of the output's rows, if a packed layer divides by them.
    lengths: Option<Tensor>,
    dropout: Dropout,
    output_dropout: Dropout,
}

/// The inputs of a [`Readout`].
#[derive(Clone, Copy, Debug)]
pub struct BlocksOutput<'t> {
    /// The output of the blocks, `[batch, seq, d_model]`.
    pub hidden_states: &'t Tensor,
    /// The pooler's output, `[batch, d]`.
    pub pooled: Option<&'t Tensor>,
    /// The token ids, `[batch, seq]`.
    pub ids: Option<&'t Tensor>,
    /// The padding mask, `[batch, seq]`: 1 = a real token.
    pub mask: Option<&'t Tensor>,
}

impl Readout {
    /// Creates the layer with linear layers and norm from `vb`, for an input of width `d_in`. An output projection
    /// that is tied to the word embeddings takes its weight from `embeddings`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &ReadoutConfig,
        d_in: usize,
        embeddings: &Embeddings,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let transform = config.transform.as_ref();
        let linear = transform.and_then(|transform| transform.linear);
        let d_read = match config.reads {
            TokenSelection::FirstAndMean { .. } => 2 * d_in,
            TokenSelection::Windows { positions, .. } => positions.saturating_mul(d_in),
            _ => d_in,
        };
        let layer = linear.map(|linear| {
            let config = LinearConfig::new(d_read, linear.d_out).with_bias(linear.bias);
            Linear::new(&config, vb.pp("transform"))
        });
        let d_out = linear.map_or(d_read, |linear| linear.d_out);
        let norm = transform.and_then(|transform| transform.norm.as_ref());
        let norm = norm.map(|norm| Norm::new(norm, vb.pp("norm")));
        let pool = match &config.reads {
            TokenSelection::Attended(pool) => {
                Some(Box::new(AttentionPool::new(pool, vb.pp("pool"))?))
            }
            _ => None,
        };
        let window_norm = match &config.reads {
            TokenSelection::Windows { norm, .. } => Some(Norm::new(norm, vb.pp("window_norm"))?),
            _ => None,
        };
        let second_output = match (&config.reads, &config.output) {
            (TokenSelection::FirstTwo, Some(output)) => {
                let config = LinearConfig::new(d_out, output.n_out).with_bias(output.bias);
                Some(Box::new(Linear::new(&config, vb.pp("second_output"))?))
            }
            _ => None,
        };
        let output = config.output.as_ref().map(|output| {
            let vb = vb.pp("output");
            match output.weight {
                OutputWeight::Own => {
                    let config = LinearConfig::new(d_out, output.n_out).with_bias(output.bias);
                    Linear::new(&config, vb)
                }
                OutputWeight::Words => {
                    let bias = output.bias.then(|| vb.get(output.n_out, "bias"));
                    Linear::from_weight(embeddings.word_embeddings()?.clone(), bias.transpose()?)
                }
            }
        });
        let dropout = |p| Dropout::new(p, DropoutSource::default());
        let before_output = config.output.as_ref().map_or(0.0, |output| output.dropout);
        Ok(Self {
            transform: layer.transpose()?,
            norm: norm.transpose()?,
            output: output.transpose()?,
            second_output,
            lengths: None,
            pool,
            window_norm,
            dropout: dropout(config.dropout)?,
            output_dropout: dropout(before_output)?,
            config: config.clone(),
        })
    }

    getters! {
        /// The configuration.
        config(&self) -> &ReadoutConfig => &self.config;
        /// The output projection, if any.
        output(&self) -> Option<&Linear> => self.output.as_ref();
    }

    /// Returns the output projection if it is tied to the word embeddings.
    #[doc(hidden)]
    pub fn shared_embeddings(&self) -> Option<&Linear> {
        let output = self.config.output.as_ref();
        let is_shared = output.is_some_and(|output| output.weight == OutputWeight::Words);
        self.output.as_ref().filter(|_| is_shared)
    }

    /// Packs the linear layers for inference.
    ///
    /// # Errors
    /// If candle fails.
    #[doc(hidden)]
    pub fn pack(&mut self, packing: &Packing) -> Result<()> {
        if let (Some(output), true) = (&self.output, self.has_unit_rows()) {
            self.lengths = Some(unit_rows::lengths(output)?);
        }
        for linear in self.linears_mut() {
            *linear = linear.packed(packing)?;
        }
        Ok(())
    }

    fn has_unit_rows(&self) -> bool {
        let output = self.config.output.as_ref();
        output.is_some_and(|output| output.unit_rows)
    }

    /// Returns the linear layers, mutable.
    fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let outputs = self
            .output
            .iter_mut()
            .chain(self.second_output.as_deref_mut());
        self.transform.iter_mut().chain(outputs)
    }

    /// Makes the dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.dropout.set_source(source.clone());
        self.output_dropout.set_source(source.clone());
        if let Some(pool) = &mut self.pool {
            pool.set_dropout_source(source);
        }
    }

    /// Computes the output: `[batch, seq, n]` if the layer reads every position or window, otherwise `[batch, n]`. A
    /// scalar output has no dimension `n`.
    ///
    /// # Errors
    /// If an input is missing, or has another width.
    pub fn forward_t(&self, of: &BlocksOutput, train: bool) -> Result<Tensor> {
        let mut x = self.dropout.forward_t(&self.read(of, train)?, train)?;
        if let Some(linear) = &self.transform {
            x = linear.forward(&x)?;
        }
        if let Some(transform) = &self.config.transform {
            x = ops::activate(&x, transform.activation)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        if self.config.reads == TokenSelection::MeanTransformed {
            x = mean(&x, of.mask)?;
        }
        let (Some(output), Some(config)) = (&self.output, &self.config.output) else {
            return Ok(x);
        };
        x = self.output_dropout.forward_t(&x, train)?;
        x = match self.second_output.as_deref() {
            None => output.forward(&x)?,
            Some(second) => {
                let of = |layer: &Linear, i| layer.forward(&x.narrow(1, i, 1)?.squeeze(1)?);
                ((of(output, 0)? + of(second, 1)?)? * 0.5)?
            }
        };
        if config.unit_rows {
            let lengths = match &self.lengths {
                Some(lengths) => lengths.clone(),
                None => unit_rows::lengths(output)?,
            };
            x = x.broadcast_div(&lengths.to_dtype(x.dtype())?)?;
        }
        if config.scale != 1.0 {
            x = (x * config.scale)?;
        }
        if let Some(cap) = config.soft_cap {
            x = ((x / cap)?.tanh()? * cap)?;
        }
        match config.form {
            OutputForm::Vector => Ok(x),
            OutputForm::Number => x.squeeze(D::Minus1),
        }
    }

    fn read(&self, of: &BlocksOutput, train: bool) -> Result<Tensor> {
        let x = of.hidden_states;
        let (_, seq, _) = x.dims3()?;
        if seq == 0 {
            bail!("a head needs at least one position, but the sequence is empty");
        }
        let is = |wanted: u32| move |id: i64| id == i64::from(wanted);
        match &self.config.reads {
            TokenSelection::Each | TokenSelection::MeanTransformed => Ok(x.clone()),
            TokenSelection::First => x.narrow(1, 0, 1)?.squeeze(1),
            TokenSelection::Last => x.narrow(1, seq - 1, 1)?.squeeze(1),
            TokenSelection::LastExcept(None) => {
                if let Some(mask) = of.mask
                    && hidden(mask, |row| row.last())?.any(|hidden| hidden)
                {
                    let reason = "hides the last position of a sequence, and without a padding id the head cannot find the \
                                  last token; pad on the left, or set pad_token_id in config.json";
                    return Err(Error::input("attention_mask", reason).into());
                }
                x.narrow(1, seq - 1, 1)?.squeeze(1)
            }
            TokenSelection::LastExcept(Some(padding)) => {
                let ids = rows(of)?;
                let found = |ids: &Vec<i64>| ids.iter().rposition(|&id| !is(*padding)(id));
                at(x, ids.iter().map(|ids| found(ids).unwrap_or(0)))
            }
            TokenSelection::LastOf(wanted) => {
                let ids = rows(of)?;
                let found = |ids: &Vec<i64>| ids.iter().rposition(|&id| is(*wanted)(id));
                let found: Option<Vec<usize>> = ids.iter().map(found).collect();
                let missing = || {
                    let reason = format!(
                        "each sequence must hold the token {wanted}, whose position the head reads"
                    );
                    candle_core::Error::from(Error::input("input_ids", reason))
                };
                at(x, found.ok_or_else(missing)?.into_iter())
            }
            TokenSelection::FirstOf(wanted) => {
                let found = |ids: &Vec<i64>| ids.iter().position(|&id| is(*wanted)(id));
                let found: Vec<Option<usize>> = rows(of)?.iter().map(found).collect();
                if let Some(mask) = of.mask
                    && hidden(mask, |row| row.first())?
                        .zip(&found)
                        .any(|(hidden, found)| hidden && found.is_none())
                {
                    let reason = format!(
                        "a sequence does not hold the token {wanted} (eos_token_id in config.json), whose position the head \
                         reads, and attention_mask hides the first position, which it would read instead"
                    );
                    return Err(Error::input("input_ids", reason).into());
                }
                at(x, found.into_iter().map(|found| found.unwrap_or(0)))
            }
            TokenSelection::Highest => {
                let ids = rows(of)?;
                let highest = |ids: &Vec<i64>| {
                    let highest = ids.iter().max();
                    ids.iter().position(|id| Some(id) == highest)
                };
                at(x, ids.iter().map(|ids| highest(ids).unwrap_or(0)))
            }
            TokenSelection::Mean => mean(x, of.mask),
            TokenSelection::MeanAfter(skipped) => mean_after(x, *skipped),
            TokenSelection::FirstAndMean { skipped } => {
                let first = x.narrow(1, 0, 1)?.squeeze(1)?;
                Tensor::cat(&[&first, &mean_after(x, *skipped)?], 1)
            }
            TokenSelection::FirstTwo if seq < 2 => {
                bail!("a head needs two positions, but the sequence has {seq}")
            }
            TokenSelection::FirstTwo => x.narrow(1, 0, 2)?.contiguous(),
            TokenSelection::Windows { positions, .. } => {
                let x = match &self.window_norm {
                    Some(norm) => norm.forward(x)?,
                    None => x.clone(),
                };
                if !seq.is_multiple_of(*positions) {
                    bail!(
                        "a head needs windows of {positions} positions, but {seq} is not a multiple of {positions}"
                    );
                }
                let (batch, _, width) = x.dims3()?;
                x.contiguous()?
                    .reshape((batch, seq / positions, positions * width))
            }
            TokenSelection::Attended(_) => match &self.pool {
                Some(pool) => pool.forward_t(x, train),
                None => bail!("a head attends to all positions, but has no attention layer"),
            },
            TokenSelection::Pooled => match of.pooled {
                Some(pooled) => Ok(pooled.clone()),
                None => bail!("a head needs the pooler's output, but the model has no pooler"),
            },
        }
    }
}

/// Returns the token ids of each sequence, on the CPU.
fn rows(of: &BlocksOutput) -> Result<Vec<Vec<i64>>> {
    let Some(ids) = of.ids else {
        bail!("a head selects a position by its token, but no input_ids are given");
    };
    let (found, expected) = (ids.dims(), &of.hidden_states.dims()[..2]);
    if found != expected {
        let reason = format!(
            "has shape {found:?}, expected {expected:?}: a head selects one of these positions by its token"
        );
        return Err(Error::input("input_ids", reason).into());
    }
    ids.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_vec2()
}

/// Returns for each sequence whether a mask `[batch, seq]` drops the position that `select` returns.
fn hidden(
    mask: &Tensor,
    select: fn(&Vec<f32>) -> Option<&f32>,
) -> Result<impl Iterator<Item = bool>> {
    let mask = mask.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let rows = mask.to_vec2::<f32>()?.into_iter();
    Ok(rows.map(move |row| select(&row) == Some(&0.0)))
}

/// Selects one position of each sequence, `[batch, d]`.
fn at(x: &Tensor, positions: impl Iterator<Item = usize>) -> Result<Tensor> {
    let (_, seq, _) = x.dims3()?;
    let rows = positions.enumerate();
    let rows: Vec<u32> = rows.map(|(i, at)| (i * seq + at) as u32).collect();
    let rows = Tensor::new(rows, x.device())?;
    x.flatten(0, 1)?.index_select(&rows, 0)
}

/// Returns the mean over the positions after the first `skipped`, `[batch, d]`.
fn mean_after(x: &Tensor, skipped: usize) -> Result<Tensor> {
    let (_, seq, _) = x.dims3()?;
    match seq.checked_sub(skipped) {
        None | Some(0) => {
            bail!("a head skips {skipped} positions, but the sequence has only {seq}")
        }
        Some(rest) => x.narrow(1, skipped, rest)?.mean(1),
    }
}

/// Returns the mean over the positions that the mask keeps, `[batch, d]`.
fn mean(x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let Some(mask) = mask else {
        return x.mean(1);
    };
    let mask = mask.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let mask = mask
        .to_device(x.device())?
        .to_dtype(x.dtype())?
        .unsqueeze(2)?;
    let n_kept = mask.sum(1)?.clamp(1f64, f64::MAX)?;
    x.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&n_kept)
}
