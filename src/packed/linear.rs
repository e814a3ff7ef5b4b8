//! The linear layer, `y = x·Wᵀ + b`, with a packed weight.

use std::{fmt, ops::Range, sync::Arc};

use candle_blocks_kernels::products::{Epilogue, Matrix, PackedWeight, Scale, WeightFormat};
use candle_blocks_kernels::{Cpu, rows::Source};
use candle_core::{DType, Device, Module, Result, Tensor, bail};
use half::f16;

use super::{Packing, elements, map_rows, with_elements};
use crate::config::{Precision, getters};
use crate::layers::{Linear, WeightRows};

/// A [`Linear`] packed for inference on the CPU, created by [`Linear::pack`].
#[derive(Clone)]
pub struct PackedLinear {
    pub(super) weight: Arc<PackedWeight>,
    pub(super) bias: Option<Arc<[f32]>>,
    pub(super) cpu: Cpu,
}

/// The last step of a layer, on its output while that is in the CPU's cache: `residual + scale · output`.
#[derive(Clone, Copy)]
pub(super) struct Finishing<'a> {
    pub scale: Scale<'a, f32>,
    pub residual: Option<&'a [f32]>,
}

impl<'a> Finishing<'a> {
    /// Leaves the output as it is.
    pub const NONE: Self = Self {
        scale: Scale::One,
        residual: None,
    };

    /// The finishing of a range of rows, each of `width` columns.
    pub fn part(self, rows: Range<usize>, width: usize) -> Self {
        let part = |residual: &'a [f32]| &residual[rows.start * width..rows.end * width];
        Self {
            residual: self.residual.map(part),
            ..self
        }
    }

    /// The epilogue of a product: the layer's bias, then this.
    pub fn epilogue(self, bias: Option<&'a [f32]>) -> Epilogue<'a, f32> {
        Epilogue {
            scale: self.scale,
            residual: self.residual,
            ..Epilogue::bias(bias)
        }
    }

    /// `y = residual + scale · output`, for an output in memory with rows of `width` columns.
    pub fn finish(self, cpu: Cpu, output: &[f32], width: usize, y: &mut [f32]) {
        self.epilogue(None).finish(cpu, output, width, y);
    }
}

packs!(Linear, PackedLinear);

impl PackedLinear {
    pub(super) fn new(packing: &Packing, linear: &Linear) -> Result<Self> {
        let bias = linear.bias().map(elements).transpose()?;
        let weight = whole_weight(packing, linear)?;
        Self::of_weight(packing, &weight, bias.map(Arc::from))
    }

    /// Packs several layers that have the same input as one, their outputs side by side; each with its role.
    pub(super) fn joined(packing: &Packing, linears: &[(&str, &Linear)]) -> Result<Self> {
        let layers = linears.iter();
        let bias = match layers.clone().any(|(_, linear)| linear.bias().is_some()) {
            true => Some(joined_bias(layers.clone().map(|(_, linear)| *linear))?),
            false => None,
        };
        let weights = layers.map(|(role, linear)| whole_weight(&packing.at(role), linear));
        let weight = Tensor::cat(&weights.collect::<Result<Vec<_>>>()?, 0)?;
        Self::of_weight(packing, &weight, bias)
    }

