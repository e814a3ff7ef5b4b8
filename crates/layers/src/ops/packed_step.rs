//! Steps with packed weights: in f32, in evaluation, on the CPU.
//!
//! A packed layer is one step. It reads rows, applies an attached norm as it reads them, and adds a residual in its last
//! product's epilogue.

use std::sync::Arc;

use candle_blocks_kernels::products::Epilogue;
use candle_blocks_kernels::rows::{RowNorm, Source};
use candle_blocks_kernels::{Cpu, Slice, SliceMut};
use candle_core::{DType, Device, Result, Tensor, bail};

use super::cpu::Route;
use super::kernels::{Data, Normalized, owned};
use super::numbers::{Numbers, allocated};
use super::value::Value;
use super::weight::Packed;
use crate::config::Precision;

const OP: &str = "linear";

impl Value {
    /// Starts a tape for packed layers with a tensor, converted to f32.
    ///
    /// # Errors
    /// If the tensor requires a gradient, is not F32, F16 or BF16, or is not on the CPU.
    pub fn packed(op: &str, x: &Tensor) -> Result<Self> {
        check(op, x.track_op(), x.dtype(), x.device())?;
        Self::on(Route::Kernels, Precision::F32, &x.to_dtype(DType::F32)?)
    }

    /// Applies a packed layer to a tensor, and returns the result in the tensor's type.
    ///
    /// # Errors
    /// Same as for [`Self::packed`], and `layer`'s errors.
    pub fn through_packed(
        op: &str,
        x: &Tensor,
        layer: impl FnOnce(&Self) -> Result<Self>,
    ) -> Result<Tensor> {
        layer(&Self::packed(op, x)?)?.tensor()?.to_dtype(x.dtype())
    }

    /// Returns the rows with a norm that the next packed product applies as it reads them. Gives back values that are not
    /// untracked f32 rows for the kernels.
    pub fn normalized_by(self, norm: &Arc<RowNorm>) -> Result<std::result::Result<Self, Self>> {
        self.untracked(norm.width(), |engine, rows| {
            let norm = norm.clone();
            Ok(Data::Normalized(Arc::new(Normalized {
                rows,
                norm,
                engine,
            })))
        })
    }

    /// Normalizes the rows, in place if nobody else reads them. Gives back values that are not untracked f32 rows for the
    /// kernels.
    pub fn into_normalized(self, norm: &RowNorm) -> Result<std::result::Result<Self, Self>> {
        self.untracked(norm.width(), |engine, rows| {
            let mut rows = owned(rows)?;
            if let SliceMut::F32(rows) = rows.slice_mut() {
                norm.rows_in_place(engine, rows);
            }
            Ok(rows.into())
        })
    }

    /// Changes the data of untracked f32 rows of `width` columns for the kernels.
    fn untracked(
        self,
        width: usize,
        change: impl FnOnce(Cpu, Data) -> Result<Data>,
    ) -> Result<std::result::Result<Self, Self>> {
        match self {
            Self::Kernels(x)
                if x.dtype() == DType::F32 && x.slot.place.is_none() && x.slot.is_whole() =>
            {
                check_width("norm", x.dims(), width)?;
                let engine = x.engine();
                Ok(Ok(x.with_data(|data| change(engine, data))?.into()))
            }
            other => Ok(Err(other)),
        }
    }

    /// Computes one step: f32 rows of `dims` from this value's rows and those of a residual.
    ///
    /// # Errors
    /// If this value does not have `d_in` columns, or the residual has another shape than `dims`; same as for
    /// [`Self::packed`]; and `compute`'s errors.
    pub fn packed_step(
        &self,
        op: &str,
        d_in: usize,
        dims: Vec<usize>,
        residual: Option<&Self>,
        compute: impl FnOnce(Cpu, &Source, Option<&[f32]>, &mut [f32]) -> Result<()>,
    ) -> Result<Self> {
        check(op, self.is_tracked(), self.dtype(), &self.device())?;
        check_width(op, self.dims(), d_in)?;
        let (Self::Kernels(x), DType::F32) = (self, self.dtype()) else {
            bail!("{op} is packed and takes f32 rows on the CPU");
        };
        let x = x.whole()?;
        let residual = residual.map(|residual| x.on_tape(residual)?.whole());
        let residual = residual.transpose()?;
        if residual.as_ref().is_some_and(|of| of.dims() != dims) {
            bail!("{op}: a residual of another shape than {dims:?}");
        }
        let mut y = allocated(dims.iter().product())?;
        {
            let (rows, norm) = match &x.data {
                Data::Normalized(of) => (of.rows.read(), Some(&*of.norm)),
                data => (data.read(), None),
            };
            let rows = Source::new(of_f32(op, rows.slice())?, d_in).with_norm(norm);
            let residual = residual.as_ref().map(|residual| residual.data.read());
            let residual = residual.as_ref().map(|of| of_f32(op, of.slice()));
            compute(x.engine(), &rows, residual.transpose()?, &mut y)?;
        }
        let y = Numbers::F32(y);
        Ok(x.computed((y, dims), &[], |_, _| Ok(())).into())
    }

