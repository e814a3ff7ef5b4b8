//! Loads feed-forwards that were saved without a configuration: `W1/b1/W2/b2` and similar names, with or without a
//! LayerNorm.

mod names;

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::files::{TensorFiles, floating};
use crate::checkpoint::scheme::Orientation;
use crate::config::{Activation, NormConfig, NormPlacement};
use crate::device::check_dtype;
use crate::error::{Error, Result};
use crate::layers::{FeedForward, Linear, Mlp, Norm, Sublayer, SublayerNorm};
use names::{Contents, WeightAndBias, find};

/// A safetensors file with a chain of linear layers and optionally a LayerNorm, with plain names.
///
/// Layers are numbered (`W1, b1, W2, b2`, `fc1.weight`, `lin_1.weight`, `layers.0.weight`, or as in `nn.Sequential`:
/// `0.weight`, `2.weight`). Or they are called `up` and `down` (optionally with `gate`), `c_fc` and `c_proj`, `in` and `out`
/// and the like. A norm is called `norm`, `ln`, `layer_norm` or `LayerNorm`, with `weight/bias`, `gamma/beta` or
/// `scale/shift`; the latter two pairs may also appear without the norm's name. Names may have any prefix, and upper and
/// lower case do not matter. [`Self::open_renamed`] accepts all other names.
///
/// Weights are stored as `[out, in]` (PyTorch) or `[in, out]` (NumPy), biases as `[n]`, `[1, n]` or `[n, 1]`. The
/// orientation is inferred from the shapes. If both fit, loading fails until [`with_orientation`](Self::with_orientation)
/// sets it.
///
/// ```
/// use candle_blocks::{Activation, PlainFile, candle_core::{DType, Device, Module, Tensor}};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("mlp.safetensors");
/// # let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
/// # let all = [("W1", ones(&[8, 4])), ("b1", ones(&[8])), ("W2", ones(&[4, 8])), ("b2", ones(&[4]))];
/// # let all = all.into_iter().chain([("ln.weight", ones(&[4])), ("ln.bias", ones(&[4]))]);
/// # let all: Vec<(String, Tensor)> = all.map(|(name, tensor)| (name.to_string(), tensor)).collect();
/// # candle_blocks::checkpoint::write::write_safetensors(&path, &all, None)?;
/// let file = PlainFile::open(path)?; // a file with W1, b1, W2, b2, ln.weight and ln.bias
/// let norm = file.layer_norm(1e-5, DType::F32, &Device::Cpu)?;
/// let feed_forward = file.feed_forward(Activation::Relu, DType::F32, &Device::Cpu)?;
/// let x = Tensor::new(&[[1f32, 2., 3., 4.]], &Device::Cpu)?;
/// let y = (&x + feed_forward.forward(&norm.forward(&x)?)?)?;
/// assert_eq!(y.dims(), [1, 4]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PlainFile {
    files: TensorFiles,
    contents: Contents,
    /// The weights' orientation, if it was set.
    orientation: Option<Orientation>,
}

