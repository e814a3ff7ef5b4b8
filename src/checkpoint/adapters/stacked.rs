//! PEFT's adapter for a parameter that stacks all experts' matrices: `ParamWrapper` in
//! <https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/lora/layer.py>.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::experts::AssumedOrientation;
use super::product_layout::ProductLayout;
use crate::checkpoint::files::{StoredTensor, TensorFiles};
use crate::error::Result;

/// The factors of such an adapter. `A` has the rows of each expert after those of the previous one. `B` has, for each index of
/// the rank, one column for every expert.
#[derive(Clone, Debug)]
pub(super) struct ExpertFactors {
    pub a: StoredTensor, // [n_experts · rank, d_in]
    pub b: StoredTensor, // [d_out, rank · n_experts]
    pub n_experts: usize,
    pub rank: usize,
    pub scale: f64,
    pub reading: AssumedOrientation,
}

impl ExpertFactors {
    /// Checks that the factors have the shapes for matrices of `[d_out, d_in]`.
    ///
    /// # Errors
    /// If a shape differs.
    pub fn check(&self, d_out: usize, d_in: usize, parameter: &str) -> Result<()> {
        let width = self.n_experts * self.rank;
        let (rows, columns) = match self.reading {
            AssumedOrientation::AsTheyLie => (d_out, d_in),
            AssumedOrientation::Exchanged => (d_in, d_out),
        };
        let (a, b) = (&self.a.info.shape, &self.b.info.shape);
        if *a == [width, columns] && *b == [rows, width] {
            return Ok(());
        }
        Err(self.a.error(format!(
            "it has shape {a:?} and its B {b:?}, expected {:?} and {:?} for rank {} of the {} \
             experts in {parameter}; use the adapter's own base model",
            [width, columns],
            [rows, width],
            self.rank,
            self.n_experts
        )))
    }

    /// Returns some outputs of an expert's scaled product, `[outputs, d_in]`.
    fn product(&self, files: &TensorFiles, expert: usize, outputs: Range<usize>) -> Result<Tensor> {
        let (rank, n_outputs) = (self.rank, outputs.len());
        let a = files.part_rows(&self.a, expert * rank..(expert + 1) * rank)?;
        let a = Tensor::from_vec(a, (rank, self.a.info.shape[1]), &Device::Cpu)?;
        let rows = match self.reading {
            AssumedOrientation::AsTheyLie => outputs.clone(),
            AssumedOrientation::Exchanged => 0..self.b.info.shape[0],
        };
        let shape = (rows.len(), rank, self.n_experts);
        let b = Tensor::from_vec(files.part_rows(&self.b, rows)?, shape, &Device::Cpu)?;
        let b = b.narrow(2, expert, 1)?.squeeze(2)?.contiguous()?; // [rows, rank]
        let product = match self.reading {
            AssumedOrientation::AsTheyLie => b.matmul(&a)?,
            AssumedOrientation::Exchanged => {
                let a = a.narrow(1, outputs.start, n_outputs)?.t()?.contiguous()?;
                a.matmul(&b.t()?.contiguous()?)?
            }
        };
        Ok((product * self.scale)?)
    }

    /// Returns rows of one expert's product, for the matrix that begins at this output.
    pub fn rows_of_one(
        &self,
        files: &TensorFiles,
        expert: usize,
        first_output: usize,
        rows: Range<usize>,
    ) -> Result<Vec<f32>> {
        let outputs = first_output + rows.start..first_output + rows.end;
        Ok(self
            .product(files, expert, outputs)?
            .flatten_all()?
            .to_vec1()?)
    }

    /// Returns the products for a range of experts, concatenated in the parameter's orientation.
    pub fn of_all(
        &self,
        files: &TensorFiles,
        experts: Range<usize>,
        layout: ProductLayout,
    ) -> Result<Vec<f32>> {
        let n_outputs = match self.reading {
            AssumedOrientation::AsTheyLie => self.b.info.shape[0],
            AssumedOrientation::Exchanged => self.a.info.shape[1],
        };
        let mut all = Vec::new();
        for expert in experts {
            let product = self.product(files, expert, 0..n_outputs)?;
            let product = match layout {
                ProductLayout::OutIn => product,
                ProductLayout::InOut => product.t()?,
            };
            all.extend(product.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(all)
    }
}
