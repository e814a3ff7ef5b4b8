//! The same operations composed of candle's own, for devices without kernels of this crate.
//!
//! Only candle operations whose backward pass is exact are used: its `relu` has slope 1 at 0, its `gelu` has
//! truncated constants, and `recip(1 + exp(-x))` turns NaN where `exp` overflows.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use candle_core::{D, DType, Device, Result, Tensor};

use candle_blocks_kernels::rows::activation::{LAPLACE_CENTER, LAPLACE_WIDTH};

use super::attention::Mixing;
use super::visible::{Reach, Visible};
use crate::config::{Activation, NormConfig, NormKind, NormWeight, RotaryPairing};

/// As [`super::linear()`], with its arguments already checked.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (d_out, d_in) = weight.dims2()?;
    let mut dims = x.dims().to_vec();
    dims.pop();
    let rows: usize = dims.iter().product();
    dims.push(d_out);
    let y = x.reshape((rows, d_in))?.matmul(&weight.t()?)?;
    let y = match bias {
        None => y,
        Some(bias) => y.broadcast_add(bias)?,
    };
    y.reshape(dims)
}

/// `factor · x`.
///
/// candle's `affine` takes a factor of 0 for a cut in the graph, and what is before it gets no gradient. Here it gets
/// zeros, as in PyTorch.
pub fn scaled(x: &Tensor, factor: f64) -> Result<Tensor> {
    if factor == 0.0 {
        return x.broadcast_mul(&Tensor::zeros((), x.dtype(), x.device())?);
    }
    x.affine(factor, 0.0)
}

/// As [`super::rotate`], with its arguments already checked.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Tensor> {
    let (batch, seq, heads, head_dim) = x.dims4()?;
    let pairs = cos.dim(D::Minus1)?;
    let (cos, sin) = (cos.unsqueeze(2)?, sin.unsqueeze(2)?); // [batch or 1, seq, 1, pairs]
    let turning = x.narrow(3, 0, 2 * pairs)?;
    let (a, b) = match pairing {
        RotaryPairing::Halves => (
            turning.narrow(3, 0, pairs)?,
            turning.narrow(3, pairs, pairs)?,
        ),
        RotaryPairing::Interleaved => {
            let split = turning.reshape((batch, seq, heads, pairs, 2))?;
            (
                split.narrow(4, 0, 1)?.squeeze(4)?,
                split.narrow(4, 1, 1)?.squeeze(4)?,
            )
        }
    };
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let turned = match pairing {
        RotaryPairing::Halves => Tensor::cat(&[first, second], 3)?,
        RotaryPairing::Interleaved => {
            Tensor::stack(&[first, second], 4)?.reshape((batch, seq, heads, 2 * pairs))?
        }
    };
    let rest = head_dim - 2 * pairs;
    if rest == 0 {
        return Ok(turned);
    }
    Tensor::cat(&[turned, x.narrow(3, 2 * pairs, rest)?], 3)
}

/// As [`super::Value::attend`], with its arguments already checked.
pub fn attention(query: &Tensor, key: &Tensor, value: &Tensor, mixing: &Mixing) -> Result<Tensor> {
    let Mixing {
        batch,
        queries,
        keys,
        n_heads,
        n_kv_heads,
        ..
    } = *mixing;
    // [.., seq, heads · head_dim] -> [batch, heads, seq, head_dim]
    let heads = |x: &Tensor, n: usize, seq: usize| {
        let head_dim = x.dim(D::Minus1)? / n;
        x.reshape((batch, seq, n, head_dim))?
            .transpose(1, 2)?
            .contiguous()
    };
    let (key, value) = (
        heads(key, n_kv_heads, keys)?,
        heads(value, n_kv_heads, keys)?,
    );
    let scaled = scaled(&heads(query, n_heads, queries)?, mixing.scale)?;
    // The query heads of one key/value head lie side by side: stack them as more rows.
    let rows = n_heads / n_kv_heads * queries;
    let stacked = scaled.reshape((batch, n_kv_heads, rows, key.dim(3)?))?;
    let mut scores = stacked
        .matmul(&key.transpose(2, 3)?.contiguous()?)?
        .reshape((batch, n_heads, queries, keys))?;
    if let Some(cap) = mixing.soft_cap {
        scores = scores.affine(1.0 / cap, 0.0)?.tanh()?.affine(cap, 0.0)?;
    }
    for bias in mixing.biases {
        scores = scores.broadcast_add(bias)?;
    }
    let mut p = attention_softmax(&scores, mixing.visible)?;
    if let Some((keep, of)) = mixing.dropout {
        p = dropout(&p, keep, 1.0 - of)?;
    }
    let mixed = p
        .reshape((batch, n_kv_heads, rows, keys))?
        .matmul(&value)?
        .reshape((batch, n_heads, queries, value.dim(3)?))?
        .transpose(1, 2)?;
    let mut dims = query.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = n_heads * value.dim(3)?;
    }
    mixed.reshape(dims)
}

