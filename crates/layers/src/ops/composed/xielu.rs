//! xIELU, whose parameters stay on their device.

use candle_core::Result;

use crate::ops::{tape::Reads, xielu::XieluNumbers};

use super::{Array, Composed, Taped, column_sums};

impl Taped<Composed> {
    pub(in crate::ops) fn xielu(&self, numbers: XieluNumbers) -> Result<Self> {
        let asks = [numbers.positive, numbers.negative];
        let asks = asks.map(|number| self.place(number, Reads::Both));
        let one = |tensor| Array::of(tensor).widened()?.reshape(&[1]);
        let learned = [one(numbers.positive)?, one(numbers.negative)?];
        let (slope, knee) = (one(numbers.slope)?, one(numbers.knee)?);
        let factors = [softplus(&learned[0])?, softplus(&learned[1])?.add(&slope)?];
        let (slot, dtype, x) = (self.slot.clone(), self.dtype(), self.view()?.contiguous()?);
        let y = if x.is_empty() {
            x.clone()
        } else {
            let wide = x.widened()?;
            let [right, left] = sides(&wide, &knee)?;
            let curved = right.mul(&factors[0])?.add(&left.mul(&factors[1])?)?;
            curved.add(&wide.mul(&slope)?)?.to_dtype(dtype)?
        };
        let places = [slot.place, asks[0], asks[1]];
        Ok(self.mapped(y, &places, move |pass, dy| {
            if x.is_empty() {
                return pass.add(&slot, dy);
            }
            let (wide, dy) = (x.widened()?, dy.widened()?);
            for ((place, side), learned) in asks.into_iter().zip(sides(&wide, &knee)?).zip(&learned)
            {
                if place.is_some() {
                    let sum = column_sums(&dy.mul(&side)?)?.sum(0)?;
                    pass.add_parameter(place, sum.mul(&learned.sigmoid()?)?.to_dtype(dtype)?)?;
                }
            }
            let zeros = wide.zeros(wide.dims())?;
            let positive = wide.gt(&zeros)?;
            let below = wide.lt(&knee)?;
            let rising = below.select(&wide.at_most(0.0)?.exp()?, &zeros)?;
            let right = wide.mul(&factors[0])?.affine(2.0, 0.0)?;
            let left = rising.affine(1.0, -1.0)?.mul(&factors[1])?;
            let slopes = positive.select(&right, &left)?.add(&slope)?;
            pass.add(&slot, dy.mul(&slopes)?.to_dtype(dtype)?)
        }))
    }
}

/// Returns the factors for the positive and the negative side: `x²` and 0, or 0 and `exp(min(x, knee)) - 1 - x`.
fn sides(x: &Array, knee: &Array) -> Result<[Array; 2]> {
    let zeros = x.zeros(x.dims())?;
    let low = x.lt(knee)?.select(x, &zeros.add(knee)?)?;
    // `exp(x) - 1` without cancellation.
    let less_one = low
        .affine(0.5, 0.0)?
        .tanh()?
        .mul(&low.exp()?.affine(1.0, 1.0)?)?;
    let positive = x.gt(&zeros)?;
    Ok([
        positive.select(&x.sqr()?, &zeros)?,
        positive.select(&zeros, &less_one.sub(x)?)?,
    ])
}

/// Computes `max(x, 0) + ln(1 + exp(-|x|))`.
fn softplus(x: &Array) -> Result<Array> {
    // `ln(1 + e)` as `ln(u) + (e - (u - 1)) / u` with `u = 1 + e` rounded.
    let e = x.abs()?.affine(-1.0, 0.0)?.exp()?;
    let u = e.affine(1.0, 1.0)?;
    let lost = e.sub(&u.affine(1.0, -1.0)?)?.div(&u)?;
    x.at_least(0.0)?.add(&u.log()?.add(&lost)?)
}
