//! Attention whose backward pass recomputes the probabilities.

use candle_core::Result;

use crate::ops::bias_tensor::four;
use crate::ops::constants::Hidden;
use crate::ops::mixing::Mixing;
use crate::ops::relative_scores::PlacedTerm;
use crate::ops::slot::Slot;
use crate::ops::softmax::SoftmaxInput;
use crate::ops::tape::Reads;

use super::elements::dropped;
use super::softmax::{slope, softmax};
use super::{Array, BackwardPass, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn attend(
        &self,
        key: &Self,
        value: &Self,
        relative: Vec<PlacedTerm<Self>>,
        mixing: &Mixing,
    ) -> Result<Self> {
        let &Mixing {
            batch,
            queries,
            keys,
            n_heads,
            n_kv_heads,
            ..
        } = mixing;
        let mut dims = self.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = value.slot.columns.len() / n_kv_heads * n_heads;
        }
        let operands = [
            (self, n_heads, queries),
            (key, n_kv_heads, keys),
            (value, n_kv_heads, keys),
        ];
        let asks = operands.iter().map(|(of, ..)| of.slot.place);
        let relative = mixing.relative.map(|of| {
            let scores = self.relative_scores(relative, &of, mixing)?;
            Ok((scores.view()?, scores.slot.place))
        });
        let biases = mixing.biases.iter();
        let biases = biases.map(|bias| {
            let bias = bias.of_scores(queries, keys)?;
            Ok((Array::of(&bias), self.place(&bias, Reads::Both)))
        });
        let biases: Vec<_> = relative.into_iter().chain(biases).collect::<Result<_>>()?;
        let places = biases.iter().map(|(_, place)| *place);
        let sinks_place = mixing
            .sinks
            .and_then(|sinks| self.place(sinks, Reads::Both));
        let asks: Vec<Option<usize>> = asks.chain(places).chain([sinks_place]).collect();
        if operands.iter().any(|(of, ..)| of.elem_count() == 0) {
            let slots = operands.map(|(of, ..)| (of.slot.clone(), of.dims().to_vec()));
            let zeros = self.view()?.zeros(&dims)?;
            return Ok(self.computed((zeros, dims), &asks, move |pass, dy| {
                slots
                    .iter()
                    .try_for_each(|(slot, dims)| pass.add(slot, dy.zeros(dims)?))
            }));
        }
        let [query, key, value] =
            operands.map(|(of, heads, seq)| ComposedHeads::new(of, [batch, seq, heads]));
        let (dtype, device) = (self.dtype(), self.data.device());
        let attention = ComposedAttention {
            query: query?,
            key: key?,
            value: value?,
            scale: mixing.scale,
            soft_cap: mixing.soft_cap,
            hidden: Hidden::of(
                mixing.visible,
                mixing.has_mask,
                (queries, keys),
                (dtype, device),
                mixing.constants,
            )?,
            biases,
            sinks: mixing.sinks.map(|sinks| (Array::of(sinks), sinks_place)),
            dropout: mixing.dropout.map(|(keep, p)| (Array::of(keep), 1.0 - p)),
        };
        let (p, _) = attention.probabilities()?;
        let p = attention.of_keys(&p)?;
        let y = attention.in_rows(attention.mixed(&p)?)?.reshape(&dims)?;
        Ok(self.computed((y, dims), &asks, move |pass, dy| {
            attention.backward(pass, &dy)
        }))
    }
}

/// Queries, keys or values, head by head.
struct ComposedHeads {
    data: Array, // [batch, heads, seq, head_dim]
    slot: Slot,
}

impl ComposedHeads {
    fn new(of: &Taped<Composed>, [batch, seq, heads]: [usize; 3]) -> Result<Self> {
        let (width, columns) = (of.slot.width, &of.slot.columns);
        let head_dim = columns.len() / heads;
        let fits = width % head_dim == 0 && columns.start % head_dim == 0;
        let heads_in_rows = match fits {
            // Heads next to each other stay in place.
            true => of
                .data
                .reshape(&[batch, seq, width / head_dim, head_dim])?
                .narrow(2, columns.start / head_dim, heads)?,
            false => of.view()?.reshape(&[batch, seq, heads, head_dim])?,
        };
        Ok(Self {
            data: heads_in_rows.transpose(1, 2)?.contiguous()?,
            slot: of.slot.clone(),
        })
    }
}

struct ComposedAttention {
    query: ComposedHeads,
    key: ComposedHeads,
    value: ComposedHeads,
    scale: f64,
    soft_cap: Option<f64>,
    hidden: Hidden,
    biases: Vec<(Array, Option<usize>)>,
    /// `[n_heads]`.
    sinks: Option<(Array, Option<usize>)>,
    dropout: Option<(Array, f64)>,
}