/// As [`super::norm()`], with its arguments already checked.
pub fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: &NormConfig,
) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = widened(x)?;
    let centred = match config.kind {
        NormKind::RmsNorm => x,
        // Twice, because the first mean is rounded.
        NormKind::LayerNorm => without_mean(&without_mean(&x)?)?,
    };
    let mean_square = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normal = centred.broadcast_div(&(mean_square + config.eps)?.sqrt()?)?;
    let normal = match (config.kind, config.weight) {
        (NormKind::RmsNorm, NormWeight::Plain) => widened(&normal.to_dtype(dtype)?)?,
        _ => normal,
    };
    let gain = match config.weight {
        NormWeight::Plain | NormWeight::Absent => widened(weight)?,
        NormWeight::OnePlus => (widened(weight)? + 1.0)?,
    };
    let y = normal.broadcast_mul(&gain)?;
    let y = match bias {
        Some(bias) => y.broadcast_add(&widened(bias)?)?,
        None => y,
    };
    y.to_dtype(dtype)
}

/// As [`super::activate`], with its argument already checked.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = &widened(x)?;
    let y = match activation {
        Activation::Gelu => gelu(x)?,
        Activation::GeluTanh => {
            let inner = (x + (x.sqr()? * x)?.affine(0.044715, 0.0)?)?;
            // 2 √(2/π) = 2 · 2/√π · 1/√2
            (x * sigmoid(&(inner * (2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2))?)?)?
        }
        Activation::QuickGelu => (x * sigmoid(&(x * 1.702)?)?)?,
        Activation::ClippedGelu => {
            let y = gelu(x)?;
            y.ge(10.0)?.where_cond(&constant(10.0, x)?, &y)?
        }
        Activation::Relu => relu(x)?,
        Activation::Relu2 => relu(x)?.sqr()?,
        Activation::Relu6 => relu6(x)?,
        Activation::LeakyRelu => x.gt(0.0)?.where_cond(x, &(x * 0.01)?)?,
        Activation::Silu => (x * sigmoid(x)?)?,
        Activation::Mish => {
            // tanh(softplus(x)) = n / (n + 2) with n = e²ˣ + 2eˣ; for positive x both are divided by e²ˣ, so
            // that the quotient's backward pass, which squares, does not overflow.
            let positive = x.gt(0.0)?;
            let e = positive.where_cond(&x.neg()?, x)?.exp()?;
            let square = e.sqr()?;
            let twice = (&e * 2.0)?;
            let numerator = (&twice + positive.where_cond(&e.ones_like()?, &square)?)?;
            let rest = positive.where_cond(&(square * 2.0)?, &constant(2.0, x)?)?;
            (x * (&numerator / (&numerator + rest)?)?)?
        }
        Activation::HardSwish => hard_swish(x)?,
        Activation::Sigmoid => sigmoid(x)?,
        Activation::Tanh => x.tanh()?,
        Activation::Laplace => {
            let z = ((x - LAPLACE_CENTER)? / LAPLACE_WIDTH)?;
            ((z.erf()? + 1.0)? * 0.5)?
        }
        Activation::SqrtSoftplus => sqrt_softplus(x)?,
        Activation::Identity => x.clone(),
    };
    y.to_dtype(dtype)
}

/// Softmax of scores `[batch, heads, queries, keys]` over the keys that each query sees; zeros where it sees none.
fn attention_softmax(scores: &Tensor, visible: &Visible) -> Result<Tensor> {
    let (batch, _, queries, keys) = scores.dims4()?;
    let reach = Reach::of(visible);
    let mut seen = vec![0u8; queries * keys];
    for query in 0..queries {
        seen[query * keys..][reach.range(query, keys)].fill(1);
    }
    let seen = Tensor::from_vec(seen, (1, 1, queries, keys), scores.device())?;
    let seen = match visible.keep {
        Some(keep) => {
            let keep = keep.ne(0u8)?.reshape((batch, 1, 1, keys))?;
            seen.broadcast_mul(&keep)?
        }
        None => seen,
    };
    softmax(scores, Some(&seen.broadcast_as(scores.shape())?))
}

