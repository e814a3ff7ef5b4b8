//! Reads the heads that FlagEmbedding saves beside BGE-M3's weights.

use std::path::Path;

use super::{PoolingBody, dense};
use crate::checkpoint::files::TensorFiles;
use crate::config::Activation;
use crate::error::{Error, Result};
use crate::layers::Linear;
use crate::text::Pooling;
use crate::text::sentences::stages::{Residual, VectorMap};

/// Reads the head of a kind in [`Pooling::OF_HEADS`]
/// (<https://github.com/FlagOpen/FlagEmbedding/blob/v1.3.4/FlagEmbedding/finetune/embedder/encoder_only/m3/modeling.py>).
///
/// # Errors
/// If the file is missing or malformed, or has another tensor.
pub(in crate::text) fn open(directory: &Path, pooling: Pooling) -> Result<PoolingBody> {
    let (name, activation, last) = match pooling {
        Pooling::Lexical => ("sparse_linear.pt", Activation::Relu, None),
        _ => (
            "colbert_linear.pt",
            Activation::Identity,
            Some(VectorMap::Normalize),
        ),
    };
    let path = directory.join(name);
    if !path.exists() {
        return Err(Error::InvalidConfig(format!(
            "{}: missing, which the pooling {pooling} reads; copy it from the model's repository, as BAAI/bge-m3 has it, or name \
             another pooling",
            path.display()
        )));
    }
    let files = TensorFiles::open(&path)?;
    dense::check_known(&files, &["weight", "bias"])?;
    let shape = files.info("weight").map(|weight| weight.shape.clone());
    let d_in = shape
        .as_ref()
        .and_then(|shape| shape.last())
        .copied()
        .unwrap_or(0);
    let d_out = match (pooling, &shape) {
        (Pooling::Lexical, _) | (_, None) => 1,
        (_, Some(shape)) => shape[0],
    };
    let weight = dense::parameter(&files, "weight", &[d_out, d_in])?;
    let bias = dense::parameter(&files, "bias", &[d_out])?;
    let linear = VectorMap::Dense {
        linear: Linear::from_parts(weight, Some(bias))?,
        activation,
        residual: Residual::None,
    };
    Ok(PoolingBody {
        of_tokens: [linear].into_iter().chain(last).collect(),
        poolings: vec![pooling],
        n_first: 1,
        ..PoolingBody::default()
    })
}
