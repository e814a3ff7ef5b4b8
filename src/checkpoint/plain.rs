//! Feed-forwards that were saved without a configuration: `W1/b1/W2/b2` and the like.

mod names;

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::files::{TensorFiles, floating};
use crate::checkpoint::scheme::Orientation;
use crate::config::{Activation, NormConfig, NormPlacement};
use crate::device::check_dtype;
use crate::error::{Error, Result};
use crate::layers::{FeedForward, Linear, Mlp, Norm, Sublayer, SublayerNorm};
use names::{Layer, NORM_NAMES, find_layers};

/// A safetensors file with a chain of linear layers, and perhaps a norm, under plain names:
/// `W1, b1, W2, b2 ..` (or `w1 ..`), `linear1.weight ..` or `fc1.weight ..`; `norm` or `layer_norm` with `weight/bias`,
/// `scale/shift` or `gamma/beta`, or bare `scale/shift`.
///
/// Weights are stored as `[out, in]` (PyTorch) or `[in, out]` (NumPy), biases as `[n]` or `[1, n]`. The
/// orientation is inferred from the shapes; where both fit, loading fails until
/// [`with_orientation`](Self::with_orientation) states it.
///
/// ```no_run
/// use candle_blocks::{Activation, PlainFile, candle_core::{DType, Device}, checkpoint::scheme::Orientation};
/// let file = PlainFile::open("mlp.safetensors")?.with_orientation(Orientation::InOut);
/// let feed_forward = file.feed_forward(Activation::Relu, DType::F32, &Device::Cpu)?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PlainFile {
    files: TensorFiles,
    layers: Vec<Layer>,
    norm: Option<(String, Option<String>)>,
    /// The orientation of the weights, if stated.
    orientation: Option<Orientation>,
}

