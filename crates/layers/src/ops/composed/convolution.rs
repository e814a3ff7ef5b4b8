//! A causal convolution along the positions of each sequence, for each column alone.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::{Array, Composed, Taped};
use crate::ops::tap_table::{TapTable, by_tap};
use crate::ops::tape::Reads;

impl Taped<Composed> {
    pub(in crate::ops) fn convolve(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        before: Option<&Tensor>,
        table: &Arc<TapTable>,
    ) -> Result<Self> {
        let of_weight = self.place(weight, Reads::Both);
        let of_bias = bias.and_then(|bias| self.place(bias, Reads::Forward));
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let (taps, width) = (table.taps(), slot.width);
        let device = self.data.device().clone();
        let weight = Array::of(weight).widened()?;
        let weights = (0..taps).map(|tap| weight.narrow(2, tap, 1)?.reshape(&[1, width]));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let rows = self.rows_of_taps(before)?;
        let mut y = sum_of_taps(&rows, table.on_device(&device)?, &weights)?;
        if let Some(bias) = bias {
            y = y.add(&Array::of(bias).widened()?)?;
        }
        let rows = of_weight.map(|_| rows);
        let (table, asks) = (table.clone(), [slot.place, of_weight, of_bias]);
        let y = y.to_dtype(dtype)?.reshape(self.dims())?;
        Ok(self.mapped(y, &asks, move |pass, dy| {
            let dy = dy.rows()?.widened()?;
            pass.add_column_sums(of_bias, || Ok(dy.clone()), dtype)?;
            if let Some(rows) = &rows {
                let of_tap = |ids: &Array| {
                    let products = dy.mul(&rows.select_rows(ids)?.widened()?)?;
                    super::column_sums(&products)?.reshape(&[width, 1, 1])
                };
                let taps = table.on_device(&device)?.iter().map(of_tap);
                let dweight = Array::cat(&taps.collect::<Result<Vec<_>>>()?, 2)?;
                pass.add_parameter(of_weight, dweight.to_dtype(dtype)?)?;
            }
            if slot.place.is_none() {
                return Ok(());
            }
            let n_rows = table.n_rows();
            let reversed = by_tap(&table.reversed(), taps, n_rows, &device)?;
            let dy = Array::cat(&[dy.clone(), dy.zeros(&[1, width])?], 0)?;
            pass.add(
                &slot,
                sum_of_taps(&dy, &reversed, &weights)?.to_dtype(dtype)?,
            )
        }))
    }

    pub(in crate::ops) fn rows_after(
        &self,
        before: Option<&Tensor>,
        table: &TapTable,
        dims: &[usize],
    ) -> Result<Tensor> {
        let rows = self.rows_of_taps(before)?;
        let zeros = table.n_before() + table.n_rows();
        let after = by_tap(table.after(), 1, zeros, rows.device())?;
        Ok(rows.select_rows(&after[0])?.reshape(dims)?.into_tensor())
    }

    /// Returns the earlier rows, those of this value and a row of zeros.
    fn rows_of_taps(&self, before: Option<&Tensor>) -> Result<Array> {
        let x = self.view()?.rows()?;
        let zeros = x.zeros(&[1, x.width()])?;
        let before = before.map(|before| Array::of(before).rows()).transpose()?;
        let parts: Vec<Array> = before.into_iter().chain([x, zeros]).collect();
        Array::cat(&parts, 0)
    }
}

/// Returns `Σ_t weight[t] · rows[id(t)]`, in f32 for half types.
fn sum_of_taps(rows: &Array, taps: &[Array], weights: &[Array]) -> Result<Array> {
    let mut sum: Option<Array> = None;
    for (ids, weight) in taps.iter().zip(weights) {
        let term = rows.select_rows(ids)?.widened()?.mul(weight)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&term)?,
            None => term,
        });
    }
    sum.map_or_else(|| rows.narrow(0, 0, 0), Ok)
}
