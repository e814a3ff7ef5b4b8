//! A tensor without a graph whose every operation is one of candle's, and is taken down while somebody records.
//!
//! This is all that devices without kernels of this crate are asked to do. Views cost nothing and are not taken down.

use std::cell::RefCell;

use candle_blocks_kernels::products::{Added, multiply};
use candle_core::{D, DType, Device, Result, Tensor, Var, WithDType, bail};
use half::{bf16, f16};

use crate::device::is_one;

use super::cpu::cpu;
use super::kernels::Data;
use super::ledger::{Transfer, issued, moved};
use super::numbers::Numbers;

/// A tensor on a device, without a graph.
#[derive(Clone, Debug)]
pub(crate) struct Array(Tensor);

/// Operations of one operand, each a kernel of every back end.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $operation:expr;)*) => {
        impl Array {
            $($(#[$doc])* pub fn $name(&self) -> Result<Self> {
                self.elementwise(stringify!($name), $operation)
            })*
        }
    };
}

unary! {
    abs => Tensor::abs;
    erf => Tensor::erf;
    exp => Tensor::exp;
    /// `x · Φ(x)`.
    gelu_erf => exact_gelu;
    log => Tensor::log;
    sigmoid => candle_nn::ops::sigmoid;
    silu => Tensor::silu;
    sqr => Tensor::sqr;
    sqrt => Tensor::sqrt;
    tanh => Tensor::tanh;
}

/// Operations of two operands that broadcast.
macro_rules! binary {
    ($($name:ident => $operation:expr;)*) => {
        impl Array {
            $(pub fn $name(&self, other: &Self) -> Result<Self> {
                self.pairwise(stringify!($name), other, $operation)
            })*
        }
    };
}

binary! {
    add => Tensor::broadcast_add;
    sub => Tensor::broadcast_sub;
    mul => Tensor::broadcast_mul;
    div => Tensor::broadcast_div;
    eq => Tensor::broadcast_eq;
    ge => Tensor::broadcast_ge;
    gt => Tensor::broadcast_gt;
    lt => Tensor::broadcast_lt;
    le => Tensor::broadcast_le;
}

