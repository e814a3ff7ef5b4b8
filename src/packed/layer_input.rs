//! Packed inputs that each layer of a stack has for itself.

use std::fmt;

use candle_blocks_kernels::products::{Epilogue, Scale};
use candle_blocks_kernels::rows::{ActivationFunction, RowNorm, Source};
use candle_blocks_kernels::{Cpu, memory::lend, scratch};
use candle_core::{Result, bail};

use super::linear::{Finishing, Product};
use super::{Packing, norm::row_norm, pass::PackedPass, with_elements};
use crate::config::getters;
use crate::layers::own::gemma::{FACTOR_OF_SUM, GatedInput, LayerInputs, factor_of_projection};
use crate::ops;

scratch! {
    /// The inputs of all layers, side by side.
    INPUT_ROWS
}
scratch!(GATED_ROWS);

/// The packed form of [`LayerInputs`].
#[derive(Clone)]
pub(super) struct PackedLayerInputs {
    projection: Product,
    norm: RowNorm,
    cpu: Cpu,
}

/// The rows of one layer's input, among those of all layers.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    all: &'a [f32],
    /// Columns of all layers.
    stride: usize,
    /// The layer's first column.
    offset: usize,
    /// Of so many rows the last counts.
    each: usize,
}

impl PackedLayerInputs {
    pub fn new(packing: &Packing, inputs: &LayerInputs) -> Result<Self> {
        let at = packing.at("layer_inputs.projection");
        Ok(Self {
            projection: Product::new(&at, &inputs.projection)?,
            norm: row_norm(&inputs.norm)?,
            cpu: packing.cpu,
        })
    }

    /// The size of the packed weight in bytes.
    pub fn bytes(&self) -> usize {
        self.projection.bytes()
    }

    /// Calls `work` with the rows of a pass, and the inputs of all layers for them.
    ///
    /// # Errors
    /// If the pass's rows of words do not fit, and those of `work`.
    pub fn with_rows<R>(
        &self,
        rows: &mut [f32],
        pass: &PackedPass,
        work: impl FnOnce(&mut [f32], &[f32]) -> Result<R>,
    ) -> Result<R> {
        let (d_model, stride) = (self.projection.d_in(), self.projection.d_out());
        let n_rows = rows.len() / d_model.max(1);
        lend(INPUT_ROWS, n_rows * stride, |inputs: &mut [f32]| {
            let scale = Scale::Constant(factor_of_projection(d_model) as f32);
            let scaled = Finishing {
                scale,
                ..Finishing::NONE
            };
            self.projection
                .apply(&Source::new(rows, d_model), &scaled, inputs);
            self.norm.rows_in_place(self.cpu, inputs);
            if let Some(words) = pass.words() {
                let expected = [pass.batch(), pass.seq(), stride];
                if words.elem_count() != expected.iter().product::<usize>() {
                    let found = words.dims();
                    bail!("layer inputs: words of {found:?}, expected {expected:?}");
                }
                with_elements("layer inputs", words, |words| {
                    let rows = inputs.chunks_exact_mut(stride).enumerate();
                    for (i, row) in rows {
                        let at = pass.kept().map_or(i, |kept| kept[i]);
                        for (x, word) in row.iter_mut().zip(&words[at * stride..]) {
                            *x = (*x + word) * FACTOR_OF_SUM as f32;
                        }
                    }
                    Ok(())
                })?;
            }
            work(rows, inputs)
        })
    }

    /// Among the inputs of all layers, those of one.
    pub fn of_layer<'a>(&self, all: &'a [f32], layer: usize) -> InputRows<'a> {
        InputRows {
            all,
            stride: self.projection.d_out(),
            offset: layer * self.norm.width(),
            each: 1,
        }
    }
}

impl<'a> InputRows<'a> {
    /// Those of the last of each `each` rows.
    pub fn of_last(self, each: usize) -> Self {
        Self { each, ..self }
    }

    /// From the layer's first column of a row on.
    fn row(&self, i: usize) -> &'a [f32] {
        let at = (i + 1) * self.each - 1;
        &self.all[at * self.stride + self.offset..]
    }
}

/// A [`GatedInput`] packed for inference on the CPU.
#[derive(Clone)]
pub(super) struct PackedGatedInput {
    gate: Product,
    output: Product,
    activation: ActivationFunction,
}

impl PackedGatedInput {
    pub(super) fn new(packing: &Packing, input: &GatedInput) -> Result<Self> {
        Ok(Self {
            gate: Product::new(&packing.at("gate"), &input.gate)?,
            output: Product::new(&packing.at("output"), &input.output)?,
            activation: ops::activation_kernel(input.activation),
        })
    }

    getters! {
        /// The width of the input that the layer has for itself.
        width(&self) -> usize => self.gate.d_out();
        /// The size of the packed weights in bytes.
        bytes(&self) -> usize => self.gate.bytes() + self.output.bytes();
    }

    /// `y = finishing(output(act(gate(x)) · input))`.
    pub(super) fn apply(&self, x: &Source, input: InputRows, finishing: &Finishing, y: &mut [f32]) {
        let width = self.gate.d_out();
        lend(GATED_ROWS, x.rows() * width, |gated: &mut [f32]| {
            let epilogue = Epilogue {
                activation: self.activation,
                ..self.gate.epilogue(&Finishing::NONE)
            };
            let weight = self.gate.weight();
            weight.multiply(self.gate.cpu, x, &epilogue, gated);
            for (i, row) in gated.chunks_exact_mut(width).enumerate() {
                for (x, input) in row.iter_mut().zip(input.row(i)) {
                    *x *= input;
                }
            }
            let gated = Source::new(gated, width);
            self.output.apply(&gated, finishing, y);
        });
    }
}

impl fmt::Debug for PackedLayerInputs {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedLayerInputs").finish_non_exhaustive()
    }
}

impl fmt::Debug for PackedGatedInput {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedGatedInput")
            .field("width", &self.width())
            .finish_non_exhaustive()
    }
}