impl PlainFile {
    /// Opens a file and finds its layers by their names.
    ///
    /// # Errors
    /// If the file cannot be read, contains no layer under a known name, lacks the biases of only some layers, or
    /// contains other tensors as well.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let files = TensorFiles::open(path.as_ref())?;
        let norm = NORM_NAMES.iter().find(|(weight, _)| files.contains(weight));
        let norm = norm.map(|(weight, bias)| {
            (
                weight.to_string(),
                files.contains(bias).then(|| bias.to_string()),
            )
        });
        let layers = find_layers(&files)?;
        let known = |name: &str| {
            let in_layer = |l: &Layer| l.weight == name || l.bias.as_deref() == Some(name);
            let in_norm =
                |(w, b): &(String, Option<String>)| w == name || b.as_deref() == Some(name);
            layers.iter().any(in_layer) || norm.as_ref().is_some_and(in_norm)
        };
        let unused: Vec<String> = files
            .names()
            .filter(|name| !known(name))
            .map(|name| name.to_string())
            .collect();
        if !unused.is_empty() {
            return Err(Error::UnusedTensors {
                path: files.path().to_path_buf(),
                family: "a plain feed-forward file".to_string(),
                names: unused,
            });
        }
        Ok(Self {
            files,
            layers,
            norm,
            orientation: None,
        })
    }

    /// States the orientation of the weights.
    pub fn with_orientation(mut self, orientation: Orientation) -> Self {
        self.orientation = Some(orientation);
        self
    }

    /// The tensors of the file, by name.
    pub fn files(&self) -> &TensorFiles {
        &self.files
    }

    /// The number of linear layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// The orientation of the weights, as stated or as inferred from the shapes.
    ///
    /// # Errors
    /// [`Error::AmbiguousOrientation`] if both orientations fit and none was stated;
    /// [`Error::ShapeMismatch`] if neither fits, or not the one that was stated.
    pub fn orientation(&self) -> Result<Orientation> {
        if let Some(orientation) = self.orientation {
            return self.check(orientation).map(|()| orientation);
        }
        let both = [Orientation::OutIn, Orientation::InOut];
        match both.map(|orientation| self.check(orientation)) {
            [Ok(()), Err(_)] => Ok(Orientation::OutIn),
            [Err(_), Ok(())] => Ok(Orientation::InOut),
            [Err(error), Err(_)] => Err(error),
            [Ok(()), Ok(())] => {
                let tensor = self.layers[0].weight.clone();
                Err(Error::AmbiguousOrientation {
                    path: self.files.path().to_path_buf(),
                    shape: self.shape(&tensor)?,
                    tensor,
                })
            }
        }
    }

    /// Loads the linear layers in order, each with a weight `[d_out, d_in]`.
    ///
    /// # Errors
    /// As for [`Self::orientation`], or if a tensor cannot be read.
    pub fn linears(&self, dtype: DType, device: &Device) -> Result<Vec<Linear>> {
        let orientation = self.orientation()?;
        let read = |name: &str| self.read(name, dtype, device);
        let linear = |layer: &Layer| -> Result<Linear> {
            let weight = read(&layer.weight)?;
            let weight = match orientation {
                Orientation::OutIn => weight,
                Orientation::InOut => weight.t()?.contiguous()?,
            };
            let bias = layer.bias.as_deref().map(read).transpose()?; // [n] or [1, n]
            let bias = bias.map(|bias| bias.flatten_all()).transpose()?;
            Ok(Linear::from_parts(weight, bias)?)
        };
        self.layers.iter().map(linear).collect()
    }

    /// Loads all layers as a perceptron with `activation` between them; errors as for [`Self::linears`].
    pub fn mlp(&self, activation: Activation, dtype: DType, device: &Device) -> Result<Mlp> {
        Ok(Mlp::from_parts(self.linears(dtype, device)?, activation)?)
    }

    /// Loads the two layers of the file as a feed-forward.
    ///
    /// # Errors
    /// If there are not exactly two layers, or as for [`Self::linears`].
    pub fn feed_forward(
        &self,
        activation: Activation,
        dtype: DType,
        device: &Device,
    ) -> Result<FeedForward> {
        let linears = self.linears(dtype, device)?;
        let found = linears.len();
        let [up, down] = <[Linear; 2]>::try_from(linears).map_err(|_| {
            let reason = format!("holds {found} linear layers, a feed-forward has 2; see `mlp`");
            Error::input(self.files.path().display().to_string(), reason)
        })?;
        Ok(FeedForward::from_parts(None, up, down, activation)?)
    }

    /// Loads the norm of the file as a LayerNorm.
    ///
    /// # Errors
    /// If the file has none, or its shape is not `[n]`.
    pub fn layer_norm(&self, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        let (weight, bias) = self.norm.as_ref().ok_or_else(|| Error::MissingTensor {
            path: self.files.path().to_path_buf(),
            role: "norm.weight".to_string(),
            tried: NORM_NAMES
                .iter()
                .map(|(weight, _)| weight.to_string())
                .collect(),
            similar: vec![],
        })?;
        let n = self.shape(weight)?.last().copied().unwrap_or(1);
        let read = |name: &String| -> Result<Tensor> {
            let found = self.shape(name)?;
            if found != [n] && found != [1, n] {
                return self.mismatch(name, vec![n], found);
            }
            Ok(self.read(name, dtype, device)?.flatten_all()?)
        };
        let weight = read(weight)?;
        let bias = bias.as_ref().map(read).transpose()?;
        let config = NormConfig::layer_norm(weight.elem_count(), eps).with_bias(bias.is_some());
        Ok(Norm::from_parts(weight, bias, config)?)
    }

    /// Loads the feed-forward with its norm and a residual connection: `x + down(act(up(norm(x))))` for
    /// [`NormPlacement::Pre`].
    ///
    /// # Errors
    /// As for [`Self::feed_forward`] and [`Self::layer_norm`]; also for a sandwich, which needs two norms.
    pub fn sublayer(
        &self,
        activation: Activation,
        placement: NormPlacement,
        eps: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Sublayer<FeedForward>> {
        let norm = || self.layer_norm(eps, dtype, device);
        let norm = match placement {
            NormPlacement::Pre => SublayerNorm::Pre(norm()?),
            NormPlacement::Post => SublayerNorm::Post(norm()?),
            NormPlacement::None => SublayerNorm::None,
            NormPlacement::Output => SublayerNorm::Output(norm()?),
            NormPlacement::Sandwich => {
                let reason = "a sandwich has two norms, a plain file holds one";
                return Err(Error::input("placement", reason));
            }
        };
        let inner = self.feed_forward(activation, dtype, device)?;
        Ok(Sublayer::from_parts(inner, norm)?)
    }

    /// Whether every layer's shapes fit this orientation: bias to weight, and layer to layer.
    fn check(&self, orientation: Orientation) -> Result<()> {
        let mut width = None; // of the previous layer's output
        for Layer { weight, bias } in &self.layers {
            let shape = self.shape(weight)?;
            let [rows, columns] = shape[..] else {
                let tensor = format!("{}: tensor {weight}", self.files.path().display());
                let reason = format!("has shape {shape:?}, expected a matrix");
                return Err(Error::input(tensor, reason));
            };
            let (d_out, d_in) = match orientation {
                Orientation::OutIn => (rows, columns),
                Orientation::InOut => (columns, rows),
            };
            if let Some(width) = width
                && width != d_in
            {
                let expected = match orientation {
                    Orientation::OutIn => vec![rows, width],
                    Orientation::InOut => vec![width, columns],
                };
                return self.mismatch(weight, expected, shape);
            }
            if let Some(bias) = bias {
                let found = self.shape(bias)?;
                if found != [d_out] && found != [1, d_out] {
                    return self.mismatch(bias, vec![d_out], found);
                }
            }
            width = Some(d_out);
        }
        Ok(())
    }

    fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        check_dtype(dtype, device)?;
        let tensor = floating(self.files.read(name)?, self.files.path(), name)?;
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }

    fn mismatch<T>(&self, tensor: &str, expected: Vec<usize>, found: Vec<usize>) -> Result<T> {
        Err(Error::ShapeMismatch {
            path: self.files.path().to_path_buf(),
            tensor: tensor.to_string(),
            expected,
            found,
        })
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.files.find(name)?.shape.clone())
    }
}
