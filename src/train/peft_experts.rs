//! Converts adapters on experts to PEFT's form, which adapts one parameter with all experts stacked.
//!
//! PEFT reads `A` as `[n_experts, rank, d_in]` and `B` as `[d_out, rank, n_experts]`:
//! <https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/lora/layer.py>, `ParamWrapper`.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{AssumedOrientation, Checkpoint, ExpertMatrix, ExpertPart};
use crate::error::Result;

/// The adapter of one parameter.
pub(super) struct StackedAdapter {
    /// The parameter's name in the class.
    pub parameter: String,
    /// The module's name, with PEFT's suffix for a wrapped module if another parameter's wrapper is around this one.
    pub wrapper: String,
    /// The number of adapters in an expert that are merged here.
    pub n_adapted: usize,
    pub factors: [Tensor; 2],
}

/// Takes the adapters on stacked experts, with this rank, out of `adapters`.
pub(super) fn stacked(
    checkpoint: &Checkpoint,
    adapters: &mut HashMap<String, [Tensor; 2]>,
    rank: usize,
) -> Result<Vec<StackedAdapter>> {
    let mut all = checkpoint.expert_matrices()?;
    let is_adapted = |matrix: &ExpertMatrix| adapters.contains_key(layer(matrix));
    all.retain(|_, matrices| matrices.iter().any(is_adapted));
    let mut stacks = Vec::new();
    for ((module, parameter), matrices) in &all {
        let is_inner =
            *parameter == "gate_up_proj" && all.contains_key(&(module.clone(), "down_proj"));
        let (factors, n_adapted) = joined(matrices, adapters, rank)?;
        stacks.push(StackedAdapter {
            parameter: format!("{module}.{parameter}"),
            wrapper: match is_inner {
                true => format!("{module}.base_layer"),
                false => module.clone(),
            },
            n_adapted,
            factors,
        });
    }
    Ok(stacks)
}

/// Returns the role of a matrix's layer.
fn layer<'m>(matrix: &'m ExpertMatrix) -> &'m str {
    let role = matrix.source.role.as_str();
    role.strip_suffix(".weight").unwrap_or(role)
}

/// Returns all experts' factors as PEFT's two tensors, and the number of merged adapters in an expert. Factors without an
/// adapter are zero.
fn joined(
    matrices: &[ExpertMatrix],
    adapters: &mut HashMap<String, [Tensor; 2]>,
    rank: usize,
) -> Result<([Tensor; 2], usize)> {
    let is_adapted = |matrix: &&ExpertMatrix| adapters.contains_key(layer(matrix));
    let mut parts: Vec<ExpertPart> = matrices.iter().filter(is_adapted).map(|m| m.part).collect();
    parts.sort_unstable();
    parts.dedup();
    let n_experts = matrices.iter().map(|m| m.expert + 1).max().unwrap_or(0);
    let joined_rank = parts.len() * rank;
    let first = &matrices[0];
    let (d_out, d_in) = (first.outputs().1, first.source.shape[1]);
    let mut dtype = DType::F32;
    // Both with the rank of each expert in the middle.
    let mut a = vec![0f64; n_experts * joined_rank * d_in]; // [n_experts, rank, d_in]
    let mut b = vec![0f64; d_out * joined_rank * n_experts]; // [d_out, rank, n_experts]
    for matrix in matrices {
        let Some([own_a, own_b]) = adapters.remove(layer(matrix)) else {
            continue;
        };
        dtype = own_a.dtype();
        let place = parts.iter().position(|part| *part == matrix.part);
        let column = place.unwrap_or(0) * rank;
        let values = |tensor: &Tensor| -> Result<Vec<f64>> {
            let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
            Ok(tensor.flatten_all()?.to_vec1()?)
        };
        let start = (matrix.expert * joined_rank + column) * d_in;
        a[start..start + rank * d_in].copy_from_slice(&values(&own_a)?);
        let rows = matrix.outputs().0.into_iter().flatten();
        for (row, own) in rows.zip(values(&own_b)?.chunks(rank)) {
            for (r, &value) in own.iter().enumerate() {
                b[(row * joined_rank + column + r) * n_experts + matrix.expert] = value;
            }
        }
    }
    let cpu = &Device::Cpu;
    let a = Tensor::from_vec(a, (n_experts, joined_rank, d_in), cpu)?.to_dtype(dtype)?;
    let b = Tensor::from_vec(b, (d_out, joined_rank, n_experts), cpu)?.to_dtype(dtype)?;
    let width = n_experts * joined_rank;
    let factors = match first.reading {
        AssumedOrientation::AsTheyLie => [a.reshape((width, d_in))?, b.reshape((d_out, width))?],
        // The transposed product has the factors exchanged.
        AssumedOrientation::Exchanged => [
            b.permute((2, 1, 0))?
                .contiguous()?
                .reshape((width, d_out))?,
            a.permute((2, 1, 0))?.contiguous()?.reshape((d_in, width))?,
        ],
    };
    Ok((factors, parts.len()))
}
