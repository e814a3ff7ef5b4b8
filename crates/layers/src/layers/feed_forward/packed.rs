//! A feed-forward with packed weights, whose hidden activations stay in the cache.

use std::{fmt, sync::Arc};

use candle_blocks_kernels::products::{
    Epilogue, GateClamp, Matrix, PackedWeight, Scale, WeightFormat,
};
use candle_blocks_kernels::rows::{ActivationFunction, RowNorm, Source, elements as rows};
use candle_blocks_kernels::{memory::lend, scratch};
use candle_core::Result;

use crate::config::getters;
use crate::layers::linear::packed::{PackedProduct, check_inputs, whole_weight};
use crate::layers::norm::packed::row_norm;
use crate::layers::packed::stored::pack_codes;
use crate::layers::packed::{Packing, check_evaluation, elements, packs, with_elements, with_last};
use crate::layers::visit::{PackedTogether, Visit};
use crate::layers::{FeedForward, Linear};
use crate::memory::check_packing;
use crate::ops::{self, Value};

/// The packed weights of a [`FeedForward`].
///
/// The gate and up projections form a single weight, and their products are multiplied before either leaves the
/// cache. They stay separate if their quantized formats or column orders differ, or if the gate is sparse.
#[derive(Clone)]
pub(crate) struct PackedFeedForward {
    up: Arc<PackedWeight>,
    /// The gate's bias if gated, else the bias of `up`.
    bias: Option<Arc<[f32]>>,
    /// The bias of `up`, if gated.
    up_bias: Option<Arc<[f32]>>,
    activation: ActivationFunction,
    clamp: Option<GateClamp<f32>>,
    /// The factors on the gate and on the output, if they are not 1.
    multipliers: [Option<f32>; 2],
    /// A gate with a separate weight. `up` and `bias` then belong to the up projection only.
    gate: Option<SeparateGate>,
    /// Applied to the rows that `down` reads.
    sub_norm: Option<RowNorm>,
    down: PackedProduct,
}

/// A gate whose weight is not joined with the up projection's.
#[derive(Clone)]
struct SeparateGate {
    gate: PackedProduct,
    /// For a sparse gate, the threshold above a row's mean, in standard deviations. Smaller outputs become 0.
    above: Option<f64>,
}

scratch!(GATE_ROWS);
scratch!(UP_ROWS);
scratch!(HIDDEN_ROWS);

/// Hidden rows in memory at a time, if they are normalized.
const NORMALIZED_ROWS: usize = 512;

packs!(FeedForward);

impl PackedTogether for PackedFeedForward {
    fn bytes(&self) -> usize {
        let gate = self
            .gate
            .as_ref()
            .map_or(0, |separate| separate.gate.bytes());
        gate + self.up.bytes() + self.down.bytes()
    }
}

impl FeedForward {
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let mut packed = self.clone();
        packed.packed = Some(Arc::new(PackedFeedForward::new(packing, self)?));
        packed.join_linears();
        Ok(packed)
    }
}

impl PackedFeedForward {
    pub(in crate::layers) fn new(packing: &Packing, feed_forward: &FeedForward) -> Result<Self> {
        let factor = |of: f64| (of != 1.0).then_some(of as f32);
        let bias = |linear: &Linear| -> Result<Option<Arc<[f32]>>> {
            let bias = linear.bias().map(elements).transpose()?;
            Ok(bias.map(Arc::from))
        };
        let (up, down) = (feed_forward.up(), feed_forward.down());
        let down = PackedProduct::new(&packing.at("down"), down)?;
        let above = feed_forward.sparsity.map(ops::quantile);
        let gate = feed_forward.gate();
        let joined = match gate.filter(|_| above.is_none()) {
            Some(gate) => gated(packing, gate, up)?.zip(Some(gate)),
            None => None,
        };
        let (weight, bias, up_bias, separate) = match joined {
            Some((weight, gate)) => (Arc::new(weight), bias(gate)?, bias(up)?, None),
            None => {
                let up = PackedProduct::new(&packing.at("up"), up)?;
                let gate = gate.map(|gate| PackedProduct::new(&packing.at("gate"), gate));
                let separate = gate.transpose()?.map(|gate| SeparateGate { gate, above });
                (up.weight().clone(), up.bias().cloned(), None, separate)
            }
        };
        Ok(Self {
            up: weight,
            bias,
            up_bias,
            activation: match &feed_forward.xielu {
                Some(xielu) => ActivationFunction::Xielu(ops::xielu_kernel(xielu.numbers())?),
                None => ops::activation_kernel(feed_forward.activation()),
            },
            multipliers: [
                factor(feed_forward.multipliers.gate),
                factor(feed_forward.multipliers.output),
            ],
            gate: separate,
            sub_norm: feed_forward.sub_norm().map(row_norm).transpose()?,
            clamp: feed_forward.clamp.map(|clamp| GateClamp {
                limit: clamp.limit as f32,
                offset: clamp.offset as f32,
            }),
            down,
        })
    }

