//! Loads feed-forwards that were saved without a configuration: `W1/b1/W2/b2` and similar names, with or without a
//! norm.

mod layout;
mod names;
mod variables;

use std::path::Path;
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use candle_core::{DType, Device};

use crate::checkpoint::Parameters;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::Orientation;
use crate::config::{Activation, NormConfig, NormKind, NormPlacement};
use crate::error::{Error, Result};
use crate::layers::{FeedForward, Linear, Mlp, Norm, Sublayer, SublayerNorm};
use layout::{NormWidth, vector};
use names::{Contents, FoundNorm, WeightAndBias, find};

/// The advice for a norm that is not a part of the requested layer.
const BY_HAND: &str = "call `sublayer` with the norm's placement, load the norm first with `layer_norm` or `rms_norm` and \
     apply it yourself, or leave it out with `PlainFile::open_renamed`";

/// A safetensors file with a chain of linear layers and optionally a norm, with plain names.
///
/// Layers are numbered (`W1, b1, W2, b2`, `fc1.weight`, `lin_1.weight`, `layers.0.weight`, or as in `nn.Sequential`:
/// `0.weight`, `2.weight`). Or they are called `up` and `down` (optionally with `gate`), `c_fc` and `c_proj`, `in` and `out`
/// and the like. A norm is called `norm`, `ln`, `layer_norm`, `LayerNorm` or `rms_norm`, with `weight/bias`, `gamma/beta`
/// or `scale/shift`; the latter two pairs may also appear without the norm's name, and in an `nn.Sequential` a norm has a
/// number. Names may have any prefix, and upper and lower case do not matter. [`Self::open_renamed`] accepts all other names.
///
/// Weights are stored as `[out, in]` (PyTorch) or `[in, out]` (NumPy), biases as `[n]`, `[1, n]` or `[n, 1]`. The
/// orientation is inferred from the shapes, the norm's width, and PyTorch's names for a gated feed-forward. If both fit,
/// loading fails until [`with_orientation`](Self::with_orientation) sets it.
///
/// Every tensor in the file is used or refused. If the file has a norm, [`Self::sublayer`] applies it; [`Self::linears`],
/// [`Self::mlp`] and [`Self::feed_forward`] do not, and refuse a file with a norm that its caller has not loaded with
/// [`Self::layer_norm`] or [`Self::rms_norm`] before.
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
    /// The kind of norm, if it was set.
    norm_kind: Option<NormKind>,
    /// The norm was loaded alone, so the caller applies it.
    norm_is_loaded: AtomicBool,
    /// The variables made so far by their names on disk, when training.
    variables: Option<Mutex<Parameters>>,
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
            norm_kind: None,
            norm_is_loaded: AtomicBool::new(false),
            variables: None,
        })
    }

    /// Sets the weights' orientation.
    pub fn with_orientation(mut self, orientation: Orientation) -> Self {
        self.orientation = Some(orientation);
        self
    }

    /// Sets the norm's kind, for [`Self::sublayer`]. A file does not say whether a weight without a bias is a LayerNorm's or
    /// an RMSNorm's.
    pub fn with_norm(mut self, kind: NormKind) -> Self {
        self.norm_kind = Some(kind);
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

    /// Returns the weights' orientation, as set or as inferred from shapes and names.
    ///
    /// # Errors
    /// [`Error::AmbiguousOrientation`] if both orientations fit and none was set; [`Error::InvalidInput`] if neither fits,
    /// or if the one that was set does not.
    pub fn orientation(&self) -> Result<Orientation> {
        self.orientation_with(self.numbered_norm()?)
    }

    /// Loads the linear layers in order, each with a weight `[d_out, d_in]`.
    ///
    /// # Errors
    /// The errors of [`Self::orientation`]; also if a tensor cannot be read, or if the file has a gate, or a norm that was not
    /// loaded before.
    pub fn linears(&self, dtype: DType, device: &Device) -> Result<Vec<Linear>> {
        if let Some(gate) = &self.contents.gate {
            let reason = format!("{} is a gate; see `feed_forward`", gate.weight);
            return Err(self.error(reason));
        }
        self.check_norm_is_loaded("a chain of linear layers")?;
        let orientation = self.orientation()?;
        let layers = self.contents.layers.iter();
        layers
            .map(|layer| self.linear(layer, orientation, dtype, device))
            .collect()
    }

    fn linear(
        &self,
        layer: &WeightAndBias,
        orientation: Orientation,
        dtype: DType,
        device: &Device,
    ) -> Result<Linear> {
        let weight = self.parameter(&layer.weight, dtype, device, |weight| match orientation {
            Orientation::OutIn => Ok(weight),
            Orientation::InOut => weight.t()?.contiguous(),
        })?;
        let bias = |name: &String| self.parameter(name, dtype, device, |bias| bias.flatten_all());
        let bias = layer.bias.as_ref().map(bias).transpose()?; // [n], [1, n] or [n, 1]
        Ok(Linear::from_parts(weight, bias)?)
    }

    /// Loads all layers as a perceptron with `activation` between them; errors as for [`Self::linears`].
    pub fn mlp(&self, activation: Activation, dtype: DType, device: &Device) -> Result<Mlp> {
        Ok(Mlp::from_parts(self.linears(dtype, device)?, activation)?)
    }

    /// Loads the file's two layers, and its gate if it has one, as a feed-forward.
    ///
    /// # Errors
    /// If there are not exactly two layers, or there is a norm that was not loaded before; also the errors of
    /// [`Self::orientation`].
    pub fn feed_forward(
        &self,
        activation: Activation,
        dtype: DType,
        device: &Device,
    ) -> Result<FeedForward> {
        self.check_norm_is_loaded("a feed-forward")?;
        self.feed_forward_in(self.orientation()?, activation, dtype, device)
    }

    fn feed_forward_in(
        &self,
        orientation: Orientation,
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
        let linear = |layer: &WeightAndBias| self.linear(layer, orientation, dtype, device);
        let gate = gate.as_ref().map(linear).transpose()?;
        let (up, down) = (linear(up)?, linear(down)?);
        Ok(FeedForward::from_parts(gate, up, down, activation)?)
    }

    /// Loads the file's norm, and only the norm, as a LayerNorm.
    ///
    /// # Errors
    /// If the file has none, its shape is not that of a vector, or it is an RMSNorm by its name or by [`Self::with_norm`].
    pub fn layer_norm(&self, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        self.norm_alone(NormKind::LayerNorm, eps, dtype, device)
    }

    /// Loads the file's norm, and only the norm, as an RMSNorm; errors are those of [`Self::layer_norm`].
    pub fn rms_norm(&self, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        self.norm_alone(NormKind::RmsNorm, eps, dtype, device)
    }

    fn norm_alone(&self, kind: NormKind, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        let norm = self.norm(kind, eps, dtype, device)?;
        self.norm_is_loaded.store(true, Ordering::Relaxed);
        Ok(norm)
    }

    fn norm(&self, kind: NormKind, eps: f64, dtype: DType, device: &Device) -> Result<Norm> {
        let norm = self.found_norm()?;
        let WeightAndBias { weight, bias } = &norm.parameters;
        let named = norm.is_rms.then_some(NormKind::RmsNorm);
        if let Some(known) = self.norm_kind.or(named)
            && known != kind
        {
            let other = match kind {
                NormKind::LayerNorm => "an RMSNorm; see `rms_norm`",
                NormKind::RmsNorm => "a LayerNorm; see `layer_norm`",
            };
            return Err(self.error(format!("{weight} belongs to {other}")));
        }
        let n = self.norm_width(norm)?;
        let read = |name: &String| {
            let found = self.shape(name)?;
            if vector(&found) != Some(n) {
                return self.mismatch(name, vec![n], found);
            }
            self.parameter(name, dtype, device, |vector| vector.flatten_all())
        };
        let weight = read(weight)?;
        let bias = bias.as_ref().map(read).transpose()?;
        let config = match kind {
            NormKind::LayerNorm => NormConfig::layer_norm(n, eps),
            NormKind::RmsNorm => NormConfig::rms_norm(n, eps),
        };
        let config = config.with_bias(bias.is_some());
        Ok(Norm::from_parts(weight, bias, config)?)
    }

    /// Loads the feed-forward with its norm and a residual connection: `x + down(act(up(norm(x))))` for
    /// [`NormPlacement::Pre`]. A norm without a bias needs [`Self::with_norm`].
    ///
    /// # Errors
    /// The errors of [`Self::feed_forward`] and [`Self::layer_norm`]; also for `Sandwich`, which needs two norms, if the
    /// norm's number in an `nn.Sequential` contradicts `placement`, or if `placement` is `None` and the file has a norm that
    /// was not loaded before.
    pub fn sublayer(
        &self,
        activation: Activation,
        placement: NormPlacement,
        eps: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Sublayer<FeedForward>> {
        let n_layers = self.contents.layers.len();
        let (wrap, place): (fn(Norm) -> SublayerNorm, usize) = match placement {
            NormPlacement::Pre => (SublayerNorm::Pre, 0),
            NormPlacement::Post => (SublayerNorm::Post, n_layers),
            NormPlacement::Output => (SublayerNorm::Output, n_layers),
            NormPlacement::None => {
                let inner = self.feed_forward(activation, dtype, device)?;
                return Ok(Sublayer::new(inner, SublayerNorm::None));
            }
            NormPlacement::Sandwich => {
                let reason = "this placement has two norms, but a plain file contains one";
                return Err(Error::input("placement", reason));
            }
        };
        let found = self.found_norm()?;
        let weight = &found.parameters.weight;
        if found.place.is_some_and(|numbered| numbered != place) {
            return Err(self.error(format!(
                "{weight} is a norm{}{}, where the placement {placement:?} has none; {BY_HAND}",
                or_slopes(found),
                self.place_of(found)
            )));
        }
        let named = match found {
            _ if found.is_rms => Some(NormKind::RmsNorm),
            FoundNorm { parameters, .. } => parameters.bias.as_ref().map(|_| NormKind::LayerNorm),
        };
        let Some(kind) = self.norm_kind.or(named) else {
            return Err(self.error(format!(
                "{weight} has no bias, so it may be an RMSNorm's or a LayerNorm's weight{}; say which with \
                 `PlainFile::with_norm`",
                or_slopes(found)
            )));
        };
        let width = NormWidth {
            place,
            width: self.norm_width(found)?,
        };
        let orientation = self.orientation_with(Some(width))?;
        let norm = self.norm(kind, eps, dtype, device)?;
        let inner = self.feed_forward_in(orientation, activation, dtype, device)?;
        Ok(Sublayer::new(inner, wrap(norm)))
    }

    /// Checks that the file has no norm, or that it was loaded alone. `part` is the part that is loaded now.
    fn check_norm_is_loaded(&self, part: &str) -> Result<()> {
        match &self.contents.norm {
            Some(norm) if !self.norm_is_loaded.load(Ordering::Relaxed) => {
                let weight = &norm.parameters.weight;
                Err(self.error(format!(
                    "{weight} is a norm{}{}, and {part} does not contain it; {BY_HAND}",
                    or_slopes(norm),
                    self.place_of(norm)
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the place of a norm among the layers, for messages.
    fn place_of(&self, norm: &FoundNorm) -> String {
        let layers = &self.contents.layers;
        match norm.place {
            None => String::new(),
            Some(0) => " before the linear layers".to_string(),
            Some(place) => match (layers.get(place - 1), layers.get(place)) {
                (Some(one), Some(next)) => format!(" between {} and {}", one.weight, next.weight),
                _ => " after the linear layers".to_string(),
            },
        }
    }

    fn found_norm(&self) -> Result<&FoundNorm> {
        self.contents.norm.as_ref().ok_or_else(|| {
            self.error("contains no norm; the documentation of `PlainFile` lists its names")
        })
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

/// Returns the words for a vector that a number alone names: a PReLU has one slope or one for each feature.
fn or_slopes(norm: &FoundNorm) -> &'static str {
    match norm.is_nameless && norm.parameters.bias.is_none() {
        true => " or the slopes of a PReLU",
        false => "",
    }
}
