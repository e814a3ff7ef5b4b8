//! Products of cuBLASLt, with what follows them in its epilogue.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut};

use super::element::Multiplied;
use super::error::Error;

/// What is computed of a product before it is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing.
    Nothing,
    /// `max(0, y)`.
    Relu,
    /// GELU by its `tanh` formula.
    GeluTanh,
}

/// `y = after(x·Wᵀ + residual + bias)`, rounded once; sums are in f32, and f32 is not multiplied as TF32.
pub struct Product<'a, 'v, T> {
    /// `[rows, d_in]`.
    pub x: &'a CudaView<'v, T>,
    /// `[d_out, d_in]`.
    pub weight: &'a CudaView<'v, T>,
    /// `[d_out]`.
    pub bias: Option<&'a CudaView<'v, T>>,
    /// `[rows, d_out]`.
    pub residual: Option<&'a CudaView<'v, T>>,
    /// What comes last.
    pub after: After,
    /// Columns of `x` and of the weight.
    pub d_in: usize,
}

/// The most working memory of a product: what NVIDIA advises for its largest GPUs.
const WORKSPACE: usize = 32 * 1024 * 1024;

/// The most algorithms that are kept; beyond that they are chosen anew.
const KEPT: usize = 1024;

/// Everything that an algorithm is chosen by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    device: usize,
    dtype: &'static str,
    rows: usize,
    d_in: usize,
    d_out: usize,
    epilogue: sys::cublasLtEpilogue_t,
    has_residual: bool,
    /// Of the weight, `x`, the residual, the result and the bias.
    alignments: [u32; 5],
}

/// One handle of cuBLASLt for each device, which any thread may use, and what it chose.
#[derive(Default)]
struct Chosen {
    handles: HashMap<usize, usize>,
    algorithms: HashMap<Shape, sys::cublasLtMatmulHeuristicResult_t>,
}

/// Multiplies.
///
/// # Errors
/// If CUDA fails, or cuBLASLt has no algorithm for the shape.
///
/// # Panics
/// If lengths do not fit, or one is 0.
pub fn product<T: Multiplied>(
    stream: &Arc<CudaStream>,
    of: &Product<T>,
) -> Result<CudaSlice<T>, Error> {
    let (d_in, d_out) = (of.d_in, of.weight.len() / of.d_in);
    let rows = of.x.len() / d_in;
    assert!(
        rows * d_out > 0 && of.x.len() == rows * d_in && of.weight.len() == d_out * d_in,
        "matrices"
    );
    assert!(of.bias.is_none_or(|bias| bias.len() == d_out), "bias");
    let fits = |residual: &CudaView<T>| residual.len() == rows * d_out;
    assert!(of.residual.is_none_or(fits), "residual");

    let failed = |reason: &dyn Debug| {
        let what = format!("a product of {rows} rows with a weight of [{d_out}, {d_in}]");
        Error::new(what, reason)
    };
    let context = stream.context();
    context.bind_to_thread().map_err(|error| failed(&error))?;
    // SAFETY: the product writes all of it before anything reads it.
    let y = unsafe { stream.alloc::<T>(rows * d_out) };
    let mut y = y.map_err(|error| failed(&error))?;
    {
        // Addresses, 0 for none; what comes with them tells other streams of the product, when it is dropped.
        let (weight, _weight) = of.weight.device_ptr(stream);
        let (x, _x) = of.x.device_ptr(stream);
        let (bias, _bias) = of.bias.map(|of| of.device_ptr(stream)).unzip();
        let (residual, _residual) = of.residual.map(|of| of.device_ptr(stream)).unzip();
        let (to, _y) = y.device_ptr_mut(stream);
        let [bias, residual] = [bias, residual].map(Option::unwrap_or_default);
        let shape = Shape {
            device: context.ordinal(),
            dtype: T::NAME,
            rows,
            d_in,
            d_out,
            epilogue: epilogue(of.after, of.bias.is_some()),
            has_residual: of.residual.is_some(),
            alignments: [weight, x, residual, to, bias].map(alignment),
        };
        // Rows of ours are columns of cuBLASLt: `yᵀ = W·xᵀ`, of which the weight lies transposed.
        let issue = || -> Result<(), result::CublasError> {
            let weight_is = Layout::new(T::TYPE, d_in, d_out)?;
            let x_is = Layout::new(T::TYPE, d_in, rows)?;
            let y_is = Layout::new(T::TYPE, d_out, rows)?;
            let asked = Asked::new(shape.epilogue, bias)?;
            let layouts = [&weight_is, &x_is, &y_is];
            let (handle, algorithm) = algorithm(&shape, &asked, layouts)?;
            // SAFETY: the product writes it before it reads it.
            let make = |n| unsafe { stream.alloc::<u8>(n) };
            let memory = Some(algorithm.workspaceSize).filter(|n| *n > 0).map(make);
            let none_left = sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED;
            let memory = memory.transpose();
            let memory = memory.map_err(|_| result::CublasError(none_left))?;
            let memory = memory.as_ref().map(|memory| memory.device_ptr(stream));
            let (memory_at, _memory) = memory.unzip();
            let (alpha, beta) = (1f32, if shape.has_residual { 1f32 } else { 0.0 });
            let added = if shape.has_residual { residual } else { to };
            // SAFETY: all descriptors live; the matrices have the lengths that were asserted, in the layouts given, and the
            // memory is as large as the algorithm asks for. It is freed on the same stream, behind the product.
            unsafe {
                result::matmul(
                    handle as sys::cublasLtHandle_t,
                    asked.0,
                    (&raw const alpha).cast(),
                    (&raw const beta).cast(),
                    weight as *const _,
                    weight_is.0,
                    x as *const _,
                    x_is.0,
                    added as *const _,
                    y_is.0,
                    to as *mut _,
                    y_is.0,
                    &raw const algorithm.algo,
                    memory_at.unwrap_or_default() as *mut _,
                    algorithm.workspaceSize,
                    stream.cu_stream().cast(),
                )
            }
        };
        issue().map_err(|error| failed(&error))?;
    }
    Ok(y)
}