    getters! {
        /// The input width. Inside a block it is also the output width.
        d_model(&self) -> usize => self.up.d_in();
        /// The width of the hidden layer.
        d_ff(&self) -> usize => self.up.d_out();
    }

    /// Computes the output and adds it to `residual`. Outside a block, its width may differ from the input width.
    pub fn apply(&self, x: &Value, residual: Option<&Value>, train: bool) -> Result<Value> {
        check_evaluation(train)?;
        let dims = with_last(x.dims().to_vec(), self.down.d_out());
        x.packed_step(
            "feed-forward",
            self.d_model(),
            dims,
            residual,
            |_, x, residual, y| {
                self.apply_rows(x, residual, y);
                Ok(())
            },
        )
    }

    /// Computes `y = residual + down(act(up(x)))`.
    pub(in crate::layers) fn apply_rows(
        &self,
        x: &Source,
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) {
        if let Some(gate) = &self.gate {
            return self.apply_separate(gate, x, residual, y);
        }
        let up_epilogue = Epilogue {
            up_bias: self.up_bias.as_deref(),
            activation: self.activation,
            gate_factor: self.multipliers[0],
            clamp: self.clamp,
            ..Epilogue::bias(self.bias.as_deref())
        };
        if self.sub_norm.is_some() {
            return self.apply_normalized(&up_epilogue, x, residual, y);
        }
        let epilogue = self.down_epilogue(residual);
        let up = (&*self.up, &up_epilogue);
        self.down
            .weight()
            .multiply_hidden(self.down.cpu, up, x, &epilogue, y);
    }

    /// Computes `y = residual + down(norm(act(up(x))))`. The norm needs whole hidden rows, so that they do not stay in the
    /// first product's epilogue.
    fn apply_normalized(
        &self,
        up_epilogue: &Epilogue<f32>,
        x: &Source,
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) {
        let (cpu, d_ff, d_out) = (self.down.cpu, self.d_ff(), self.down.d_out());
        for start in (0..x.rows()).step_by(NORMALIZED_ROWS) {
            let rows = start..x.rows().min(start + NORMALIZED_ROWS);
            let elements = rows.start * d_out..rows.end * d_out;
            let residual = residual.map(|residual| &residual[elements.clone()]);
            lend(HIDDEN_ROWS, rows.len() * d_ff, |hidden: &mut [f32]| {
                self.up.multiply(cpu, &x.part(rows), up_epilogue, hidden);
                self.project_down(hidden, residual, &mut y[elements]);
            });
        }
    }

    /// Computes `y = residual + down(norm(hidden))`.
    fn project_down(&self, hidden: &[f32], residual: Option<&[f32]>, y: &mut [f32]) {
        let rows = Source::new(hidden, self.d_ff()).with_norm(self.sub_norm.as_ref());
        let epilogue = self.down_epilogue(residual);
        let down = self.down.weight();
        down.multiply(self.down.cpu, &rows, &epilogue, y);
    }

    fn down_epilogue<'a>(&'a self, residual: Option<&'a [f32]>) -> Epilogue<'a, f32> {
        Epilogue {
            scale: self.multipliers[1].map_or(Scale::One, Scale::Constant),
            ..self.down.epilogue(residual)
        }
    }

    /// Computes `y = residual + down(act(largest(gate(x))) · up(x))`, or the same with the whole gate.
    fn apply_separate(
        &self,
        SeparateGate { gate: of, above }: &SeparateGate,
        x: &Source,
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) {
        let (cpu, n, d_ff) = (self.down.cpu, x.rows() * self.d_ff(), self.d_ff());
        lend(GATE_ROWS, n, |gate: &mut [f32]| {
            of.apply(x, None, gate);
            if let Some(above) = *above {
                let rows = gate.chunks_exact_mut(d_ff);
                rows.for_each(|row| ops::keep_largest(row, above));
            }
            if let Some(factor) = self.multipliers[0] {
                gate.iter_mut().for_each(|gate| *gate *= factor);
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
                self.project_down(up, residual, y);
            });
        });
    }
}

