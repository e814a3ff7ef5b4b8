//! The feed-forward with packed weights, whose hidden activations stay in the cache.

use std::{fmt, sync::Arc};

use candle_blocks_kernels::products::{Epilogue, GateClamp, Matrix, PackedWeight, WeightFormat};
use candle_blocks_kernels::rows::{ActivationFunction, Source, elements as rows};
use candle_blocks_kernels::{memory::lend, scratch};
use candle_core::{Module, Result, Tensor, bail};

use super::linear::{Finishing, PackedLinear, check_inputs, whole_weight};
use super::stored::pack_codes;
use super::{Packing, elements, map_rows, with_elements};
use crate::config::{Precision, getters};
use crate::layers::{FeedForward, Linear};
use crate::memory::check_packing;
use crate::ops;

/// A [`FeedForward`] packed for inference on the CPU, created by [`FeedForward::pack`].
///
/// The gate and up projections form a single weight, and their product is computed before either leaves the cache.
#[derive(Clone)]
pub struct PackedFeedForward {
    up: Arc<PackedWeight>,
    /// The gate's if gated, else up's.
    bias: Option<Arc<[f32]>>,
    /// Up's if gated.
    up_bias: Option<Arc<[f32]>>,
    activation: ActivationFunction,
    clamp: Option<GateClamp<f32>>,
    sparse: Option<SparseGate>,
    down: PackedLinear,
}

/// A gate of which the largest outputs of a row alone pass, which are known when all are.
#[derive(Clone)]
struct SparseGate {
    gate: PackedLinear,
    /// How many deviations above the mean they begin.
    above: f64,
}

scratch!(GATE_ROWS);
scratch!(UP_ROWS);

packs!(FeedForward, PackedFeedForward);

impl PackedFeedForward {
    pub(super) fn new(packing: &Packing, feed_forward: &FeedForward) -> Result<Self> {
        feed_forward.check_shapes()?;
        let bias = |linear: &Linear| -> Result<Option<Arc<[f32]>>> {
            let bias = linear.bias().map(elements).transpose()?;
            Ok(bias.map(Arc::from))
        };
        let (up, down) = (feed_forward.up(), feed_forward.down());
        let down = PackedLinear::new(&packing.at("down"), down)?;
        let above = feed_forward.sparsity().map(ops::quantile);
        let sparse = feed_forward.gate().zip(above).map(|(gate, above)| {
            let gate = PackedLinear::new(&packing.at("gate"), gate)?;
            Ok::<_, candle_core::Error>(SparseGate { gate, above })
        });
        let (weight, bias, up_bias) = match feed_forward.gate().filter(|_| sparse.is_none()) {
            None => {
                let packed = PackedLinear::new(&packing.at("up"), up)?;
                (packed.weight().clone(), packed.bias().cloned(), None)
            }
            Some(gate) => {
                let weight = gated(packing, gate, up)?;
                (Arc::new(weight), bias(gate)?, bias(up)?)
            }
        };
        Ok(Self {
            up: weight,
            bias,
            up_bias,
            activation: match feed_forward.xielu() {
                Some(xielu) => ActivationFunction::Xielu(ops::xielu_kernel(xielu.numbers())?),
                None => ops::activation_kernel(feed_forward.activation()),
            },
            sparse: sparse.transpose()?,
            clamp: feed_forward.clamp().map(|clamp| GateClamp {
                limit: clamp.limit as f32,
                offset: clamp.offset as f32,
            }),
            down,
        })
    }

    getters! {
        /// The width of the input, and inside a block also of the output.
        d_model(&self) -> usize => self.up.d_in();
        /// The width of the hidden layer.
        d_ff(&self) -> usize => self.up.d_out();
        /// The size of the packed weights in bytes.
        bytes(&self) -> usize => {
            let gate = self.sparse.as_ref().map_or(0, |sparse| sparse.gate.bytes());
            gate + self.up.bytes() + self.down.bytes()
        };
    }

    /// The width of the output; outside a block it may differ from that of the input.
    pub(super) fn d_out(&self) -> usize {
        self.down.d_out()
    }

    /// `y = finishing(down(act(up(x))))`.
    pub(super) fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        if let Some(sparse) = &self.sparse {
            return self.apply_sparse(sparse, x, finishing, y);
        }
        let up_epilogue = Epilogue {
            up_bias: self.up_bias.as_deref(),
            activation: self.activation,
            clamp: self.clamp,
            ..Epilogue::bias(self.bias.as_deref())
        };
        let epilogue = self.down.epilogue(finishing);
        let up = (&*self.up, &up_epilogue);
        self.down
            .weight()
            .multiply_hidden(self.down.cpu, up, x, &epilogue, y);
    }

    /// `y = finishing(down(act(largest(gate(x))) · up(x)))`.
    fn apply_sparse(&self, sparse: &SparseGate, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        let (cpu, n, d_ff) = (self.down.cpu, x.rows() * self.d_ff(), self.d_ff());
        lend(GATE_ROWS, n, |gate: &mut [f32]| {
            sparse.gate.apply(x, &Finishing::NONE, gate);
            gate.chunks_exact_mut(d_ff)
                .for_each(|row| ops::keep_largest(row, sparse.above));
            lend(UP_ROWS, n, |up: &mut [f32]| {
                self.activation
                    .forward(cpu, (&*gate).into(), (&mut *up).into());
                self.up
                    .multiply(cpu, x, &Epilogue::bias(self.bias.as_deref()), gate);
                rows::multiply(cpu, (&mut *up).into(), (&*gate).into());
                self.down.apply(&Source::new(up, d_ff), finishing, y);
            });
        });
    }
}

/// The weights of gate and up as one.
fn gated(packing: &Packing, gate: &Linear, up: &Linear) -> Result<PackedWeight> {
    let shape = gate.shape();
    check_inputs(shape.0, shape.1)?;
    match (packing.codes_of(gate)?, packing.codes_of(up)?) {
        (None, None) => {}
        (Some(gate), Some(up)) if gate.format().common(up.format()).is_some() => {
            return pack_codes(packing, &[gate, up], true);
        }
        _ => bail!(
            "pack: gate and up of {} are multiplied as one, and no codes hold both as they are stored; pack in Int8, \
             Int4 or Bf16",
            packing.role
        ),
    }
    let gate = whole_weight(&packing.at("gate"), gate)?;
    let up = whole_weight(&packing.at("up"), up)?;
    with_elements("pack", &gate, |gate| {
        with_elements("pack", &up, |up| {
            let formats = [gate, up].map(|weight| packing.format_of(weight));
            let format = match formats {
                [gate, up] if gate == up => gate,
                _ => WeightFormat::F32,
            };
            check_packing(2 * gate.len() * format.bits() / 8)?;
            Ok(PackedWeight::gated(
                packing.cpu,
                format,
                Matrix::new(gate.into(), shape, (shape.1, 1)),
                Matrix::new(up.into(), shape, (shape.1, 1)),
                &packing.pages,
            ))
        })
    })
}

per_row!(
    PackedFeedForward,
    "feed-forward",
    |network| (network.d_model(), network.d_out()),
    1
);

impl fmt::Debug for PackedFeedForward {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedFeedForward")
            .field("d_model", &self.d_model())
            .field("d_ff", &self.d_ff())
            .finish_non_exhaustive()
    }
}
