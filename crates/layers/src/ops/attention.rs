//! Attention, `softmax(scale · q·kᵀ + biases)·v` for every head, which keeps only its inputs for the backward pass.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{
    AttentionGradients, BiasLayout, Differentiable, Dropped, HeadRows, RelativeScores, ScoreBias,
    Written,
};
use candle_core::{DType, Result, Tensor, bail};

use super::bias_tensor::BiasTensor;
use super::dropout::{Mask, with_marks};
use super::engine::Engine;
use super::kernels::{Data, Reading};
use super::mixing::Mixing;
use super::relative_scores::{PlacedTerm, RelativeTerms};
use super::slot::Slot;
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};
use super::visible::{Reach, check_keep};
use super::{backward::BackwardPass, numbers::Numbers};
use crate::memory::check_pass;

const OP: &str = "attention";

impl Value {
    /// Computes `dropout(softmax(cap(scale · q·kᵀ) + biases))·v` per head, for the queries `self`.
    ///
    /// # Shapes
    /// `self`, `key` and `value` are `[.., seq, heads · head_dim]`. The result is `[.., queries, n_heads ·
    /// head_dim]`.
    ///
    /// # Errors
    /// If shapes or types do not match, or for half types: see [`Self::widened`].
    pub(crate) fn attend(&self, key: &Value, value: &Value, mixing: &Mixing) -> Result<Value> {
        check([self, key, value], mixing)?;
        on_either!(self, query => {
            let (key, value) = (query.on_tape(key)?, query.on_tape(value)?);
            let relative = mixing.relative.map(|of| of.terms(query, &key)).transpose()?;
            Ok(query.attend(&key, &value, relative.unwrap_or_default(), mixing)?.into())
        })
    }
}

/// Checks shapes and types.
///
/// # Errors
/// If shapes or types do not match.
fn check(operands: [&Value; 3], mixing: &Mixing) -> Result<()> {
    let Mixing {
        batch,
        queries,
        keys,
        n_heads,
        n_kv_heads,
        visible,
        ..
    } = *mixing;
    let expected = [(queries, n_heads), (keys, n_kv_heads), (keys, n_kv_heads)];
    let fits = |of: &Value, (seq, heads): (usize, usize)| {
        let rows: usize = of.dims()[..of.dims().len().saturating_sub(1)]
            .iter()
            .product();
        rows == batch * seq && of.width().is_multiple_of(heads) && of.dtype() == operands[0].dtype()
    };
    let fit = n_kv_heads > 0
        && n_heads % n_kv_heads == 0
        && operands
            .iter()
            .zip(expected)
            .all(|(of, expected)| fits(of, expected))
        && operands[0].width() / n_heads == operands[1].width() / n_kv_heads;
    if !fit {
        let [query, key, value] = operands.map(|of| format!("{:?} {:?}", of.dtype(), of.dims()));
        bail!(
            "{OP}: queries {query}, {queries} in {n_heads} heads, do not fit keys {key} and values {value}, {keys} in {n_kv_heads}, in a batch of {batch}; expected [batch, seq, heads · head_dim] of one type"
        );
    }
    let dtype = operands[0].dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        bail!("{OP}: operands of {dtype:?}, expected F32 or F64");
    }
    check_keep(visible, &operands[0].device(), (batch, keys))?;
    if let Some(sinks) = mixing.sinks
        && (sinks.dims() != [n_heads] || sinks.dtype() != dtype)
    {
        let (dims, of) = (sinks.dims(), sinks.dtype());
        bail!("{OP}: sinks {of:?} {dims:?}, expected {dtype:?} [{n_heads}]");
    }
    let all = [batch, n_heads, queries, keys];
    let mut relative = mixing.relative.iter();
    relative.try_for_each(|relative| relative.check(operands[0], mixing))?;
    let mut biases = mixing.biases.iter();
    biases.try_for_each(|bias| bias.check(all))
}