impl Array {
    /// The numbers of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self(tensor.detach())
    }

    /// Numbers of the host, rounded there: Metal has no f64.
    pub fn upload(values: Vec<f64>, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?).moved_to(device)
    }

    /// Integers of the host.
    pub fn upload_ids<T: WithDType>(ids: Vec<T>, dims: &[usize], device: &Device) -> Result<Self> {
        Self::of(&Tensor::from_vec(ids, dims, &Device::Cpu)?).moved_to(device)
    }

    /// The same numbers on another device.
    pub fn moved_to(&self, device: &Device) -> Result<Self> {
        moved(Transfer::Up, &self.0)?;
        self.0.to_device(device).map(Self)
    }

    /// The numbers on the host, for which it waits.
    pub fn download(&self) -> Result<Vec<f64>> {
        // A view would move all that is around it.
        let flat = self.contiguous()?.at_its_beginning()?;
        moved(Transfer::Down, &flat.0)?;
        let host = flat.0.to_device(&Device::Cpu)?.flatten_all()?;
        host.to_dtype(DType::F64)?.to_vec1()
    }

    /// One number everywhere.
    pub fn filled(value: f64, dims: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        if dims.contains(&0) {
            return Tensor::zeros(dims, dtype, device).map(Self);
        }
        let filled = match dtype {
            DType::F64 => Tensor::full(value, dims, device)?,
            DType::F32 => Tensor::full(value as f32, dims, device)?,
            DType::F16 => Tensor::full(f16::from_f64(value), dims, device)?,
            DType::BF16 => Tensor::full(bf16::from_f64(value), dims, device)?,
            other => bail!("numbers of type {other:?}; expected F32, F64, F16 or BF16"),
        };
        issued("const_set", &[&filled], None)?;
        Ok(Self(filled))
    }

    /// `[1, n]` ones in the type and on the device of `like`. The latest are kept: every bias of a layer asks for the same.
    pub fn ones(n: usize, like: &Self) -> Result<Self> {
        const KEPT: usize = 4;
        thread_local! {
            static ONES: RefCell<Vec<Array>> = const { RefCell::new(Vec::new()) };
        }
        let fits = |known: &Self| {
            known.width() == n
                && known.dtype() == like.dtype()
                && is_one(known.device(), like.device())
        };
        if let Some(known) = ONES.with_borrow(|ones| ones.iter().find(|known| fits(known)).cloned())
        {
            return Ok(known);
        }
        let ones = Self::filled(1.0, &[1, n], like.dtype(), like.device())?;
        ONES.with_borrow_mut(|known| {
            known.truncate(KEPT - 1);
            known.insert(0, ones.clone());
        });
        Ok(ones)
    }

    /// Numbers of `0` in the same type on the same device.
    pub fn zeros(&self, dims: &[usize]) -> Result<Self> {
        let zeros = Tensor::zeros(dims, self.dtype(), self.device())?;
        issued("zeros", &[&zeros], None)?;
        Ok(Self(zeros))
    }

    /// One number everywhere, as often as there are numbers here: a single one would be read by strides, which CUDA uploads
    /// for every operation.
    pub fn full(&self, value: f64) -> Result<Self> {
        Self::filled(value, self.dims(), self.dtype(), self.device())
    }

    /// `min(self, limit)`; candle's own drops NaN on CUDA.
    pub fn at_most(&self, limit: f64) -> Result<Self> {
        let limits = self.full(limit)?;
        self.gt(&limits)?.select(&limits, self)
    }

    /// `max(self, limit)`.
    pub fn at_least(&self, limit: f64) -> Result<Self> {
        let limits = self.full(limit)?;
        self.lt(&limits)?.select(&limits, self)
    }

    /// Uniform random numbers of `[0, 1)`, in f32.
    pub fn uniform(dims: &[usize], device: &Device) -> Result<Self> {
        let uniform = Tensor::rand(0f32, 1f32, dims, device)?;
        issued("rand_uniform", &[&uniform], None)?;
        Ok(Self(uniform))
    }

    /// Sets a variable of the same shape and type to these numbers, which do not share its storage.
    pub fn store(&self, variable: &Var) -> Result<()> {
        issued("copy", &[&self.0], None)?;
        variable.set(&self.0)
    }

    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    pub fn dims(&self) -> &[usize] {
        self.0.dims()
    }

    /// The last dimension; 1 of a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    pub fn device(&self) -> &Device {
        self.0.device()
    }

    pub fn is_empty(&self) -> bool {
        self.0.elem_count() == 0
    }

    /// The numbers in other dimensions, copied where they do not lie in order.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.reshape(dims).map(Self)
    }

    /// A row of numbers for all but the last dimension.
    pub fn rows(&self) -> Result<Self> {
        let (last, before) = self.dims().split_last().unwrap_or((&1, &[]));
        self.reshape(&[before.iter().product(), *last])
    }

    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.0.narrow(dim, start, len).map(Self)
    }

    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.0.transpose(a, b).map(Self)
    }

    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        self.0.unsqueeze(dim).map(Self)
    }

    /// The numbers in order, copied where they are not.
    pub fn contiguous(&self) -> Result<Self> {
        if !self.0.is_contiguous() {
            issued("copy", &[&self.0], None)?;
        }
        self.0.contiguous().map(Self)
    }

    /// As it is, or copied to the beginning of a storage of its own; it is in order.
    pub fn at_its_beginning(&self) -> Result<Self> {
        if self.0.layout().start_offset() == 0 {
            return Ok(self.clone());
        }
        self.copied()
    }

    /// In a storage of its own; candle's `copy` keeps what lies around a view, and on Metal the storage too.
    pub fn copied(&self) -> Result<Self> {
        issued("copy", &[&self.0], None)?;
        self.0.force_contiguous().map(Self)
    }

    fn elementwise(
        &self,
        name: &'static str,
        operation: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        if self.is_empty() {
            return Ok(self.clone());
        }
        issued(name, &[&self.0], None)?;
        operation(&self.0).map(Self)
    }

    fn pairwise(
        &self,
        name: &'static str,
        other: &Self,
        operation: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        if self.is_empty() || other.is_empty() {
            let shape = self
                .0
                .shape()
                .broadcast_shape_binary_op(other.0.shape(), name)?;
            return self.reshape(shape.dims());
        }
        issued(name, &[&self.0, &other.0], None)?;
        operation(&self.0, &other.0).map(Self)
    }

    /// `factor · self + offset`.
    pub fn affine(&self, factor: f64, offset: f64) -> Result<Self> {
        if (factor, offset) == (1.0, 0.0) {
            return Ok(self.clone());
        }
        self.elementwise("affine", |x| x.affine(factor, offset))
    }

    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if self.is_empty() {
            return Tensor::zeros(self.dims(), dtype, self.device()).map(Self);
        }
        issued("to_dtype", &[&self.0], Some(dtype))?;
        self.0.to_dtype(dtype).map(Self)
    }

    /// Half types as f32, other types unchanged.
    pub fn widened(&self) -> Result<Self> {
        self.to_dtype(wide(self.dtype()))
    }

    /// `if_kept` where these marks of u8 are not 0, elsewhere `other`; all of one shape.
    pub fn select(&self, if_kept: &Self, other: &Self) -> Result<Self> {
        if if_kept.is_empty() {
            return Ok(if_kept.clone());
        }
        issued("where_cond", &[&self.0, &if_kept.0], None)?;
        self.0.where_cond(&if_kept.0, &other.0).map(Self)
    }

    /// The sum over a dimension, which stays with length 1.
    pub fn sum(&self, dim: usize) -> Result<Self> {
        if self.is_empty() {
            let mut dims = self.dims().to_vec();
            dims[dim] = 1;
            return self.zeros(&dims);
        }
        issued("sum", &[&self.0], None)?;
        self.0.sum_keepdim(dim).map(Self)
    }

    /// The largest number of each row, as a row of one. Without columns there is none.
    pub fn max(&self) -> Result<Self> {
        issued("max", &[&self.0], None)?;
        self.0.max_keepdim(D::Minus1).map(Self)
    }

    /// The matrix product of the last two dimensions; those before must be the same. Sums are in f32, or f64 for f64.
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        let (a, b) = (self.for_product()?, other.for_product()?);
        let rank = a.dims().len();
        let mut dims = a.dims().to_vec();
        dims[rank - 1] = b.dims()[rank - 1];
        if dims.contains(&0) || a.is_empty() {
            return self.zeros(&dims);
        }
        issued("matmul", &[&a.0, &b.0], None)?;
        match a.device().is_cpu() {
            true => rehearsed_product(&a.0, &b.0)?.reshape(dims).map(Self),
            false => a.0.matmul(&b.0).map(Self),
        }
    }

    /// As it is, where both back ends' products read its strides: each matrix in order or transposed, one behind the
    /// other; else a copy in order.
    fn for_product(&self) -> Result<Self> {
        let (dims, strides) = (self.dims(), self.0.stride());
        let rank = dims.len();
        let (rows, columns) = (dims[rank - 2], dims[rank - 1]);
        let in_order = |n: usize, stride: usize, expected: usize| n == 1 || stride == expected;
        let (down, right) = (strides[rank - 2], strides[rank - 1]);
        let straight = in_order(rows, down, columns) && in_order(columns, right, 1);
        let transposed = in_order(rows, down, 1) && in_order(columns, right, rows);
        let mut expected = rows * columns;
        let behind_each_other = (0..rank - 2).rev().all(|dim| {
            let fits = in_order(dims[dim], strides[dim], expected);
            expected *= dims[dim];
            fits
        });
        match (straight || transposed) && behind_each_other {
            true => Ok(self.clone()),
            false => self.contiguous(),
        }
    }

    /// Of the rows of this matrix, those with these numbers (u32).
    pub fn select_rows(&self, ids: &Self) -> Result<Self> {
        let n_ids = ids.dims()[0];
        if n_ids == 0 || self.is_empty() {
            return self.narrow(0, 0, 0)?.reshape(&[n_ids, self.width()]);
        }
        let table = self.contiguous()?;
        issued("index_select", &[&ids.0, &table.0], None)?;
        table.0.index_select(&ids.0, 0).map(Self)
    }

    /// This matrix with rows added, each to that of its number (u32).
    pub fn add_rows(&self, ids: &Self, rows: &Self) -> Result<Self> {
        if rows.is_empty() {
            return Ok(self.clone());
        }
        // CUDA takes no view that begins later.
        let (x, rows) = (self.contiguous()?.at_its_beginning()?, rows.contiguous()?);
        issued("index_add", &[&ids.0, &x.0, &rows.0], None)?;
        x.0.index_add(&ids.0, &rows.0, 0).map(Self)
    }

    /// Of each row the columns with its numbers (u32).
    pub fn gather(&self, ids: &Self) -> Result<Self> {
        if ids.is_empty() {
            return self.narrow(0, 0, 0)?.reshape(ids.dims());
        }
        let (x, ids) = (self.contiguous()?, ids.contiguous()?);
        issued("gather", &[&ids.0, &x.0], None)?;
        x.0.gather(&ids.0, D::Minus1).map(Self)
    }

    /// This matrix with `source` added, each column to that of its number (u32) in the row.
    pub fn scatter_add(&self, ids: &Self, source: &Self) -> Result<Self> {
        if ids.is_empty() {
            return Ok(self.clone());
        }
        let (x, ids, source) = (self.contiguous()?, ids.contiguous()?, source.contiguous()?);
        issued("scatter_add", &[&ids.0, &x.0, &source.0], None)?;
        x.0.scatter_add(&ids.0, &source.0, D::Minus1).map(Self)
    }

    /// Arrays one behind the other along a dimension.
    pub fn cat(parts: &[Self], dim: usize) -> Result<Self> {
        if let [part] = parts {
            return Ok(part.clone());
        }
        let with_elements = parts.iter().filter(|part| !part.is_empty());
        let parts: Vec<&Tensor> = match with_elements.clone().count() {
            0 => parts.iter().map(|part| &part.0).collect(),
            _ => with_elements.map(|part| &part.0).collect(),
        };
        for part in &parts {
            issued("cat", &[part], None)?;
        }
        Tensor::cat(&parts, dim).map(Self)
    }

    /// Softmax over the last dimension, of which no row is all `-inf`.
    pub fn softmax(&self) -> Result<Self> {
        self.contiguous()?
            .elementwise("softmax_last_dim", candle_nn::ops::softmax_last_dim)
    }

    /// LayerNorm over the last dimension of f32 whose mean is nearly 0: candle takes the variance for the mean of
    /// squares less the square of the mean.
    pub fn layer_norm(&self, weight: &Self, bias: &Self, eps: f64) -> Result<Self> {
        let (weight, bias) = (weight.contiguous()?, bias.contiguous()?);
        self.contiguous()?.elementwise("layer_norm", |x| {
            candle_nn::ops::layer_norm(x, &weight.0, &bias.0, eps as f32)
        })
    }

    /// RMSNorm over the last dimension of f32.
    pub fn rms_norm(&self, weight: &Self, eps: f64) -> Result<Self> {
        let weight = weight.contiguous()?;
        self.contiguous()?.elementwise("rms_norm", |x| {
            candle_nn::ops::rms_norm(x, &weight.0, eps as f32)
        })
    }

    /// Rotates the halves of `[batch, seq, heads, 2 · pairs]` against each other.
    pub fn rope_halves(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_thd", |x| {
            candle_nn::rotary_emb::rope_thd(x, &cos.0, &sin.0)
        })
    }

    /// Rotates neighbors of `[batch, heads, seq, 2 · pairs]` against each other.
    pub fn rope_neighbors(&self, cos: &Self, sin: &Self) -> Result<Self> {
        let (cos, sin) = (cos.contiguous()?, sin.contiguous()?);
        self.contiguous()?.elementwise("rope_i", |x| {
            candle_nn::rotary_emb::rope_i(x, &cos.0, &sin.0)
        })
    }
}

