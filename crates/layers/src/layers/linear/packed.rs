//! The linear layer, `y = x·Wᵀ + b`, with a packed weight.

use std::sync::Arc;

use candle_blocks_kernels::products::{Epilogue, Matrix, PackedWeight, WeightFormat};
use candle_blocks_kernels::{Cpu, memory::lend, rows::Source, scratch};
use candle_core::{DType, Device, Result, Tensor, bail};
use half::{bf16, f16};

use crate::config::getters;
use crate::layers::packed::stored::{Coded, pack_codes};
use crate::layers::packed::{Packing, elements, packs, with_elements};
use crate::layers::{Linear, Packed, Weight};
use crate::memory::check_packing;

/// The product with one packed weight, or with several weights that share an input.
#[derive(Clone, Debug)]
pub(in crate::layers) struct PackedProduct {
    /// One weight, or several in different formats or orders, whose outputs lie side by side.
    weights: Vec<Packed>,
    pub(in crate::layers) bias: Option<Arc<[f32]>>,
    pub(in crate::layers) cpu: Cpu,
}

scratch! {
    /// The joined outputs for weights in different formats, and the output for one weight.
    SIDE_BY_SIDE
}

packs!(Linear);

impl PackedProduct {
    pub fn new(packing: &Packing, linear: &Linear) -> Result<Self> {
        let bias = linear.bias().map(elements).transpose()?.map(Arc::from);
        match packing.codes_of(linear) {
            Some(codes) => Self::of_codes(packing, &[codes], bias),
            None => Self::of_weight(packing, &whole_weight(packing, linear)?, bias),
        }
    }

    /// Packs quantized weights that share an input.
    fn of_codes(packing: &Packing, codes: &[Coded], bias: Option<Arc<[f32]>>) -> Result<Self> {
        let (d_out, d_in) = codes[0].dims;
        check_inputs(d_out, d_in)?;
        let alike = codes.chunk_by(Coded::is_like);
        let weights = alike.map(|codes| Ok(Packed(Arc::new(pack_codes(packing, codes, false)?))));
        Ok(Self {
            weights: weights.collect::<Result<_>>()?,
            bias,
            cpu: packing.cpu,
        })
    }

    /// Packs several layers that share an input as one, with their outputs side by side. Each layer comes with its
    /// role.
    pub(in crate::layers) fn joined(
        packing: &Packing,
        linears: &[(&str, &Linear)],
    ) -> Result<Self> {
        let layers = linears.iter();
        let bias = match layers.clone().any(|(_, linear)| linear.bias().is_some()) {
            true => Some(joined_bias(layers.clone().map(|(_, linear)| *linear))?),
            false => None,
        };
        let codes = layers.clone().map(|(_, linear)| packing.codes_of(linear));
        let codes: Vec<_> = codes.collect();
        if let Some(codes) = codes.iter().cloned().collect::<Option<Vec<_>>>() {
            return Self::of_codes(packing, &codes, bias);
        }
        if codes.iter().any(Option::is_some) {
            let packed = linears
                .iter()
                .map(|(role, linear)| Self::new(&packing.at(role), linear));
            let packed = packed.collect::<Result<Vec<_>>>()?;
            return Ok(Self {
                weights: packed
                    .into_iter()
                    .flat_map(|packed| packed.weights)
                    .collect(),
                bias,
                cpu: packing.cpu,
            });
        }
        let weights = layers.map(|(role, linear)| whole_weight(&packing.at(role), linear));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let n: usize = weights.iter().map(Tensor::elem_count).sum();
        check_packing(n * size_of::<f32>())?;
        let weight = Tensor::cat(&weights, 0)?;
        Self::of_weight(packing, &weight, bias)
    }

    /// Packs a weight `[d_out, d_in]`.
    pub(in crate::layers) fn of_weight(
        packing: &Packing,
        weight: &Tensor,
        bias: Option<Arc<[f32]>>,
    ) -> Result<Self> {
        let (d_out, d_in) = weight.dims2()?;
        check_inputs(d_out, d_in)?;
        let weight = with_elements("pack", weight, |weight| {
            let format = packing.format_of(weight);
            check_packing(weight.len() * format.bits() / 8)?;
            let weight = Matrix::new(weight.into(), (d_out, d_in), (d_in, 1));
            Ok(PackedWeight::new(
                packing.cpu,
                format,
                weight,
                &packing.pages,
            ))
        })?;
        Ok(Self {
            weights: vec![Packed(Arc::new(weight))],
            bias,
            cpu: packing.cpu,
        })
    }

    getters! {
        /// The input width.
        d_in(&self) -> usize => self.weights[0].0.d_in();
        /// The output width.
        d_out(&self) -> usize => self.weights.iter().map(|weight| weight.0.d_out()).sum();
        /// The size of the packed weight in bytes.
        bytes(&self) -> usize => self.weights.iter().map(|weight| weight.0.bytes()).sum();
    }

    /// Computes `y = residual + x·Wᵀ + b`.
    pub(in crate::layers) fn apply(&self, x: &Source, residual: Option<&[f32]>, y: &mut [f32]) {
        self.apply_on(self.cpu, x, residual, y);
    }

