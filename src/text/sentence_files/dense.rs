//! The configurations and weights of `Dense`, `LayerNorm` and `Normalize`.

use std::path::Path;

use candle_core::{DType, Tensor};

use super::{finished, torch_class};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{TensorFiles, floating};
use crate::config::{Activation, NormConfig};
use crate::error::{Error, Result};
use crate::layers::{Linear, Norm};
use crate::text::sentences::stages::{Feature, ModuleStep, Residual, VectorMap};

/// PyTorch's default.
const NORM_EPS: f64 = 1e-5;

/// Reads a `Dense` whose files are in `folder`.
///
/// # Errors
/// If a key, the activation or a feature is unknown, or a parameter is missing or has another shape.
pub(super) fn open(folder: &Path, json: &ConfigJson) -> Result<ModuleStep> {
    let [d_in, d_out] = [json.size(&["in_features"])?, json.size(&["out_features"])?];
    let activation = torch_class::activation(json, "activation_function")?;
    let files = TensorFiles::open(folder)?;
    let linear = |name: &str, bias: bool| -> Result<Linear> {
        let weight = parameter(&files, &format!("{name}.weight"), &[d_out, d_in])?;
        let bias = bias.then(|| parameter(&files, &format!("{name}.bias"), &[d_out]));
        Ok(Linear::from_parts(weight, bias.transpose()?)?)
    };
    let has_bias = json.flag(&["bias"], true)?;
    let has_residual = json.flag(&["use_residual"], false)?;
    for (key, is_used, name) in [
        ("bias", has_bias, "linear.bias"),
        ("use_residual", has_residual, "residual.weight"),
    ] {
        if !is_used && files.contains(name) {
            let reason = format!(
                "found false, but {} contains {name}",
                files.path().display()
            );
            return Err(json.error(&[key], reason));
        }
    }
    let residual = has_residual && d_in != d_out;
    let known = ["linear.weight", "linear.bias", "residual.weight"];
    check_known(&files, &known[..if residual { 3 } else { 2 }])?;
    let stage = VectorMap::Dense {
        linear: linear("linear", has_bias)?,
        activation: activation.unwrap_or(Activation::Tanh),
        residual: match has_residual {
            false => Residual::None,
            true if d_in == d_out => Residual::Input,
            true => Residual::Linear(linear("residual", false)?),
        },
    };
    step(json, stage)
}

/// Reads a `LayerNorm` whose files are in `folder`.
///
/// # Errors
/// If a key is unknown, or a parameter is missing or has another shape.
pub(super) fn layer_norm(folder: &Path, json: &ConfigJson) -> Result<VectorMap> {
    let width = json.size(&["dimension"])?;
    finished(json, &[])?;
    let files = TensorFiles::open(folder)?;
    check_known(&files, &["norm.weight", "norm.bias"])?;
    let parameter = |name| parameter(&files, name, &[width]);
    let (weight, bias) = (parameter("norm.weight")?, parameter("norm.bias")?);
    let config = NormConfig::layer_norm(width, NORM_EPS);
    Ok(VectorMap::LayerNorm(Norm::from_parts(
        weight,
        Some(bias),
        config,
    )?))
}

/// Reads a `Normalize`, which may have no configuration.
///
/// # Errors
/// If a key or a feature is unknown.
pub(super) fn normalize(json: Option<&ConfigJson>) -> Result<ModuleStep> {
    match json {
        Some(json) => step(json, VectorMap::Normalize),
        None => Ok(ModuleStep::of_vectors(VectorMap::Normalize)),
    }
}

/// Returns the stage with the features that the configuration names.
fn step(json: &ConfigJson, stage: VectorMap) -> Result<ModuleStep> {
    let feature = |key: &str| -> Result<Option<Feature>> {
        let Some(name) = json.text(&[key])? else {
            return Ok(None);
        };
        Feature::named(&name).map(Some).ok_or_else(|| {
            let known = Feature::ALL.map(|feature| feature.to_string()).join(", ");
            json.error(
                &[key],
                format!("{name:?} is not supported; supported are {known}"),
            )
        })
    };
    let from = feature("module_input_name")?.unwrap_or(Feature::Vectors);
    let to = feature("module_output_name")?.unwrap_or(from);
    finished(json, &[])?;
    Ok(ModuleStep { stage, from, to })
}

/// # Errors
/// If the files contain a tensor that is not known.
pub(super) fn check_known(files: &TensorFiles, known: &[&str]) -> Result<()> {
    match files.names().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(other) => Err(Error::InvalidConfig(format!(
            "{}: {other:?} is not supported, only {}",
            files.path().display(),
            known.join(" and ")
        ))),
    }
}

/// Reads a parameter with this shape, in f32.
pub(crate) fn parameter(files: &TensorFiles, name: &str, shape: &[usize]) -> Result<Tensor> {
    let tensor = floating(files.read(name)?, files.path(), name)?;
    if tensor.dims() != shape {
        return Err(Error::ShapeMismatch {
            path: files.path().to_path_buf(),
            tensor: name.to_string(),
            expected: shape.to_vec(),
            found: tensor.dims().to_vec(),
        });
    }
    Ok(tensor.to_dtype(DType::F32)?)
}