impl Taped<Cpu> {
    fn attend(
        &self,
        key: &Self,
        value: &Self,
        relative: Vec<PlacedTerm<Self>>,
        mixing: &Mixing,
    ) -> Result<Self> {
        let operand = |of: &Self, heads: usize, seq: usize| HeadOperand {
            data: of.data.clone(),
            slot: of.slot.clone(),
            heads,
            seq,
        };
        let &Mixing {
            n_heads,
            n_kv_heads,
            ..
        } = mixing;
        let bias = |bias: &BiasTensor| -> Result<StepBias> {
            let elements = bias.tensor.to_dtype(self.dtype())?;
            Ok(StepBias {
                data: Cpu::data(&elements)?,
                place: self.place(&elements, Reads::Both),
                layout: bias.layout(mixing.queries, mixing.keys),
            })
        };
        let sinks = mixing.sinks;
        let sinks = sinks.map(|sinks| self.parameter(sinks, Reads::Both));
        let dropout = mixing.dropout.map(|(keep, p)| Mask::new(keep, p));
        let step = AttentionStep {
            batch: mixing.batch,
            query: operand(self, n_heads, mixing.queries),
            key: operand(key, n_kv_heads, mixing.keys),
            value: operand(value, n_kv_heads, mixing.keys),
            scale: mixing.scale,
            soft_cap: mixing.soft_cap,
            relative: mixing
                .relative
                .map(|of| RelativeTerms::new(&relative, &of, mixing.n_heads)),
            biases: mixing.biases.iter().map(bias).collect::<Result<_>>()?,
            sinks: sinks.transpose()?,
            keep: mixing.visible.keep.map(Tensor::contiguous).transpose()?,
            reach: Reach::of(mixing.visible),
            dropout: dropout.transpose()?,
        };
        let head_dim = value.slot.columns.len() / n_kv_heads;
        let mut dims = self.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n_heads * head_dim;
        }
        let mut y = Numbers::new(self.dtype(), dims.iter().product())?;
        let cpu = self.engine();
        let normalizers = step.with(cpu, |attention| {
            let mut normalizers = Numbers::new(self.dtype(), attention.n_normalizers())?;
            attention.forward(cpu, y.slice_mut(), normalizers.slice_mut());
            Ok(normalizers)
        })?;
        let y = Data::from(y);
        let operands = [&step.query, &step.key, &step.value].map(|of| of.slot.place);
        let biases = step.biases.iter().map(|bias| bias.place);
        let terms = relative.iter().flat_map(PlacedTerm::asks);
        let sinks = step.sinks.iter().map(|(_, place)| *place);
        let asks = operands.into_iter().chain(biases).chain(terms);
        let asks: Vec<Option<usize>> = asks.chain(sinks).collect();
        // The next step keeps the result too.
        let written = (!normalizers.slice().is_empty()).then(|| (y.clone(), normalizers));
        Ok(self.computed((y, dims), &asks, move |pass, dy| {
            step.backward(pass, written.as_ref(), dy)
        }))
    }
}

/// Query, key or value heads.
struct HeadOperand {
    data: Data,
    slot: Slot,
    heads: usize,
    seq: usize,
}

struct StepBias {
    data: Data,
    place: Option<usize>,
    layout: BiasLayout,
}

struct AttentionStep {
    batch: usize,
    query: HeadOperand,
    key: HeadOperand,
    value: HeadOperand,
    scale: f64,
    soft_cap: Option<f64>,
    relative: Option<RelativeTerms>,
    biases: Vec<StepBias>,
    /// The sinks, and the place of their gradient.
    sinks: Option<(Data, Option<usize>)>,
    keep: Option<Tensor>, // [batch, keys]
    reach: Reach,
    dropout: Option<Mask>,
}

impl HeadOperand {
    fn rows<'a>(&self, reading: &'a Reading) -> HeadRows<'a> {
        HeadRows {
            data: reading.slice(),
            seq: self.seq,
            heads: self.heads,
            head_dim: self.slot.columns.len() / self.heads,
            row_stride: self.slot.width,
            offset: self.slot.columns.start,
        }
    }

    fn elem_count(&self, batch: usize) -> usize {
        batch * self.seq * self.slot.columns.len()
    }
}

