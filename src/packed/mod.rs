//! Layers packed for inference on the CPU: the same results, several times as fast.
//!
//! `pack` converts a layer into its packed form. The weights are stored in the order in which the matrix
//! kernels read them; biases, activations, gates, residual connections and norms are computed while the
//! results of a product are in the cache; and attention never writes a matrix of scores. A packed layer has
//! no gradients and refuses an input that tracks them. It accepts f32, f16 and bf16 inputs, returns the dtype
//! of its input, and computes in f32 between products.
//!
//! In every [`Precision`], a row gives the same bits whatever the rest of the batch, its place in it, the padding
//! behind it and the number of threads. The number of threads is candle's: set `RAYON_NUM_THREADS`. A packed layer can be called
//! from several threads at once. Each thread that calls, and each of the pool's, keeps the working memory of its largest call
//! until it ends: a call with much longer input than usual is best made from a thread of its own.
//!
//! ```
//! use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement};
//! use candle_blocks::{Precision, TransformerBlock};
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! let config = BlockConfig::new(
//!     AttentionConfig::new(64, 4)?,
//!     FeedForwardConfig::new(64),
//!     NormConfig::layer_norm(64, 1e-12),
//!     NormPlacement::Post,
//! );
//! let block = TransformerBlock::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! let packed = block.pack(Precision::F32)?;
//! let x = Tensor::randn(0f32, 1., (2, 3, 64), &Device::Cpu)?; // [batch, seq, d_model]
//! assert_eq!(packed.forward(&x)?.dims(), [2, 3, 64]);
//! # Ok::<(), candle_blocks::Error>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_blocks_kernels::{Cpu, products::WeightFormat, threads};
use candle_blocks_kernels::{attention::OperandFormat, memory::LargePages};
use candle_core::{DType, Result, Storage, Tensor, bail};

use crate::{config::Precision, layers::RelativeEmbeddings, ops};

/// Gives a layer the method `pack`.
macro_rules! packs {
    ($layer:ty, $packed:ty, |$packing:ident, $of:ident| $made:expr) => {
        impl $layer {
            /// Packs the weights for inference on the CPU.
            ///
            /// # Errors
            /// If the layer is not on the CPU or is f64, or a weight is beyond the range of the precision.
            pub fn pack(&self, precision: Precision) -> Result<$packed> {
                let ($packing, $of) = (&Packing::new(precision)?, self);
                $made
            }
        }
    };
    ($layer:ty, $packed:ty) => {
        packs!($layer, $packed, |packing, layer| <$packed>::new(
            packing, layer
        ));
    };
}

/// Makes a candle `Module` of a packed layer that computes each row by itself: with its name, the widths of its input and
/// output, and how many threads stay awake between its steps.
macro_rules! per_row {
    ($packed:ty, $name:literal, |$of:ident| $widths:expr, $team:expr) => {
        impl Module for $packed {
            /// The output of the original layer in evaluation mode.
            ///
            /// # Shapes
            /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`.
            ///
            /// # Errors
            /// If the last dimension is not `d_in`, or the input tracks gradients, is f64, or is not on the CPU.
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let $of = self;
                let (d_in, d_out) = $widths;
                map_rows($name, x, (d_in, d_out), $team, |x, y| {
                    self.apply(&Source::new(x, d_in), &Finishing::NONE, y);
                    Ok(())
                })
            }
        }
    };
}

mod additive;
mod altup;
mod attention;
mod block;
mod cache;
mod feed_forward;
mod kept;
mod key_value_rows;
mod latents;
mod laurel;
mod layer_input;
mod linear;
mod mixture;
mod norm;
mod pass;
mod stack;
mod stored;
mod sublayer;

pub use attention::PackedAttention;
pub use block::{PackedBlockFeedForward, PackedTransformerBlock};
pub use cache::PackedKvCache;
pub use feed_forward::PackedFeedForward;
pub use mixture::PackedMixtureOfExperts;
pub use stack::PackedStack;
pub use sublayer::PackedSublayer;

/// How and where to pack, and on how many threads to compute.
#[derive(Clone)]
pub(crate) struct Packing {
    /// `None`: the codes of the file, or the narrowest format that holds a weight's numbers.
    format: Option<WeightFormat>,
    /// Whether a weight was packed from codes.
    has_codes: Arc<AtomicBool>,
    /// What attention keeps queries, keys and values in.
    stored: OperandFormat,
    cpu: Cpu,
    /// The role of what is packed in the layer that `pack` was asked for: `blocks.0.attention`; empty of that layer itself.
    role: String,
    /// Memory shared by all weights that are packed together.
    pages: LargePages,
    /// The embeddings of distances that attention may read, `[2 · span, d_model]`.
    relative: Option<Tensor>,
}

impl Packing {
    /// To pack layers in memory.
    ///
    /// # Errors
    /// If `CANDLE_BLOCKS_ISA` asks for an instruction set that the CPU lacks, or the precision is that of a file.
    fn new(precision: Precision) -> Result<Self> {
        if precision == Precision::AsStored {
            bail!(
                "pack: AsStored packs the codes of a quantised file, and a layer in memory has none; load it by \
                 Checkpoint::packed_stack or packed_model, or pack it in Int8, Int4 or Bf16"
            );
        }
        Self::of_file(precision)
    }

    /// To pack what a file has as it is read.
    ///
    /// # Errors
    /// If `CANDLE_BLOCKS_ISA` asks for an instruction set that the CPU lacks.
    pub(crate) fn of_file(precision: Precision) -> Result<Self> {
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

    /// To pack blocks that read these embeddings of distances.
    fn with_relative(self, embeddings: Option<&RelativeEmbeddings>) -> Result<Self> {
        let rows = embeddings.map(RelativeEmbeddings::rows).transpose()?;
        Ok(Self {
            relative: rows.map(|rows| rows.detach()),
            ..self
        })
    }

    /// Notes that a weight was packed from codes.
    fn note_codes(&self) {
        self.has_codes.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// If codes were to be packed, and there were none.
    fn check_codes(&self) -> Result<()> {
        if self.format.is_none() && !self.has_codes.load(Ordering::Relaxed) {
            bail!(
                "pack: AsStored packs the codes of a quantised file, and no weight has any; pack in Int8, Int4, Bf16, \
                 F16 or F32"
            );
        }
        Ok(())
    }

    /// To pack what has this role in the layer.
    fn at(&self, role: impl fmt::Display) -> Self {
        let role = match &*self.role {
            "" => role.to_string(),
            of => format!("{of}.{role}"),
        };
        Self {
            role,
            ..self.clone()
        }
    }
}

/// Calls `compute` with the elements of `x` `[.., d_in]` in f32 and those of the result, which becomes a tensor
/// `[.., d_out]` in the type of `x`. With more than one thread, a `team` stays awake
/// meanwhile.
fn map_rows(
    op: &str,
    x: &Tensor,
    (d_in, d_out): (usize, usize),
    team: usize,
    compute: impl FnOnce(&[f32], &mut [f32]) -> Result<()>,
) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    if dims.pop() != Some(d_in) {
        bail!(
            "{op}: input has shape {:?}, expected [.., {d_in}]",
            x.dims()
        );
    }
    dims.push(d_out);
    let mut y = vec![0.0; dims.iter().product()];
    with_elements(op, x, |x| threads::with_team(team, || compute(x, &mut y)))?;
    Tensor::from_vec(y, dims, x.device())?.to_dtype(x.dtype())
}

/// Calls `work` with the elements of `x` in f32, row after row.
fn with_elements<R>(op: &str, x: &Tensor, work: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    if x.track_op() {
        bail!(
            "{op} is packed and has no gradient, but its input asks for one; train the layer before it is packed, or detach the input"
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
        bail!("{op} is packed for the CPU, but its input lies elsewhere; move it with to_device");
    };
    let elements = storage.as_slice::<f32>()?;
    // A view without elements may begin behind the last one.
    let elements = elements.get(layout.start_offset()..).unwrap_or_default();
    work(&elements[..x.elem_count()])
}

/// The elements of a parameter in f32.
///
/// # Errors
/// If they are no floating-point numbers.
fn elements(parameter: &Tensor) -> Result<Vec<f32>> {
    if !parameter.dtype().is_float() {
        bail!(
            "pack: a parameter that is needed as numbers is {:?}; pack in Int8, Int4 or Bf16",
            parameter.dtype()
        );
    }
    parameter
        .detach()
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()
}