    /// Packs a weight `[d_out, d_in]`.
    pub(super) fn of_weight(
        packing: &Packing,
        weight: &Tensor,
        bias: Option<Arc<[f32]>>,
    ) -> Result<Self> {
        let (d_out, d_in) = weight.dims2()?;
        check_inputs(d_out, d_in)?;
        let weight = with_elements("pack", weight, |weight| {
            let weight = Matrix::new(weight.into(), (d_out, d_in), (d_in, 1));
            Ok(PackedWeight::new(
                packing.cpu,
                packing.format,
                weight,
                &packing.pages,
            ))
        })?;
        Ok(Self {
            weight: Arc::new(weight),
            bias,
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The width of the input.
        d_in(&self) -> usize => self.weight.d_in();
        /// The width of the output.
        d_out(&self) -> usize => self.weight.d_out();
        /// The size of the packed weight in bytes.
        bytes(&self) -> usize => self.weight.bytes();
    }

    /// `y = finishing(x·Wᵀ + b)`.
    pub(super) fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        self.apply_on(self.cpu, x, finishing, y);
    }

    /// As [`Self::apply`], on as many threads as `cpu` says.
    pub(super) fn apply_on(&self, cpu: Cpu, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        self.weight.multiply(cpu, x, &self.epilogue(finishing), y);
    }

    pub(super) fn epilogue<'a>(&'a self, finishing: &Finishing<'a>) -> Epilogue<'a, f32> {
        finishing.epilogue(self.bias.as_deref())
    }
}

impl WeightRows for PackedLinear {
    fn weight_rows(&self, numbers: &[u32]) -> Result<Tensor> {
        let d_in = self.d_in();
        let mut rows = vec![0f32; numbers.len() * d_in];
        for (&number, row) in numbers.iter().zip(rows.chunks_exact_mut(d_in)) {
            self.weight.unpack_row(number as usize, row);
        }
        Tensor::from_vec(rows, (numbers.len(), d_in), &Device::Cpu)
    }
}

/// # Errors
/// If the weight has no inputs.
pub(super) fn check_inputs(d_out: usize, d_in: usize) -> Result<()> {
    if d_in == 0 {
        bail!("pack: a weight of [{d_out}, {d_in}] has no inputs; packed layers need at least one");
    }
    Ok(())
}

/// A weight with its adapter merged in, if it has one.
///
/// # Errors
/// If it has a number that the format cannot hold.
pub(super) fn whole_weight(packing: &Packing, linear: &Linear) -> Result<Tensor> {
    let weight = plain(&linear.weight()?)?;
    let weight = match linear.adapter() {
        None => weight,
        Some(adapter) => (weight + adapter.product()?.detach())?,
    };
    match packing.format {
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8 => {}
        // In f16 are numbers, or scales and minima of numbers.
        WeightFormat::F16
        | WeightFormat::Int4By32
        | WeightFormat::Int4By64
        | WeightFormat::Int4By128 => check_range(packing, &weight)?,
    }
    Ok(weight)
}

/// # Errors
/// If a finite weight is beyond f16's largest number.
fn check_range(packing: &Packing, weight: &Tensor) -> Result<()> {
    let (_, d_in) = weight.dims2()?;
    let is_beyond = |w: &f32| w.is_finite() && w.abs() > f16::MAX.to_f32();
    with_elements("pack", weight, |weights| {
        let Some(at) = weights.iter().position(is_beyond) else {
            return Ok(());
        };
        bail!(
            "pack: {} holds {} at [{}, {}], beyond the range of f16, {}; pack it in f32 or bf16",
            packing.at("weight").role,
            weights[at],
            at / d_in,
            at % d_in,
            f16::MAX
        )
    })
}

/// A parameter without its graph.
///
/// # Errors
/// If it is not on the CPU, or is f64.
pub(super) fn plain(parameter: &Tensor) -> Result<Tensor> {
    if !parameter.device().is_cpu() {
        bail!("pack: the layer is not on the CPU, and packed layers compute there; load it there");
    }
    if parameter.dtype() == DType::F64 {
        bail!("pack: the layer is F64, and packed layers compute in f32; load it as F32");
    }
    Ok(parameter.detach())
}

/// The biases of several layers side by side, zeros for one that has none.
fn joined_bias<'a>(linears: impl Iterator<Item = &'a Linear>) -> Result<Arc<[f32]>> {
    let mut joined = Vec::new();
    for linear in linears {
        match linear.bias() {
            Some(bias) => joined.extend(elements(bias)?),
            None => joined.resize(joined.len() + linear.shape().0, 0.0),
        }
    }
    Ok(joined.into())
}

per_row!(
    PackedLinear,
    "linear",
    |linear| (linear.d_in(), linear.d_out()),
    1
);

impl fmt::Debug for PackedLinear {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedLinear")
            .field("d_in", &self.d_in())
            .field("d_out", &self.d_out())
            .field("bias", &self.bias.is_some())
            .finish_non_exhaustive()
    }
}
