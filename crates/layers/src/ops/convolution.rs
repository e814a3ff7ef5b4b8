//! A causal convolution along the positions of each sequence, for each column alone.

use std::sync::Arc;

use candle_blocks_kernels::rows::convolution;
use candle_blocks_kernels::rows::{column_sums, elements};
use candle_blocks_kernels::{Cpu, Slice};
use candle_core::{Result, Tensor, bail};

use super::kernels::{Data, readable, same_type};
use super::numbers::Numbers;
use super::tap_table::TapTable;
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};

const OP: &str = "convolution";

impl Value {
    /// Computes `y[r] = bias + Σ_t weight[.., t] · x[source(r, t)]` for rows `[.., width]`, equal to
    /// `torch.nn.Conv1d(width, width, taps, groups=width)` on a sequence after `taps - 1` earlier rows or zeros.
    ///
    /// # Shapes
    /// `weight` is `[width, 1, taps]`, read in place if each tap's elements lie side by side, `bias` `[width]` and `before`
    /// `[batch, taps - 1, width]`, which gets no gradient.
    pub(crate) fn convolve(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        before: Option<&Tensor>,
        table: &Arc<TapTable>,
    ) -> Result<Self> {
        self.check_convolution(weight, bias, before, table)?;
        on_either!(self, x => Ok(x.convolve(weight, bias, before, table)?.into()))
    }

    /// Returns the rows that precede those of the next pass, `[batch, taps - 1, width]`.
    pub(crate) fn rows_after(&self, before: Option<&Tensor>, table: &TapTable) -> Result<Tensor> {
        let earlier = table.taps().saturating_sub(1);
        let batch = table.after().len() / earlier.max(1);
        let dims = vec![batch, earlier, self.width()];
        on_either!(self, x => x.rows_after(before, table, &dims))
    }

    fn check_convolution(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        before: Option<&Tensor>,
        table: &TapTable,
    ) -> Result<()> {
        let (width, taps) = (self.width(), table.taps());
        let rows = self.dims().iter().product::<usize>() / width.max(1);
        let n_before = before.map_or(0, Tensor::elem_count) / width.max(1);
        let fits = weight.dims() == [width, 1, taps]
            && bias.is_none_or(|bias| bias.dims() == [width])
            && (rows, n_before) == (table.n_rows(), table.n_before());
        if !fits {
            bail!(
                "{OP}: a weight of {:?} and {n_before} earlier rows do not fit an input of {:?}",
                weight.dims(),
                self.dims()
            );
        }
        let types = [Some(weight), bias, before].into_iter().flatten();
        match types
            .map(Tensor::dtype)
            .find(|dtype| *dtype != self.dtype())
        {
            Some(dtype) => bail!(
                "{OP}: a parameter or state is {dtype:?}, but the input is {:?}; convert one with to_dtype",
                self.dtype()
            ),
            None => Ok(()),
        }
    }
}

/// Returns the earlier rows of a pass, or none, in the type of `like`.
fn earlier(before: Option<&Tensor>, like: &Numbers) -> Result<Data> {
    match before {
        Some(before) => readable(before.detach().contiguous()?),
        None => Ok(Numbers::new(like.dtype(), 0)?.into()),
    }
}

impl Taped<Cpu> {
    fn convolve(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        before: Option<&Tensor>,
        table: &Arc<TapTable>,
    ) -> Result<Self> {
        let x = self.whole()?;
        let width = x.slot.width;
        let of_weight = x.place(weight, Reads::Both);
        let weight = readable(weight.detach().permute((2, 1, 0))?.contiguous()?)?;
        let bias = bias.map(|bias| x.parameter(bias, Reads::Forward));
        let bias = bias.transpose()?;
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        let before = earlier(before, &y)?;
        {
            let bias = bias.as_ref().map(|(bias, _)| bias.read());
            let weight = weight.read();
            let convolution = convolution::Convolution {
                width,
                weight: weight.slice(),
                bias: bias.as_ref().map(|bias| bias.slice()),
                sources: table.sources(),
            };
            let rows = x.data.read();
            let (before, rows) = (before.read(), rows.slice());
            convolution.apply(x.engine(), before.slice(), rows, y.slice_mut());
        }
        let of_bias = bias.and_then(|(_, place)| place);
        let asks = [x.slot.place, of_weight, of_bias];
        let (data, slot) = (of_weight.map(|_| x.data.clone()), x.slot.clone());
        let (table, dtype) = (table.clone(), x.dtype());
        Ok(x.mapped(y, &asks, move |pass, dy| {
            pass.add_column_sums(of_bias, &dy, width)?;
            if let Some(x) = &data {
                let (x, before) = (x.read(), before.read());
                let rows = [before.slice(), x.slice()];
                let dweight = weight_gradient(pass.engine, &table, rows, width, &dy)?;
                pass.add_parameter(of_weight, dweight)?;
            }
            if slot.place.is_none() {
                return Ok(());
            }
            let mut dx = Numbers::new(dtype, dy.len())?;
            let reversed = table.reversed();
            let weight = weight.read();
            let convolution = convolution::Convolution {
                width,
                weight: weight.slice(),
                bias: None,
                sources: &reversed,
            };
            let none = Numbers::new(dtype, 0)?;
            convolution.apply(pass.engine, none.slice(), dy.slice(), dx.slice_mut());
            pass.add(&slot, dx)
        }))
    }

    fn rows_after(
        &self,
        before: Option<&Tensor>,
        table: &TapTable,
        dims: &[usize],
    ) -> Result<Tensor> {
        let x = self.whole()?;
        let mut after = Numbers::new(x.dtype(), dims.iter().product())?;
        let before = earlier(before, &after)?;
        let rows = x.data.read();
        let (before, width) = (before.read(), x.slot.width);
        let to = after.slice_mut();
        convolution::gather(width, table.after(), before.slice(), rows.slice(), to);
        after.into_tensor(dims)
    }
}

/// Returns `dw[c, 0, t] = Σ_r dy[r, c] · x[source(r, t), c]`.
fn weight_gradient(
    cpu: Cpu,
    table: &TapTable,
    [before, x]: [Slice; 2],
    width: usize,
    dy: &Numbers,
) -> Result<Numbers> {
    let taps = table.taps();
    let mut dweight = Numbers::new(dy.dtype(), width * taps)?;
    let mut sums = Numbers::new(dy.dtype(), width)?;
    let mut products = Numbers::new(dy.dtype(), dy.len())?;
    for tap in 0..taps {
        let sources = table.sources().iter().skip(tap).step_by(taps);
        let sources: Vec<u32> = sources.copied().collect();
        convolution::gather(width, &sources, before, x, products.slice_mut());
        elements::multiply(cpu, products.slice_mut(), dy.slice());
        column_sums(cpu, products.slice(), sums.slice_mut());
        same_type!(dweight.slice_mut(), sums.slice(), |to, from| {
            for (c, &sum) in from.iter().enumerate() {
                to[c * taps + tap] = sum;
            }
        });
    }
    Ok(dweight)
}
