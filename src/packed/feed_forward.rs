//! The feed-forward with packed weights, whose hidden activations stay in the cache.

use std::{fmt, sync::Arc};

use candle_blocks_kernels::products::{Epilogue, GateClamp, Matrix, PackedWeight, WeightFormat};
use candle_blocks_kernels::rows::{ActivationFunction, Source, elements as rows};
use candle_blocks_kernels::{memory::lend, scratch};
use candle_core::{Module, Result, Tensor};

use super::linear::{Finishing, PackedLinear, check_inputs, whole_weight};
use super::stored::pack_codes;
use super::{Packing, elements, map_rows, with_elements};
use crate::config::{Precision, getters};
use crate::layers::{FeedForward, Linear};
use crate::memory::check_packing;
use crate::ops;

/// A [`FeedForward`] packed for inference on the CPU, created by [`FeedForward::pack`].
///
/// The gate and up projections form a single weight, and their product is computed before either leaves the cache; but of codes
/// that no format holds together, and of a gate of which the largest outputs alone pass.
#[derive(Clone)]
pub struct PackedFeedForward {
    up: Arc<PackedWeight>,
    /// The gate's if gated, else up's.
    bias: Option<Arc<[f32]>>,
    /// Up's if gated.
    up_bias: Option<Arc<[f32]>>,
    activation: ActivationFunction,
    clamp: Option<GateClamp<f32>>,
    /// Then `up` and the biases are up's alone.
    gate: Option<SeparateGate>,
    down: PackedLinear,
}

/// A gate whose weight is not joined with up's.
#[derive(Clone)]
struct SeparateGate {
    gate: PackedLinear,
    /// How many deviations above a row's mean the outputs begin that pass, if these are the largest alone.
    above: Option<f64>,
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
        let gate = feed_forward.gate();
        let joined = match gate.filter(|_| above.is_none()) {
            Some(gate) => gated(packing, gate, up)?.zip(Some(gate)),
            None => None,
        };
        let is_joined = joined.is_some();
        let (weight, bias, up_bias) = match joined {
            Some((weight, gate)) => (Arc::new(weight), bias(gate)?, bias(up)?),
            None => {
                let packed = PackedLinear::new(&packing.at("up"), up)?;
                (packed.weight().clone(), packed.bias().cloned(), None)
            }
        };
        let separate = gate.filter(|_| !is_joined).map(|gate| {
            let gate = PackedLinear::new(&packing.at("gate"), gate)?;
            Ok::<_, candle_core::Error>(SeparateGate { gate, above })
        });
        Ok(Self {
            up: weight,
            bias,
            up_bias,
            activation: match feed_forward.xielu() {
                Some(xielu) => ActivationFunction::Xielu(ops::xielu_kernel(xielu.numbers())?),
                None => ops::activation_kernel(feed_forward.activation()),
            },
            gate: separate.transpose()?,
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
            let gate = self.gate.as_ref().map_or(0, |separate| separate.gate.bytes());
            gate + self.up.bytes() + self.down.bytes()
        };
    }

    /// The width of the output; outside a block it may differ from that of the input.
    pub(super) fn d_out(&self) -> usize {
        self.down.d_out()
    }

    /// `y = finishing(down(act(up(x))))`.
    pub(super) fn apply(&self, x: &Source, finishing: &Finishing, y: &mut [f32]) {
        if let Some(gate) = &self.gate {
            return self.apply_separate(gate, x, finishing, y);
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

    /// `y = finishing(down(act(largest(gate(x))) · up(x)))`, or with the whole gate.
    fn apply_separate(
        &self,
        SeparateGate { gate: of, above }: &SeparateGate,
        x: &Source,
        finishing: &Finishing,
        y: &mut [f32],
    ) {
        let (cpu, n, d_ff) = (self.down.cpu, x.rows() * self.d_ff(), self.d_ff());
        lend(GATE_ROWS, n, |gate: &mut [f32]| {
            of.apply(x, &Finishing::NONE, gate);
            if let Some(above) = *above {
                let rows = gate.chunks_exact_mut(d_ff);
                rows.for_each(|row| ops::keep_largest(row, above));
            }
            if let Some(GateClamp { limit, .. }) = self.clamp {
                let beyond = gate.iter_mut().filter(|gate| **gate > limit);
                beyond.for_each(|gate| *gate = limit);
            }
            lend(UP_ROWS, n, |up: &mut [f32]| {
                self.activation
                    .forward(cpu, (&*gate).into(), (&mut *up).into());
                self.up
                    .multiply(cpu, x, &Epilogue::bias(self.bias.as_deref()), gate);
                if let Some(GateClamp { limit, offset }) = self.clamp {
                    let all = gate.iter_mut();
                    all.for_each(|up| *up = up.clamp(-limit, limit) + offset);
                }
                rows::multiply(cpu, (&mut *up).into(), (&*gate).into());
                self.down.apply(&Source::new(up, d_ff), finishing, y);
            });
        });
    }
}

/// The weights of gate and up as one; `None`, if they are codes of which no format holds both.
fn gated(packing: &Packing, gate: &Linear, up: &Linear) -> Result<Option<PackedWeight>> {
    let shape = gate.shape();
    check_inputs(shape.0, shape.1)?;
    match (packing.codes_of(gate)?, packing.codes_of(up)?) {
        (None, None) => {}
        (Some(gate), Some(up))
            if gate.format().common(up.format()).is_some() && gate.order() == up.order() =>
        {
            return pack_codes(packing, &[gate, up], true).map(Some);
        }
        _ => return Ok(None),
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
            Ok(Some(PackedWeight::gated(
                packing.cpu,
                format,
                Matrix::new(gate.into(), shape, (shape.1, 1)),
                Matrix::new(up.into(), shape, (shape.1, 1)),
                &packing.pages,
            )))
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
