//! Packed weights: the layers' weights in the order in which the kernels read them, for inference on the CPU.
//!
//! A layer with several weights packs them together: query, key and value, or gate and up. It keeps them beside its
//! linear layers, which then hold only shapes and biases, and computes with them as one step of the pass.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_blocks_kernels::{Cpu, products::WeightFormat};
use candle_blocks_kernels::{attention::OperandFormat, memory::LargePages};
use candle_core::{DType, Result, Storage, Tensor, bail};

use crate::layers::{RelativeEmbeddings, visit::Visit, visit::join};
use crate::{config::Precision, ops};

/// Implements the method `pack` for a layer.
macro_rules! packs {
    ($layer:ty) => {
        impl $layer {
            /// Packs the weights for inference on the CPU. The result is the same layer, several times as fast,
            /// without gradients. The [module page](crate::layers#packing) describes packed layers.
            ///
            /// # Errors
            /// If the layer is not on the CPU or is f64, or a weight is beyond the range of the precision.
            pub fn pack(
                &self,
                precision: $crate::config::Precision,
            ) -> ::candle_core::Result<Self> {
                $crate::layers::packed::Packing::whole(precision, |packing| self.packed(packing))
            }
        }
    };
}

pub(in crate::layers) mod additive;
mod compose;
pub(in crate::layers) mod pass;
pub(in crate::layers) mod stored;
mod unpadded_rows;

pub(crate) use packs;
pub(crate) use pass::PassTables;
pub(crate) use unpadded_rows::{CachedSequences, UnpaddedRows, padding_seen};

/// The format for packed weights, the memory for them, and the CPU to compute on.
#[derive(Clone)]
#[doc(hidden)]
pub struct Packing {
    /// `None` keeps quantized values as they are in the file, and packs other weights in the narrowest format that
    /// holds their values.
    pub(in crate::layers) format: Option<WeightFormat>,
    /// True once a weight was packed from quantized values.
    pub(in crate::layers) has_codes: Arc<AtomicBool>,
    /// The number format of queries, keys and values.
    pub(in crate::layers) stored: OperandFormat,
    pub(in crate::layers) cpu: Cpu,
    /// The role of the current part within the layer on which `pack` was called: `blocks.0.attention`. Empty for that
    /// layer itself.
    pub(in crate::layers) role: String,
    /// Pages for all weights that are packed together.
    pub(in crate::layers) pages: LargePages,
    /// The relative embeddings for disentangled attention or a gated bias, `[n_rows, d_model or n_heads]`.
    pub(in crate::layers) relative: Option<Tensor>,
}

impl Packing {
    /// Creates a packing in a precision.
    ///
    /// # Errors
    /// If `CANDLE_BLOCKS_ISA` names an instruction set that the CPU lacks.
    #[doc(hidden)]
    pub fn new(precision: Precision) -> Result<Self> {
        Ok(Self {
            format: ops::weight_format(precision),
            has_codes: Arc::default(),
            stored: match precision {
                // Rows and scores are of any size, which f16 is not.
                Precision::F32 | Precision::F16 => OperandFormat::F32,
                Precision::Bf16
                | Precision::Int8
                | Precision::Int4 { .. }
                | Precision::AsStored => OperandFormat::Bf16,
            },
            cpu: ops::cpu()?,
            role: String::new(),
            pages: LargePages::default(),
            relative: None,
        })
    }

    /// Packs a whole layer with `pack`.
    ///
    /// # Errors
    /// The errors of `pack`, [`Self::new`] and [`Self::check_codes`].
    pub(crate) fn whole<T>(
        precision: Precision,
        pack: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let packing = Self::new(precision)?;
        let packed = pack(&packing)?;
        packing.check_codes()?;
        Ok(packed)
    }

    /// Sets the relative embeddings for the blocks.
    pub(crate) fn with_relative(self, embeddings: Option<&RelativeEmbeddings>) -> Result<Self> {
        let rows = embeddings.map(RelativeEmbeddings::rows).transpose()?;
        Ok(Self {
            relative: rows.map(|rows| rows.detach()),
            ..self
        })
    }

    /// Notes that a weight was packed from quantized values.
    pub(in crate::layers) fn note_codes(&self) {
        self.has_codes.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// If the precision is `AsStored`, but no weight was quantized.
    pub(crate) fn check_codes(&self) -> Result<()> {
        if self.format.is_none() && !self.has_codes.load(Ordering::Relaxed) {
            bail!(
                "pack: AsStored packs the quantized values of a file, but no weight is quantized; load a quantized file with \
                 Weights::Packed, or pack in Int8, Int4, Bf16, F16 or F32"
            );
        }
        Ok(())
    }

    /// Returns the packing in f32 for weights that no precision rounds.
    pub(in crate::layers) fn exact(&self) -> Self {
        Self {
            format: Some(WeightFormat::F32),
            ..self.clone()
        }
    }

    /// Returns a layer with packed linear layers.
    pub(in crate::layers) fn linears_of<V: Visit + Clone>(&self, layer: &V) -> Result<V> {
        let mut packed = layer.clone();
        for (role, linear) in packed.linears_mut() {
            *linear = linear.packed(&self.at(role))?;
        }
        Ok(packed)
    }

    /// Returns the packing for a stack's block.
    pub(crate) fn of_block(&self, i: usize) -> Self {
        self.at(format_args!("blocks.{i}"))
    }

    /// Returns the packing for the part with this role in the layer.
    pub(crate) fn at(&self, role: impl fmt::Display) -> Self {
        Self {
            role: join(&self.role, role),
            ..self.clone()
        }
    }
}

/// # Errors
/// If a packed layer is called in training mode.
pub(crate) fn check_evaluation(train: bool) -> Result<()> {
    if train {
        bail!("packed layers do not train; pack them after training, or use evaluation()");
    }
    Ok(())
}

/// Returns dimensions with another last one.
pub(in crate::layers) fn with_last(mut dims: Vec<usize>, last: usize) -> Vec<usize> {
    if let Some(of) = dims.last_mut() {
        *of = last;
    }
    dims
}

/// Calls `work` with the elements of `x` in f32, row after row.
pub(in crate::layers) fn with_elements<R>(
    op: &str,
    x: &Tensor,
    work: impl FnOnce(&[f32]) -> Result<R>,
) -> Result<R> {
    if x.track_op() {
        bail!(
            "{op} is packed and has no gradient, but its input tracks gradients; train the layer before you pack it, or detach the input"
        );
    }
    match x.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => {}
        other => bail!(
            "{op} is packed and takes F32, F16 or BF16, but its input is {other:?}; convert it with to_dtype"
        ),
    }
    let x = x.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        bail!(
            "{op} is packed for the CPU, but its input is on another device; move it with to_device"
        );
    };
    let elements = storage.as_slice::<f32>()?;
    // A view without elements may begin after the end of the storage.
    let elements = elements.get(layout.start_offset()..).unwrap_or_default();
    work(&elements[..x.elem_count()])
}

/// Returns the elements of a parameter in f32.
///
/// # Errors
/// If the parameter has no float dtype.
#[doc(hidden)]
pub fn elements(parameter: &Tensor) -> Result<Vec<f32>> {
    if !parameter.dtype().is_float() {
        bail!(
            "pack: a parameter has the dtype {:?}, expected a float type; pack in Int8, Int4 or Bf16",
            parameter.dtype()
        );
    }
    parameter
        .detach()
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()
}
