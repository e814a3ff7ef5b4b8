//! `y = x·Wᵀ + b` with its three gradients, through this crate's own products.

use candle_core::{
    CpuStorage, Layout, Result, Shape, Storage, Tensor, backend::BackendStorage, bail,
};

use super::{
    collected::handed_over,
    product_dtype,
    storage::{Float, check_float, gradient, slice, tensor_slice},
    threads,
    weighted::{self, Argument, Weighted},
};
use crate::cpu::{
    bias::column_sums,
    gemm::{self, Epilogue, Plain},
    isa::Isa,
    recycled::{Buffer, Recycled},
    view::View,
};

const OP: &str = "linear";

/// Maps the last dimension: `torch.nn.functional.linear(x, weight, bias)`.
///
/// On the CPU the order of addition is fixed: a row's bits depend on that row, the weight, the bias and the
/// instruction set ([`super::isa`]), and on nothing else. f16 and bf16 are widened to f32 once per call, and
/// the result is rounded once.
///
/// # Shapes
/// `x` `[.., d_in]` of any rank from 1, `weight` `[d_out, d_in]`, `bias` `[d_out]`; the result is
/// `[.., d_out]`. Any of them may be a view. Without rows the result is empty; where `d_in` is 0 it is the bias.
///
/// # Errors
/// If shapes or types do not fit, or the environment asks for an instruction set that is unknown or that this
/// CPU lacks.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    check(x, weight, bias)?;
    let (d_out, d_in) = weight.dims2()?;
    let mut dims = x.dims().to_vec();
    dims.pop();
    let rows: usize = dims.iter().product();
    dims.push(d_out);
    let dtype = product_dtype(x);
    let weight = weight.to_dtype(dtype)?;
    let bias = bias.map(|bias| bias.to_dtype(dtype)).transpose()?;
    if x.device().is_cpu() {
        // No reshape, through each of which candle would copy the gradient twice in the backward pass.
        let wide = x.to_dtype(dtype)?;
        let wide = if x.rank() == 2 {
            wide
        } else {
            wide.contiguous()?
        };
        let y = weighted::apply(Product, &wide, &weight, bias.as_ref())?;
        return y.to_dtype(x.dtype());
    }
    let y = x
        .reshape((rows, d_in))?
        .to_dtype(dtype)?
        .matmul(&weight.t()?)?;
    let y = match bias {
        None => y,
        Some(bias) => y.broadcast_add(&bias)?,
    };
    y.to_dtype(x.dtype())?.reshape(dims)
}

/// The name of the instruction set that products on the CPU use: `portable`, `neon` (64-bit Arm), `avx2`,
/// `avx512`, `avx512_vnni` or `avx512_bf16` (x86-64). It is the fastest that the CPU has, unless the
/// environment variable `CANDLE_BLOCKS_ISA` names one. The last two are AVX-512 with dot products of int8, and
/// of int8 and bfloat16.
///
/// # Errors
/// If the variable names one that is unknown or that this CPU lacks.
pub fn isa() -> Result<&'static str> {
    selected_isa().map(Isa::name)
}

pub(crate) fn selected_isa() -> Result<Isa> {
    Isa::selected().map_err(candle_core::Error::wrap)
}

fn check(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    check_float(OP, x)?;
    let (d_out, d_in) = weight.dims2()?;
    if x.dtype() != weight.dtype() {
        bail!(
            "{OP}: input is {:?}, weight {:?}; convert one with to_dtype",
            x.dtype(),
            weight.dtype()
        );
    }
    if x.dims().last() != Some(&d_in) {
        bail!(
            "{OP}: input has shape {:?}, expected [.., {d_in}] for a weight of [{d_out}, {d_in}]",
            x.dims()
        );
    }
    if let Some(bias) = bias
        && (bias.dims() != [d_out] || bias.dtype() != x.dtype())
    {
        bail!(
            "{OP}: bias is {:?} {:?}, expected {:?} [{d_out}] for a weight of [{d_out}, {d_in}]",
            bias.dtype(),
            bias.dims(),
            x.dtype()
        );
    }
    Ok(())
}

/// Runs `$body` with `$T` the type that products of a dtype are computed in.
macro_rules! with_product {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => candle_core::bail!("{}: a product of {other:?}", $op),
        }
    };
}
pub(super) use with_product;