/// Softmax over the last dimension, of the elements where `seen`, of the same shape, is not 0.
pub fn softmax(x: &Tensor, seen: Option<&Tensor>) -> Result<Tensor> {
    if x.elem_count() == 0 {
        // candle has no maximum over no elements.
        return Ok(x.clone());
    }
    let dtype = x.dtype();
    let x = widened(x)?;
    let minus_infinity = constant(f64::NEG_INFINITY, &x)?;
    let x = match seen {
        Some(seen) => seen.where_cond(&x, &minus_infinity)?,
        None => x,
    };
    // The shift cancels, so that it needs no gradient.
    let max = x.max_keepdim(D::Minus1)?.detach();
    let shift = max
        .eq(f64::NEG_INFINITY)?
        .where_cond(&max.zeros_like()?, &max)?;
    let e = x.broadcast_sub(&shift)?.exp()?;
    let total = e.sum_keepdim(D::Minus1)?;
    let divisor = total.eq(0.0)?.where_cond(&total.ones_like()?, &total)?;
    let y = e.broadcast_div(&divisor)?;
    let y = match seen {
        Some(seen) => seen.where_cond(&y, &y.zeros_like()?)?,
        None => y,
    };
    y.to_dtype(dtype)
}

/// As [`super::dropout()`] divided by `divisor`, with its arguments already checked.
pub fn dropout(x: &Tensor, keep: &Tensor, divisor: f64) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = widened(x)?;
    // Divided by a tensor: candle turns a division by a number into a product with its reciprocal.
    let kept = (&x / constant(divisor, &x)?)?;
    keep.where_cond(&kept, &kept.zeros_like()?)?.to_dtype(dtype)
}

/// Half types as f32, other types unchanged.
fn widened(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F64 => Ok(x.clone()),
        _ => x.to_dtype(DType::F32),
    }
}

/// A number in the shape and type of `like`.
fn constant(value: f64, like: &Tensor) -> Result<Tensor> {
    // Made on the CPU: Metal has no f64 to convert from.
    Tensor::full(value, (), &Device::Cpu)?
        .to_dtype(like.dtype())?
        .to_device(like.device())?
        .broadcast_as(like.shape())
}

fn without_mean(x: &Tensor) -> Result<Tensor> {
    x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)
}

fn gelu(x: &Tensor) -> Result<Tensor> {
    x * (((x * FRAC_1_SQRT_2)?.erf()? + 1.0)? * 0.5)?
}

/// `1 / (1 + e)` or `e / (1 + e)` with `e = exp(-|x|)`, which never overflows.
fn sigmoid(x: &Tensor) -> Result<Tensor> {
    let positive = x.ge(0.0)?;
    let e = positive.where_cond(&x.neg()?, x)?.exp()?;
    positive.where_cond(&e.ones_like()?, &e)? / (&e + 1.0)?
}

fn relu(x: &Tensor) -> Result<Tensor> {
    x.le(0.0)?.where_cond(&x.zeros_like()?, x)
}

fn relu6(x: &Tensor) -> Result<Tensor> {
    x.ge(6.0)?.where_cond(&constant(6.0, x)?, &relu(x)?)
}

fn hard_swish(x: &Tensor) -> Result<Tensor> {
    let middle = ((x * (x + 3.0)?)? / 6.0)?;
    let right = x.ge(3.0)?.where_cond(x, &middle)?;
    x.le(-3.0)?.where_cond(&x.zeros_like()?, &right)
}

/// `exp(x/2)` below -40, `√x` above 20, `√ln(1 + exp(x))` between.
fn sqrt_softplus(x: &Tensor) -> Result<Tensor> {
    let (low, high) = (x.lt(-40.0)?, x.gt(20.0)?);
    // Each branch gets only arguments that it is finite for: `where_cond` passes gradients of 0 to the branch
    // not taken, and 0 · inf would be NaN.
    let zeros = x.zeros_like()?;
    let exponential = (low.where_cond(x, &zeros)? * 0.5)?.exp()?;
    let root = high.where_cond(x, &x.ones_like()?)?.sqrt()?;
    let middle = low.where_cond(&zeros, &high.where_cond(&zeros, x)?)?;
    let between = ln_1p(&middle.exp()?)?.sqrt()?;
    low.where_cond(&exponential, &high.where_cond(&root, &between)?)
}

/// `ln(1 + e)` for `e >= 0`, as `ln(u) + (e - (u - 1)) / u` with `u = 1 + e` rounded.
fn ln_1p(e: &Tensor) -> Result<Tensor> {
    let u = (e + 1.0)?;
    // What the sum has lost of `e`. It is a constant for the gradient, which is 1 / u without it.
    let lost = ((e - (&u - 1.0)?)? / &u)?.detach();
    u.log()? + lost
}

#[cfg(test)]
mod tests;