    /// Multiplies by a packed weight, in f32 for every input type, and adds an f32 `bias` and a `residual`.
    pub(super) fn packed_linear(
        &self,
        Packed(weight): &Packed,
        bias: Option<&Tensor>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        check(OP, self.is_tracked(), self.dtype(), &self.device())?;
        let dtype = self.dtype();
        if let Self::Kernels(_) = self
            && dtype == DType::F32
        {
            let bias = bias.cloned().map(Data::Tensor);
            let bias = bias.as_ref().map(Data::read);
            let bias = bias.as_ref().map(|bias| of_f32(OP, bias.slice()));
            let bias = bias.transpose()?;
            let mut dims = self.dims().to_vec();
            if let Some(last) = dims.last_mut() {
                *last = weight.d_out();
            }
            return self.packed_step(OP, weight.d_in(), dims, residual, |cpu, x, residual, y| {
                let epilogue = Epilogue {
                    residual,
                    ..Epilogue::bias(bias)
                };
                weight.multiply(cpu, x, &epilogue, y);
                Ok(())
            });
        }
        let x = self.clone().tensor()?.to_dtype(DType::F32)?;
        let x = Self::on(Route::Kernels, Precision::F32, &x)?;
        let y = x.packed_linear(&Packed(weight.clone()), bias, None)?;
        let y = self.beside(&y.tensor()?.to_dtype(dtype)?)?;
        y.added_to(residual)
    }

    /// Returns the last of every `each` rows of sequences `[batch, each, width]`, as `[batch, 1, width]`.
    pub fn last_of_each(&self, each: usize) -> Result<Self> {
        let Self::Kernels(x) = self else {
            bail!("the last rows of sequences are taken on the CPU");
        };
        let (n, width) = (x.rows() / each.max(1), self.width());
        let (stride, columns) = (x.slot.width, &x.slot.columns);
        let rows = x.data.read();
        let rows = of_f32("last rows", rows.slice())?;
        let mut y = allocated(n * width)?;
        for (i, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
            let first = ((i + 1) * each - 1) * stride + columns.start;
            y.copy_from_slice(&rows[first..first + width]);
        }
        let y = (Numbers::F32(y), vec![n, 1, width]);
        Ok(x.computed(y, &[], |_, _| Ok(())).into())
    }
}

fn of_f32<'a>(op: &str, slice: Slice<'a>) -> Result<&'a [f32]> {
    match slice {
        Slice::F32(elements) => Ok(elements),
        _ => bail!("{op}: a packed weight multiplies f32"),
    }
}

fn check(op: &str, is_tracked: bool, dtype: DType, device: &Device) -> Result<()> {
    if is_tracked {
        bail!(
            "{op} is packed and has no gradient, but its input tracks gradients; train the layer before you pack it, or detach the input"
        );
    }
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        bail!(
            "{op} is packed and takes F32, F16 or BF16, but its input is {dtype:?}; convert it with to_dtype"
        );
    }
    if !device.is_cpu() {
        bail!(
            "{op} is packed for the CPU, but its input is on another device; move it with to_device"
        );
    }
    Ok(())
}

fn check_width(op: &str, dims: &[usize], d_in: usize) -> Result<()> {
    match dims.last() {
        Some(&width) if width == d_in => Ok(()),
        _ => bail!("{op}: input has shape {dims:?}, expected [.., {d_in}]"),
    }
}