/// Packs the gate and up weights as one. Returns `None` if they are quantized values in different formats.
fn gated(packing: &Packing, gate: &Linear, up: &Linear) -> Result<Option<PackedWeight>> {
    let shape = gate.shape();
    check_inputs(shape.0, shape.1)?;
    match (packing.codes_of(gate), packing.codes_of(up)) {
        (None, None) => {}
        (Some(gate), Some(up)) if gate.is_like(&up) => {
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

impl fmt::Debug for PackedFeedForward {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedFeedForward")
            .field("d_model", &self.d_model())
            .field("d_ff", &self.d_ff())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use candle_blocks_kernels::products::{
        GroupScales, QuantizedFormat, QuantizedWeightRows, ScaleType,
    };
    use candle_core::{DType, Tensor};

    use super::*;
    use crate::config::{Activation, GateClamp as Clamp};
    use crate::error::Error;
    use crate::layers::{Stored, StoredMatrix, Weight};

    const D_IN: usize = 48;

    /// A quantized weight whose scales are 1, times `D`.
    #[derive(Debug)]
    struct Codes {
        format: QuantizedFormat,
        d_out: usize,
        zero: u8,
    }

    const D: f32 = 1.0 / 256.0;

    impl Codes {
        fn code(&self, row: usize, column: usize) -> u8 {
            ((row * 31 + column * 17 + row * column) % (2 * usize::from(self.zero))) as u8
        }
    }

    impl StoredMatrix for Codes {
        fn rows(&self, rows: Range<usize>) -> Result<Vec<f32>> {
            let element = |at: usize| {
                let code = self.code(at / D_IN, at % D_IN);
                (f32::from(code) - f32::from(self.zero)) * D
            };
            Ok((rows.start * D_IN..rows.end * D_IN).map(element).collect())
        }

        fn comes_whole(&self) -> bool {
            false
        }

        fn coding(&self) -> Option<(QuantizedFormat, Option<&Arc<[u32]>>)> {
            Some((self.format, None))
        }

        fn coded_rows(&self, rows: Range<usize>) -> Result<QuantizedWeightRows> {
            let n_groups = rows.len() * D_IN.div_ceil(self.format.bits_by_group.1);
            let is_shared = self.format.scales == GroupScales::Signed;
            let columns = |row| (0..D_IN).map(move |column| self.code(row, column));
            Ok(QuantizedWeightRows {
                values: rows.clone().flat_map(columns).collect(),
                scales: vec![if is_shared { 1.0 } else { D }; n_groups],
                offsets: vec![],
                shared: if is_shared {
                    vec![[D, 0.0]; rows.len()]
                } else {
                    vec![]
                },
            })
        }

        fn error(&self, reason: String) -> Error {
            Error::InvalidConfig(reason)
        }
    }

    #[test]
    fn a_gate_of_another_format_than_up_is_clamped_as_any() {
        let of = |bits_by_group, scales, zero| Codes {
            format: QuantizedFormat {
                bits_by_group,
                scales,
            },
            d_out: 33,
            zero,
        };
        let scales = ScaleType::F16;
        let gate: Arc<Codes> = of((6, 16), GroupScales::Signed, 32).into();
        let up: Arc<Codes> = of((8, 32), GroupScales::Zero { scales, zero: 128 }, 128).into();
        let numbers = |shape: (usize, usize)| {
            let numbers = (0..shape.0 * shape.1).map(|i| (i as f32).sin());
            Tensor::from_iter(numbers, &candle_core::Device::Cpu)
                .unwrap()
                .reshape(shape)
                .unwrap()
        };
        let down = numbers((D_IN, 33));
        // Values that bfloat16 holds exactly, since the weight is packed in that format.
        let down = down
            .to_dtype(DType::BF16)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap();
        let network = |weight: &dyn Fn(&Arc<Codes>) -> Weight| {
            let linear = |weight| Linear::from_weight(weight, None).unwrap();
            let (gate, up) = (linear(weight(&gate)), linear(weight(&up)));
            let down = linear(Weight::Dense(down.clone()));
            let mut network =
                FeedForward::from_parts(Some(gate), up, down, Activation::Silu).unwrap();
            let (limit, offset) = (0.7, 1.0);
            network.clamp = Some(Clamp { limit, offset });
            network
        };
        let kept = |codes: &Arc<Codes>| {
            let kind = (DType::F32, &candle_core::Device::Cpu);
            Stored::weight(codes.clone(), (codes.d_out, D_IN), kind)
        };
        let exact = network(&|codes| Weight::Dense(kept(codes).tensor().unwrap()));
        let coded = network(&kept);
        let packing = Packing::new(crate::config::Precision::AsStored).unwrap();
        let packed = coded.packed(&packing).unwrap();
        let x = numbers((5, D_IN));
        let expected = exact.forward(&x).unwrap();
        let found = packed.forward(&x).unwrap();
        let squares = |x: Tensor| {
            x.sqr()
                .unwrap()
                .sum_all()
                .unwrap()
                .to_scalar::<f32>()
                .unwrap()
        };
        let error = squares((found - &expected).unwrap()) / squares(expected);
        assert!(error.sqrt() < 0.02, "{}", error.sqrt());
    }
}