/// candle's `gelu_erf`, in a rehearsal with CUDA's digits: the CPU's are lost in `1 + erf`.
fn exact_gelu(x: &Tensor) -> Result<Tensor> {
    match x.device().is_cpu() {
        true => x.to_dtype(DType::F64)?.gelu_erf()?.to_dtype(x.dtype()),
        false => x.gelu_erf(),
    }
}

/// The product in a rehearsal, by this crate's kernels: candle's CPU has none of bfloat16, and adds up f32 in one chain, whose
/// error is many times that of parallel sums.
fn rehearsed_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() > 2 {
        let each = (0..a.dim(0)?).map(|i| rehearsed_product(&a.get(i)?, &b.get(i)?));
        return Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0);
    }
    let ((rows, inner), (_, columns)) = (a.dims2()?, b.dims2()?);
    let dtype = a.dtype();
    let (a, b) = (Data::Tensor(a.clone()), Data::Tensor(b.clone()));
    let (a, b) = (a.read(), b.read());
    let (a, b) = (a.matrix((rows, inner)), b.matrix((inner, columns)));
    let mut y = Numbers::new(dtype, rows * columns)?;
    multiply(cpu()?, a, b, Added::default(), y.slice_mut());
    y.into_tensor((rows, columns))
}

/// f32 for half types, other types unchanged.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Storage;

    use super::*;

    #[test]
    fn a_view_is_copied_to_the_beginning_of_a_storage_that_holds_nothing_else() {
        let all = Array::upload(vec![1., 2., 3., 4.], &[4], DType::F32, &Device::Cpu).unwrap();
        let copied = all.narrow(0, 1, 2).unwrap().at_its_beginning().unwrap();
        let (storage, layout) = copied.tensor().storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            panic!("another device");
        };
        assert_eq!(layout.start_offset(), 0);
        assert_eq!(storage.as_slice::<f32>().unwrap(), [2.0, 3.0]);
    }
}