impl ComposedAttention {
    /// Returns the probabilities `[batch, n_heads, queries, keys]` before dropout, with the sinks as an additional
    /// last key, and the soft cap's `tanh`.
    fn probabilities(&self) -> Result<(Array, Option<Array>)> {
        let key = &self.key.data;
        let scores = self
            .stacked(&self.query.data)?
            .matmul(&key.transpose(2, 3)?)?;
        let [batch, n_heads, queries, keys] = self.sizes();
        let mut scores = scores.reshape(&[batch, n_heads, queries, keys])?;
        let mut bent = None;
        match self.soft_cap {
            None => scores = scores.affine(self.scale, 0.0)?,
            Some(cap) => {
                let tanh = scores.affine(self.scale / cap, 0.0)?.tanh()?;
                scores = tanh.affine(cap, 0.0)?;
                bent = Some(tanh);
            }
        }
        for (bias, _) in &self.biases {
            scores = scores.add(&bias.to_dtype(scores.dtype())?)?;
        }
        if let Some(added) = &self.hidden.added {
            scores = scores.add(added)?;
        }
        if let Some((sinks, _)) = &self.sinks {
            let sinks = sinks.reshape(&[1, n_heads, 1, 1])?;
            let sinks = scores.zeros(&[batch, n_heads, queries, 1])?.add(&sinks)?;
            scores = Array::cat(&[scores, sinks], 3)?;
        }
        let scores_are = match self.hidden.all_see {
            true => SoftmaxInput::Finite,
            false => SoftmaxInput::Any,
        };
        Ok((softmax(&scores, scores_are)?, bent))
    }

    /// Returns the probabilities for keys only.
    fn of_keys(&self, p: &Array) -> Result<Array> {
        match &self.sinks {
            None => Ok(p.clone()),
            Some(_) => p.narrow(3, 0, self.sizes()[3])?.contiguous(),
        }
    }

    fn sizes(&self) -> [usize; 4] {
        let (query, key) = (self.query.data.dims(), self.key.data.dims());
        [query[0], query[1], query[2], key[2]]
    }

    /// Stacks the heads that share a key/value head as more rows in one head, `[batch, n_kv_heads, heads · queries,
    /// ..]`.
    fn stacked(&self, x: &Array) -> Result<Array> {
        let (dims, n_kv_heads) = (x.dims(), self.key.data.dims()[1]);
        let rows = dims[1] / n_kv_heads * dims[2];
        x.reshape(&[dims[0], n_kv_heads, rows, dims[3]])
    }

    /// Stacks probabilities after dropout, for heads that share a key/value head.
    fn kept(&self, p: &Array) -> Result<Array> {
        match &self.dropout {
            Some((keep, divisor)) => self.stacked(&dropped(p, keep, *divisor)?),
            None => self.stacked(p),
        }
    }

    /// `[batch, n_heads, queries, head_dim]`
    fn mixed(&self, p: &Array) -> Result<Array> {
        let [batch, n_heads, queries, _] = self.sizes();
        let mixed = self.kept(p)?.matmul(&self.value.data)?;
        mixed.reshape(&[batch, n_heads, queries, mixed.width()])
    }

    /// Converts heads to rows: `[batch, seq, heads · head_dim]`.
    fn in_rows(&self, heads: Array) -> Result<Array> {
        let [batch, n, seq, head_dim] = four(heads.dims()).unwrap_or_default();
        heads.transpose(1, 2)?.reshape(&[batch, seq, n * head_dim])
    }

    fn backward(&self, pass: &mut BackwardPass<Composed>, dy: &Array) -> Result<()> {
        let [batch, n_heads, queries, keys] = self.sizes();
        let (p, bent) = self.probabilities()?;
        let operands = [&self.query, &self.key, &self.value];
        let [query, key, value] = operands.map(|of| &of.data);
        let dy = dy.reshape(&[batch, queries, n_heads, value.width()])?;
        let dy = self.stacked(&dy.transpose(1, 2)?.contiguous()?)?;

        let dvalue = self
            .kept(&self.of_keys(&p)?)?
            .transpose(2, 3)?
            .matmul(&dy)?;
        let dp = dy.matmul(&value.transpose(2, 3)?)?;
        let dp = dp.reshape(&[batch, n_heads, queries, keys])?;
        let dp = match &self.dropout {
            Some((keep, divisor)) => dropped(&dp, keep, *divisor)?,
            None => dp,
        };
        let mut dscores = match &self.sinks {
            None => slope(&p, &dp)?,
            Some((_, place)) => {
                let none = dp.zeros(&[batch, n_heads, queries, 1])?;
                let all = slope(&p, &Array::cat(&[dp, none], 3)?)?;
                if place.is_some() {
                    let dsinks = summed_to(&all.narrow(3, keys, 1)?, &[n_heads, 1, 1])?;
                    pass.add_parameter(*place, dsinks.reshape(&[n_heads])?)?;
                }
                self.of_keys(&all)?
            }
        };
        for (bias, place) in &self.biases {
            if place.is_some() {
                let gradient = summed_to(&dscores, bias.dims())?.to_dtype(bias.dtype())?;
                pass.add_parameter(*place, gradient)?;
            }
        }
        if let Some(tanh) = bent {
            dscores = dscores.mul(&tanh.sqr()?.affine(-1.0, 1.0)?)?;
        }
        let dscores = self.stacked(&dscores.affine(self.scale, 0.0)?)?;
        let dquery = dscores.matmul(key)?.reshape(query.dims())?;
        let dkey = dscores.transpose(2, 3)?.matmul(&self.stacked(query)?)?;
        for (of, gradient) in operands.into_iter().zip([dquery, dkey, dvalue]) {
            if of.slot.place.is_some() {
                pass.add(&of.slot, self.in_rows(gradient)?)?;
            }
        }
        Ok(())
    }
}

/// Sums over the dimensions along which an array with `dims` was broadcast.
fn summed_to(x: &Array, dims: &[usize]) -> Result<Array> {
    let mut sum = x.clone();
    for (dim, n) in four(dims).unwrap_or_default().into_iter().enumerate() {
        if n == 1 && sum.dims()[dim] > 1 {
            sum = sum.sum(dim)?;
        }
    }
    sum.reshape(dims)
}