/// The algorithm for a shape, which is asked for once, and the device's handle.
fn algorithm(
    shape: &Shape,
    asked: &Asked,
    [weight, x, y]: [&Layout; 3],
) -> Result<(usize, sys::cublasLtMatmulHeuristicResult_t), result::CublasError> {
    static CHOSEN: Mutex<Option<Chosen>> = Mutex::new(None);
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let chosen = chosen.get_or_insert_default();
    let handle = match chosen.handles.get(&shape.device) {
        Some(handle) => *handle,
        None => {
            // Never destroyed: it serves as long as the process.
            let handle = result::create_handle()? as usize;
            chosen.handles.insert(shape.device, handle);
            handle
        }
    };
    if let Some(known) = chosen.algorithms.get(shape) {
        return Ok((handle, *known));
    }
    let preference = Preference::new(shape)?;
    // SAFETY: all descriptors live.
    let found = unsafe {
        let handle = handle as sys::cublasLtHandle_t;
        result::get_matmul_algo_heuristic(handle, asked.0, weight.0, x.0, y.0, y.0, preference.0)?
    };
    if chosen.algorithms.len() == KEPT {
        chosen.algorithms.clear();
    }
    chosen.algorithms.insert(*shape, found);
    Ok((handle, found))
}

fn epilogue(after: After, has_bias: bool) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t::*;
    match (after, has_bias) {
        (After::Nothing, false) => CUBLASLT_EPILOGUE_DEFAULT,
        (After::Nothing, true) => CUBLASLT_EPILOGUE_BIAS,
        (After::Relu, false) => CUBLASLT_EPILOGUE_RELU,
        (After::Relu, true) => CUBLASLT_EPILOGUE_RELU_BIAS,
        (After::GeluTanh, false) => CUBLASLT_EPILOGUE_GELU,
        (After::GeluTanh, true) => CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}

/// The largest power of 2 up to 256, which is what cuBLASLt supposes, that an address is a multiple of.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// A matrix whose columns lie one behind the other.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(
        of: sys::cudaDataType,
        rows: usize,
        columns: usize,
    ) -> Result<Self, result::CublasError> {
        let (rows, columns) = (rows as u64, columns as u64);
        result::create_matrix_layout(of, rows, columns, rows as i64).map(Self)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once. There is nothing to be done about a failure.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What is multiplied how, and what follows.
struct Asked(sys::cublasLtMatmulDesc_t);

impl Asked {
    fn new(epilogue: sys::cublasLtEpilogue_t, bias: u64) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        // Not `FAST_TF32`, which has 10 bits.
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let asked = Self(result::create_matmul_desc(
            sums,
            sys::cudaDataType::CUDA_R_32F,
        )?);
        asked.set(CUBLASLT_MATMUL_DESC_TRANSA, &1i32)?; // CUBLAS_OP_T
        asked.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        if bias != 0 {
            asked.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        Ok(asked)
    }

    fn set<V>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &V,
    ) -> Result<(), result::CublasError> {
        let (at, size) = ((&raw const *value).cast(), size_of::<V>());
        // SAFETY: the descriptor lives, and the value is read before this returns.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, at, size) }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// What an algorithm may use and suppose.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(shape: &Shape) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let preference = Self(result::create_matmul_pref()?);
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        // Parts of a sum are added in f32 and in order: not in the result's type, nor by whoever comes first.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        let [weight, x, residual, y, bias] = shape.alignments;
        let residual = if shape.has_residual { residual } else { y };
        for (attribute, alignment) in [
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, weight),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, residual),
            // There is none for the bias, which an epilogue reads as it writes.
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y.min(bias)),
        ] {
            preference.set(attribute, &alignment)?;
        }
        Ok(preference)
    }

    fn set<V>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &V,
    ) -> Result<(), result::CublasError> {
        let (at, size) = ((&raw const *value).cast(), size_of::<V>());
        // SAFETY: as for `Asked::set`.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, at, size) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
