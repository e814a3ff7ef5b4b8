//! Short convolutions with packed projections, in one step.

use std::{fmt, sync::Arc};

use candle_blocks_kernels::rows::Source;
use candle_blocks_kernels::rows::convolution::{ColumnsOf, Convolution, gather, multiply_columns};
use candle_blocks_kernels::{Cpu, memory::lend, scratch};
use candle_core::{Device, Result, Tensor};

use super::ShortConvolution;
use crate::config::{Precision, ShortConvolutionConfig};
use crate::layers::linear::packed::{PackedProduct, plain};
use crate::layers::packed::{Packing, check_evaluation, elements, packs, with_elements};
use crate::layers::visit::{PackedTogether, Visit};
use crate::layers::{pass::Pass, state::Recurrent};
use crate::memory::check_pass;
use crate::ops::{TapTable, Value, by_tap};

/// A [`ShortConvolution`]'s packed weights.
#[derive(Clone)]
pub(super) struct PackedShortConvolution {
    config: ShortConvolutionConfig,
    input: PackedProduct,
    /// `[taps, d_model]`.
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    output: PackedProduct,
    cpu: Cpu,
}

scratch! {
    /// Both gates and the convolution's input, for all rows in a pass.
    PROJECTED_ROWS
}

scratch! {
    /// The rows that the output projection reads.
    MIXED_ROWS
}

packs!(ShortConvolution);

impl ShortConvolution {
    pub(in crate::layers) fn packed(&self, packing: &Packing) -> Result<Self> {
        let of = |tensor: &Tensor| elements(&plain(tensor)?);
        let weight = of(&self.weight)?;
        let packed = PackedShortConvolution {
            config: self.config,
            input: PackedProduct::new(&packing.at("input"), &self.input)?,
            weight: by_tap(&weight, self.config.taps),
            bias: self.bias.as_ref().map(of).transpose()?,
            output: PackedProduct::new(&packing.at("output"), &self.output)?,
            cpu: packing.cpu,
        };
        let mut layer = self.clone();
        layer.packed = Some(Arc::new(packed));
        layer.join_linears();
        Ok(layer)
    }
}

impl PackedShortConvolution {
    /// Computes the output for the positions requested from the current layer, and adds it to `residual`.
    pub fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut Recurrent>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        check_evaluation(pass.context.train())?;
        let (d_model, requested) = (self.config.d_model, pass.requested());
        let dims = match pass.seq == requested.seq {
            true => x.dims().to_vec(),
            false => vec![requested.batch, requested.seq, d_model],
        };
        let op = "short convolution";
        x.packed_step(op, d_model, dims, residual, |_, x, residual, y| {
            let rows = y.len() / d_model;
            check_pass((3 * x.rows() + rows) * d_model * size_of::<f32>())?;
            lend(PROJECTED_ROWS, 3 * x.rows() * d_model, |all| {
                lend(MIXED_ROWS, rows * d_model, |mixed| {
                    self.input.apply(x, None, all);
                    self.convolve(all, pass, state, mixed)?;
                    self.output.apply(&Source::new(mixed, d_model), residual, y);
                    Ok(())
                })
            })
        })
    }

    /// Convolves projected rows, and advances the state.
    fn convolve(
        &self,
        all: &mut [f32],
        pass: &Pass,
        state: Option<&mut Recurrent>,
        mixed: &mut [f32],
    ) -> Result<()> {
        let d_model = self.config.d_model;
        let stride = 3 * d_model;
        multiply_columns(self.cpu, all, stride, [2 * d_model..stride, 0..d_model]);
        let earlier = state.as_ref().and_then(|state| state.tensor(0));
        let table = pass.tap_table(self.config.taps, earlier.is_some())?;
        let last;
        let sources = match pass.requested().seq == pass.seq {
            true => table.sources(),
            false => {
                last = sources_of_last(&table, pass);
                &last
            }
        };
        let columns = |first| ColumnsOf {
            rows: (&*all).into(),
            stride,
            first,
        };
        let x = columns(2 * d_model);
        let convolution = Convolution {
            width: d_model,
            weight: (&self.weight[..]).into(),
            bias: self.bias.as_ref().map(|bias| (&bias[..]).into()),
            sources,
            gate: Some(columns(d_model)),
        };
        let mut after = vec![0f32; table.after().len() * d_model];
        with_earlier(earlier, |earlier| {
            convolution.apply(self.cpu, earlier.into(), x, mixed.into());
            gather(
                d_model,
                table.after(),
                earlier.into(),
                x,
                (&mut after[..]).into(),
            );
            Ok(())
        })?;
        if let Some(state) = state {
            let dims = (pass.batch, self.config.taps - 1, d_model);
            let after = Tensor::from_vec(after, dims, &Device::Cpu)?;
            state.advance(pass.seen + pass.seq, vec![after]);
        }
        Ok(())
    }
}

/// Runs `work` with all sequences' earlier rows, or none.
fn with_earlier(earlier: Option<&Tensor>, work: impl FnOnce(&[f32]) -> Result<()>) -> Result<()> {
    match earlier {
        Some(earlier) => with_elements("short convolution", earlier, work),
        None => work(&[]),
    }
}

/// Returns the rows that the taps at each sequence's last position read.
fn sources_of_last(table: &TapTable, pass: &Pass) -> Vec<u32> {
    let taps = table.taps();
    let last = (1..=pass.batch).map(|i| (i * pass.seq - 1) * taps);
    let sources = last.map(|at| &table.sources()[at..at + taps]);
    sources.flatten().copied().collect()
}

impl PackedTogether for PackedShortConvolution {
    fn bytes(&self) -> usize {
        self.input.bytes() + self.output.bytes() + size_of_val(&self.weight[..])
    }
}

impl fmt::Debug for PackedShortConvolution {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PackedShortConvolution")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