impl AttentionStep {
    fn with<R>(&self, cpu: Cpu, work: impl FnOnce(&Differentiable) -> Result<R>) -> Result<R> {
        let operands = [&self.query, &self.key, &self.value];
        let readings = operands.map(|of| of.data.read());
        let [query, key, value] = [0, 1, 2].map(|i| operands[i].rows(&readings[i]));
        let additive: Vec<Reading> = self.biases.iter().map(|bias| bias.data.read()).collect();
        let biases = self.biases.iter().zip(&additive);
        let biases = biases.map(|(bias, reading)| ScoreBias {
            data: reading.slice(),
            layout: bias.layout,
        });
        let biases: Vec<ScoreBias> = biases.collect();
        let sinks = self.sinks.as_ref().map(|(sinks, _)| sinks.read());
        let with_relative =
            |keep: Option<&[u8]>, dropped: Option<Dropped>, relative: Option<RelativeScores>| {
                let attention = Differentiable {
                    batch: self.batch,
                    query,
                    key,
                    value,
                    scale: self.scale,
                    soft_cap: self.soft_cap,
                    relative,
                    biases: &biases,
                    sinks: sinks.as_ref().map(|sinks| sinks.slice()),
                    keep,
                    reach: &|query| self.reach.range(query, self.key.seq),
                    dropped,
                };
                check_pass(attention.scratch_bytes(cpu))?;
                work(&attention)
            };
        let with_dropout = |keep: Option<&[u8]>, dropped: Option<Dropped>| match &self.relative {
            None => with_relative(keep, dropped, None),
            Some(terms) => terms.with(|terms| with_relative(keep, dropped, Some(terms))),
        };
        let with_keep = |keep: Option<&[u8]>| match &self.dropout {
            None => with_dropout(keep, None),
            Some(mask) => mask.apply(|marks, divisor| {
                let dropped = Dropped {
                    keep: marks,
                    divisor,
                };
                with_dropout(keep, Some(dropped))
            })?,
        };
        match &self.keep {
            None => with_keep(None),
            Some(keep) => with_marks(keep, |keep| with_keep(Some(keep)))?,
        }
    }
}

impl AttentionStep {
    /// Passes all inputs' gradients to the pass, given the result and its rows' normalizers, if there are any.
    fn backward(
        &self,
        pass: &mut BackwardPass<Cpu>,
        written: Option<&(Data, Numbers)>,
        dy: Numbers,
    ) -> Result<()> {
        let new = |of: &HeadOperand| Numbers::new(dy.dtype(), of.elem_count(self.batch));
        let (mut dq, mut dk, mut dv) = (new(&self.query)?, new(&self.key)?, new(&self.value)?);
        let zeros = |bias: &StepBias| -> Result<Option<Numbers>> {
            let n = bias.data.read().slice().len();
            let wanted = bias.place.map(|_| Numbers::zeros(dy.dtype(), n));
            wanted.transpose()
        };
        let mut dbiases = self.biases.iter().map(zeros).collect::<Result<Vec<_>>>()?;
        let sinks_place = self.sinks.as_ref().and_then(|(_, place)| *place);
        let zeros = sinks_place.map(|_| Numbers::zeros(dy.dtype(), self.query.heads));
        let mut dsinks = zeros.transpose()?;
        let cpu = pass.engine;
        let drelative = self.relative.as_ref();
        let drelative = drelative.map(|terms| terms.gradients(dy.dtype()));
        let mut drelative = drelative.transpose()?.unwrap_or_default();
        self.with(cpu, |attention| {
            let relative = drelative.iter_mut();
            let biases = dbiases.iter_mut();
            let to = AttentionGradients {
                query: dq.slice_mut(),
                key: dk.slice_mut(),
                value: dv.slice_mut(),
                relative: relative
                    .map(|term| term.each_mut().map(Numbers::slice_mut))
                    .collect(),
                biases: biases
                    .map(|sums| Some(sums.as_mut()?.slice_mut()))
                    .collect(),
                sinks: dsinks.as_mut().map(Numbers::slice_mut),
            };
            let written = written.map(|(y, normalizers)| (y.read(), normalizers));
            let forward = written.as_ref().map(|(y, normalizers)| Written {
                y: y.slice(),
                normalizers: normalizers.slice(),
            });
            attention.backward(cpu, dy.slice(), forward, to);
            Ok(())
        })?;
        drop(dy);
        pass.add(&self.query.slot, dq)?;
        pass.add(&self.key.slot, dk)?;
        pass.add(&self.value.slot, dv)?;
        if let Some(terms) = &self.relative {
            terms.add(pass, drelative)?;
        }
        if let Some(dsinks) = dsinks {
            pass.add_parameter(sinks_place, dsinks)?;
        }
        let mut biases = self.biases.iter().zip(dbiases);
        biases.try_for_each(|(bias, gradient)| match gradient {
            Some(gradient) => pass.add_parameter(bias.place, gradient),
            None => Ok(()),
        })
    }
}