impl PlainFile {
    /// Opens a file and finds its layers by their names.
    ///
    /// # Errors
    /// If the file cannot be read, has neither a layer nor a norm with a known name, lacks some but not all biases, or
    /// contains other tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_renamed(path, |name| Some(name.to_string()))
    }

    /// Like [`Self::open`], but finds each tensor by the name that `rename` returns for it. Tensors for which it returns
    /// `None` are left out.
    ///
    /// ```no_run
    /// use candle_blocks::PlainFile;
    /// use std::collections::HashMap;
    /// let names = HashMap::from([("expand.kern", "up.weight"), ("shrink.kern", "down.weight")]);
    /// let file = PlainFile::open_renamed("mlp.safetensors", |name| names.get(name).map(|name| name.to_string()))?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn open_renamed(
        path: impl AsRef<Path>,
        rename: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let files = TensorFiles::open(path.as_ref())?;
        Ok(Self {
            contents: find(&files, rename)?,
            files,
            orientation: None,
        })
    }

    /// Sets the weights' orientation.
    pub fn with_orientation(mut self, orientation: Orientation) -> Self {
        self.orientation = Some(orientation);
        self
    }

    /// Returns the file's tensors, by name.
    pub fn files(&self) -> &TensorFiles {
        &self.files
    }

    /// Returns the number of linear layers, without a gate.
    pub fn n_layers(&self) -> usize {
        self.contents.layers.len()
    }

    /// Returns the weights' orientation, as set or as inferred from the shapes.
    ///
    /// # Errors
    /// [`Error::AmbiguousOrientation`] if both orientations fit and none was set; [`Error::InvalidInput`] if neither fits,
    /// or if the one that was set does not.
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
                let Some(layer) = self.contents.layers.first() else {
                    return Ok(Orientation::OutIn);
                };
                Err(Error::AmbiguousOrientation {
                    path: self.files.path().to_path_buf(),
                    shape: self.shape(&layer.weight)?,
                    tensor: layer.weight.clone(),
                })
            }
        }
    }

    /// Loads the linear layers in order, each with a weight `[d_out, d_in]`.
    ///
    /// # Errors
    /// The errors of [`Self::orientation`]; also if a tensor cannot be read, or if the file has a gate.
    pub fn linears(&self, dtype: DType, device: &Device) -> Result<Vec<Linear>> {
        if let Some(gate) = &self.contents.gate {
            let reason = format!("{} is a gate; see `feed_forward`", gate.weight);
            return Err(self.error(reason));
        }
        let layers = self.contents.layers.iter();
        layers
            .map(|layer| self.linear(layer, dtype, device))
            .collect()
    }

    fn linear(&self, layer: &WeightAndBias, dtype: DType, device: &Device) -> Result<Linear> {
        let read = |name: &str| self.read(name, dtype, device);
        let orientation = self.orientation()?;
        let weight = read(&layer.weight)?;
        let weight = match orientation {
            Orientation::OutIn => weight,
            Orientation::InOut => weight.t()?.contiguous()?,
        };
        let bias = layer.bias.as_deref().map(read).transpose()?; // [n], [1, n] or [n, 1]
        let bias = bias.map(|bias| bias.flatten_all()).transpose()?;
        Ok(Linear::from_parts(weight, bias)?)
    }

    /// Loads all layers as a perceptron with `activation` between them; errors as for [`Self::linears`].
    pub fn mlp(&self, activation: Activation, dtype: DType, device: &Device) -> Result<Mlp> {
        Ok(Mlp::from_parts(self.linears(dtype, device)?, activation)?)
    }

    /// Loads the file's two layers, and its gate if it has one, as a feed-forward.
    ///
    /// # Errors
    /// If there are not exactly two layers; also the errors of [`Self::orientation`].
    pub fn feed_forward(
        &self,
        activation: Activation,
        dtype: DType,
        device: &Device,
    ) -> Result<FeedForward> {
        let Contents { layers, gate, .. } = &self.contents;
        let [up, down] = &layers[..] else {
            let found = layers.len();
            return Err(self.error(format!(
                "contains {found} linear layers, but a feed-forward has 2; see `mlp`, or rename \
                 three layers to gate, up and down with `PlainFile::open_renamed`"
            )));
        };
        let linear = |layer: &WeightAndBias| self.linear(layer, dtype, device);
        let gate = gate.as_ref().map(linear).transpose()?;
        let (up, down) = (linear(up)?, linear(down)?);
        Ok(FeedForward::from_parts(gate, up, down, activation)?)
    }

    /// Loads the file's norm as a LayerNorm.
    ///
    /// # Errors
    /// If the file has none, or its shape is not that of a vector.
    pub fn layer_norm(&self, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        let Some(WeightAndBias { weight, bias }) = &self.contents.norm else {
            let reason = "contains no norm; the documentation of `PlainFile` lists its names";
            return Err(self.error(reason));
        };
        let shape = self.shape(weight)?;
        let n = vector(&shape).or(shape.last().copied()).unwrap_or(1);
        let read = |name: &String| -> Result<Tensor> {
            let found = self.shape(name)?;
            if vector(&found) != Some(n) {
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
    /// The errors of [`Self::feed_forward`] and [`Self::layer_norm`]; also for `Sandwich`, which needs two norms.
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
            NormPlacement::Sandwich | NormPlacement::PostTwice => {
                let reason = "this placement has two norms, but a plain file contains one";
                return Err(Error::input("placement", reason));
            }
        };
        let inner = self.feed_forward(activation, dtype, device)?;
        Ok(Sublayer::new(inner, norm))
    }

    /// Returns whether all shapes fit this orientation: each bias its weight, and each layer the next.
    fn check(&self, orientation: Orientation) -> Result<()> {
        let mut width = None; // the previous layer's output width
        for WeightAndBias { weight, bias } in &self.contents.layers {
            let shape = self.shape(weight)?;
            let [rows, columns] = shape[..] else {
                let reason = format!("tensor {weight} has shape {shape:?}, expected a matrix");
                return Err(self.error(reason));
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
            self.check_bias(bias.as_ref(), d_out)?;
            width = Some(d_out);
        }
        // The gate has the same shape as the layer beside it.
        if let (Some(gate), Some(up)) = (&self.contents.gate, self.contents.layers.first()) {
            let (found, expected) = (self.shape(&gate.weight)?, self.shape(&up.weight)?);
            if found != expected {
                return self.mismatch(&gate.weight, expected, found);
            }
            let d_out = match orientation {
                Orientation::OutIn => expected[0],
                Orientation::InOut => expected[1],
            };
            self.check_bias(gate.bias.as_ref(), d_out)?;
        }
        Ok(())
    }

    fn check_bias(&self, bias: Option<&String>, d_out: usize) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        let found = self.shape(bias)?;
        match vector(&found) == Some(d_out) {
            true => Ok(()),
            false => self.mismatch(bias, vec![d_out], found),
        }
    }

    fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        check_dtype(dtype, device)?;
        let tensor = floating(self.files.read(name)?, self.files.path(), name)?;
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }

    /// Makes an error about the file.
    fn error(&self, reason: impl Into<String>) -> Error {
        Error::input(self.files.path().display().to_string(), reason)
    }

    fn mismatch<T>(&self, tensor: &str, expected: Vec<usize>, found: Vec<usize>) -> Result<T> {
        Err(self.error(format!(
            "tensor {tensor} has shape {found:?}, expected {expected:?}"
        )))
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.files.find(name)?.shape.clone())
    }
}

/// Returns the length of a vector, which may be stored as a row or a column.
fn vector(shape: &[usize]) -> Option<usize> {
    match *shape {
        [n] | [1, n] | [n, 1] => Some(n),
        _ => None,
    }
}