/// `x` `[.., k]` times a weight `[n, k]` and an optional bias `[n]`, in f32 or f64.
struct Product;

impl Weighted for Product {
    const NAME: &'static str = OP;

    fn forward(
        &self,
        x: Argument,
        weight: Argument,
        bias: Option<Argument>,
    ) -> Result<(CpuStorage, Shape)> {
        with_product!(OP, x.0.dtype(), T => forward::<T>(x, weight, bias))
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        with_product!(OP, x.dtype(), T => backward::<T>(x, weight, bias, grad))
    }
}

fn forward<T: Float + Plain>(
    (x, x_layout): Argument,
    (weight, weight_layout): Argument,
    bias: Option<Argument>,
) -> Result<(CpuStorage, Shape)> {
    let x = view(x.as_slice::<T>()?, x_layout)?;
    let weight = view(weight.as_slice::<T>()?, weight_layout)?;
    let bias = bias.map(|(bias, layout)| slice(OP, bias, layout));
    let mut dims = x_layout.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = weight.rows();
    }
    let epilogue = Epilogue::bias(bias.transpose()?);
    let y = product(x, weight.transposed(), &epilogue)?;
    Ok((T::to_cpu_storage_owned(y), dims.into()))
}

/// `dx = dy·W`, `dW = dyᵀ·x` and the sum of `dy` over the rows, each only where it is needed.
fn backward<T: Float + Plain + Recycled>(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    grad: &Tensor,
) -> Result<[Option<Tensor>; 3]> {
    let (dy_storage, dy_layout) = grad.storage_and_layout();
    let dy = tensor_view::<T>(&dy_storage, dy_layout)?;
    let dx = || {
        let (weight, layout) = weight.storage_and_layout();
        let dx = product(dy, tensor_view(&weight, layout)?, &Epilogue::NONE)?;
        gradient(dx, x)
    };
    let dweight = || {
        let (x, layout) = x.storage_and_layout();
        let isa = selected_isa()?;
        let x = tensor_view(&x, layout)?;
        let mut dweight = Buffer::new(weight.elem_count());
        gemm::multiply(
            isa,
            dy.transposed(),
            x,
            &Epilogue::NONE,
            &mut dweight,
            threads(),
        );
        handed_over(dweight, weight)
    };
    let dbias = |bias: &Tensor| {
        let dy = tensor_slice::<T>(OP, &dy_storage, dy_layout)?;
        let sums = column_sums(dy, bias.elem_count());
        handed_over(Buffer::copied(&sums), bias)
    };
    let bias = bias.filter(|bias| bias.track_op());
    Ok([
        x.track_op().then(dx).transpose()?,
        weight.track_op().then(dweight).transpose()?.flatten(),
        bias.map(dbias).transpose()?.flatten(),
    ])
}

/// `epilogue(a·b)` on candle's number of threads.
fn product<T: Plain>(a: View<T>, b: View<T>, epilogue: &Epilogue<T>) -> Result<Vec<T>> {
    let mut y = vec![T::ZERO; a.rows() * b.columns()];
    gemm::multiply(selected_isa()?, a, b, epilogue, &mut y, threads());
    Ok(y)
}

/// A matrix of a storage, read in place; a contiguous tensor of another rank as the rows of its last dimension.
fn view<'a, T: Float>(data: &'a [T], layout: &Layout) -> Result<View<'a, T>> {
    let data = data.get(layout.start_offset()..).unwrap_or(&[]);
    match (layout.dims(), layout.stride()) {
        (&[rows, columns], &[row_stride, column_stride]) => Ok(View::new(
            data,
            (rows, columns),
            (row_stride, column_stride),
        )),
        ([before @ .., columns], _) if layout.is_contiguous() => {
            let rows = before.iter().product();
            Ok(View::new(data, (rows, *columns), (*columns, 1)))
        }
        _ => Err(candle_core::Error::RequiresContiguous { op: OP }.bt()),
    }
}

/// As [`view`], for the storage of a tensor.
fn tensor_view<'a, T: Float>(storage: &'a Storage, layout: &Layout) -> Result<View<'a, T>> {
    match storage {
        Storage::Cpu(storage) => view(storage.as_slice()?, layout),
        _ => bail!("{OP}: expected a tensor on the CPU"),
    }
}