    /// Computes the product like [`Self::apply`], with the number of threads in `cpu`.
    pub(in crate::layers) fn apply_on(
        &self,
        cpu: Cpu,
        x: &Source,
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) {
        if let [Packed(weight)] = &self.weights[..] {
            return weight.multiply(cpu, x, &self.epilogue(residual), y);
        }
        let (rows, width) = (x.rows(), self.d_out());
        lend(SIDE_BY_SIDE, 2 * rows * width, |memory: &mut [f32]| {
            let (all, part) = memory.split_at_mut(rows * width);
            let mut first = 0;
            for Packed(weight) in &self.weights {
                let d_out = weight.d_out();
                let part = &mut part[..rows * d_out];
                let bias = self.bias.as_ref().map(|bias| &bias[first..first + d_out]);
                weight.multiply(cpu, x, &Epilogue::bias(bias), part);
                for (all, part) in all.chunks_exact_mut(width).zip(part.chunks_exact(d_out)) {
                    all[first..first + d_out].copy_from_slice(part);
                }
                first += d_out;
            }
            add_residual(cpu, residual, all, width, y);
        });
    }

    /// Returns the only weight. Several weights occur only where several layers are packed together.
    pub(in crate::layers) fn weight(&self) -> &Arc<PackedWeight> {
        &self.weights[0].0
    }

    pub(in crate::layers) fn bias(&self) -> Option<&Arc<[f32]>> {
        self.bias.as_ref()
    }

    pub(in crate::layers) fn epilogue<'a>(
        &'a self,
        residual: Option<&'a [f32]>,
    ) -> Epilogue<'a, f32> {
        Epilogue {
            residual,
            ..Epilogue::bias(self.bias.as_deref())
        }
    }
}

/// Writes `residual + output`, for an output in memory with rows of `width` columns.
pub(in crate::layers) fn add_residual(
    cpu: Cpu,
    residual: Option<&[f32]>,
    output: &[f32],
    width: usize,
    y: &mut [f32],
) {
    let epilogue = Epilogue {
        residual,
        ..Epilogue::bias(None)
    };
    epilogue.finish(cpu, output, width, y);
}

impl Linear {
    /// Returns the layer with its adapter merged in and its weight packed.
    #[doc(hidden)]
    pub fn packed(&self, packing: &Packing) -> Result<Self> {
        let product = PackedProduct::new(packing, self)?;
        let bias = product.bias.as_deref();
        let bias = bias.map(|bias| Tensor::new(bias, &Device::Cpu));
        let weight = product.weights[0].clone();
        Self::from_weight(Weight::Packed(weight), bias.transpose()?)
    }
}

/// # Errors
/// If the weight has no inputs.
pub(in crate::layers) fn check_inputs(d_out: usize, d_in: usize) -> Result<()> {
    if d_in == 0 {
        bail!("pack: a weight of [{d_out}, {d_in}] has no inputs; packed layers need at least one");
    }
    Ok(())
}

/// Returns a weight with its adapter merged in, if it has one.
///
/// # Errors
/// If the weight has a value that the format cannot hold.
pub(in crate::layers) fn whole_weight(packing: &Packing, linear: &Linear) -> Result<Tensor> {
    let weight = plain(&linear.weight()?)?;
    let weight = match linear.adapter() {
        None => weight,
        Some(adapter) => {
            let product = adapter.product()?.detach();
            match product.dtype() == weight.dtype() {
                true => (weight + product)?,
                false => (weight.to_dtype(DType::F32)? + product.to_dtype(DType::F32)?)?,
            }
        }
    };
    match packing.format {
        None | Some(WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::Int8) => {}
        // These formats store values, or scales and minima, in f16.
        Some(
            WeightFormat::F16
            | WeightFormat::Int4By32
            | WeightFormat::Int4By64
            | WeightFormat::Int4By128,
        ) => check_range(packing, &weight)?,
    }
    Ok(weight)
}

impl Packing {
    /// Returns the quantized values of a layer's weight, if they are to be packed.
    pub(in crate::layers) fn codes_of(&self, linear: &Linear) -> Option<Coded> {
        match self.format {
            None => Coded::of(linear.kept_weight()),
            Some(_) => None,
        }
    }

    /// Returns the format for a dense weight: the requested one, or the narrowest that holds all its values.
    pub(in crate::layers) fn format_of(&self, weight: &[f32]) -> WeightFormat {
        let all = |is_held: fn(f32) -> bool| weight.iter().all(|&w| is_held(w));
        self.format.unwrap_or_else(|| {
            if all(|w| bf16::from_f32(w).to_f32() == w) {
                WeightFormat::Bf16
            } else if all(|w| f16::from_f32(w).to_f32() == w) {
                WeightFormat::F16
            } else {
                WeightFormat::F32
            }
        })
    }
}

/// # Errors
/// If a finite weight is beyond the largest f16 value.
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

/// Returns a parameter without its graph.
///
/// # Errors
/// If the parameter is not on the CPU, or is f64.
#[doc(hidden)]
pub fn plain(parameter: &Tensor) -> Result<Tensor> {
    if !parameter.device().is_cpu() {
        bail!(
            "pack: packed layers compute on the CPU, but the layer is on another device; load it on the CPU"
        );
    }
    if parameter.dtype() == DType::F64 {
        bail!("pack: packed layers compute in f32, but the layer is F64; load it as F32");
    }
    Ok(parameter.detach())
}

/// Joins the biases of several layers, with zeros for a layer without one.
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
