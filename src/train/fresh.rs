//! Fresh parameters, initialized from a seed.

use std::collections::HashMap;
use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use chacha20::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use crate::checkpoint::{Loader, Parameters};
use crate::config::{Distribution, Initialization, StackConfig};
use crate::device::{check_dtype, is_one};
use crate::error::Error;
use crate::layers::{Stack, torch_bound};
use crate::ops::store;

/// The longest wavelength in a sinusoidal table, divided by 2π.
const MAX_TIMESCALE: f64 = 10_000.0;

/// Creates fresh parameters, as variables, for the layers that request them.
///
/// Each parameter has its own random stream, determined by the seed and the role: the same seed gives the same values for
/// any order, device and number of threads, and a new block does not change the others.
///
/// ```
/// use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, config::Initialization};
/// use candle_blocks::{NormPlacement, StackConfig, train::Fresh};
/// use candle_core::{DType, Device};
/// let norm = NormConfig::layer_norm(8, 1e-5);
/// let (attention, feed_forward) = (AttentionConfig::new(8, 2)?.causal(), FeedForwardConfig::new(8));
/// let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
/// let config = StackConfig::uniform(block, 3, Some(norm));
/// let fresh = Fresh::new(Initialization::gpt2(0.02, 3), 42, DType::F32, &Device::Cpu);
/// let stack = fresh.stack(&config)?;
/// assert_eq!(stack.blocks().len(), 3);
/// assert_eq!(fresh.parameters().len(), 3 * 16 + 2);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fresh {
    initialization: Initialization,
    seed: u64,
    dtype: DType,
    device: Device,
    made: Arc<Mutex<FreshParameters>>,
}

#[derive(Debug, Default)]
struct FreshParameters {
    parameters: Parameters,
    /// `d_in` for each linear layer made so far, by role, since a bias does not show it.
    inputs: HashMap<String, usize>,
}

impl Fresh {
    /// Makes a source for parameters with the given dtype on the given device. Values are computed in f64 and rounded once.
    pub fn new(initialization: Initialization, seed: u64, dtype: DType, device: &Device) -> Self {
        Self {
            initialization,
            seed,
            dtype,
            device: device.clone(),
            made: Arc::default(),
        }
    }

    /// Returns a `VarBuilder` for any layer. A repeated name returns the same variable.
    pub fn var_builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), self.dtype, self.device.clone())
    }

    /// Makes a stack with the given configuration.
    ///
    /// # Errors
    /// If the configuration is invalid, or [`check_dtype`] refuses the type on the device.
    pub fn stack(&self, config: &StackConfig) -> crate::error::Result<Stack> {
        config.validate()?;
        Ok(Stack::new(config, self.var_builder())?)
    }

    /// Returns the variables created so far with their roles, in the order in which layers requested them.
    pub fn parameters(&self) -> Parameters {
        self.made().parameters.clone()
    }

    /// Copies a checkpoint's values into the variables created so far, and returns the roles of the variables that the
    /// checkpoint lacks, which stay as they are. [`NewHead`](crate::model::NewHead) puts a new head on pretrained blocks so.
    ///
    /// # Errors
    /// If a parameter has another shape in the checkpoint, or the checkpoint has none of the variables.
    pub fn copy_from(&self, loader: &Loader) -> crate::error::Result<Vec<String>> {
        self.copy_but(loader, |_| false)
    }

    /// Copies a checkpoint's values like [`Self::copy_from`], but for the roles that stay fresh.
    ///
    /// # Errors
    /// The errors of [`Self::copy_from`].
    pub(crate) fn copy_but(
        &self,
        loader: &Loader,
        stays: impl Fn(&str) -> bool,
    ) -> crate::error::Result<Vec<String>> {
        let (source, parameters) = (loader.var_builder(), self.parameters());
        let (mut copied, mut lacking) = (Vec::new(), Vec::new());
        for (role, variable) in parameters.iter() {
            if stays(role) || !source.contains_tensor(role) {
                lacking.push(role.clone());
                continue;
            }
            let (shape, dtype) = (variable.shape(), variable.dtype());
            let stored = source.get_with_hints_dtype(shape, role, Init::default(), dtype)?;
            copied.push((variable, stored.to_device(variable.device())?));
        }
        if copied.is_empty() {
            return Err(Error::InvalidConfig(format!(
                "{} has none of the {} variables created so far; create the layers first, and copy from a checkpoint \
                 with the same blocks",
                loader.path().display(),
                parameters.len()
            )));
        }
        for (variable, stored) in &copied {
            store(variable, stored)?;
        }
        Ok(lacking)
    }

    /// Returns the tensor for a layer; gradients reach the variable through it.
    fn handed_out(&self, role: &str, variable: &Var) -> Tensor {
        match self.initialization.is_trained(role) {
            true => variable.as_tensor().clone(),
            false => variable.as_detached_tensor(),
        }
    }

    fn made(&self) -> MutexGuard<'_, FreshParameters> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimpleBackend for Fresh {
    fn get(
        &self,
        shape: Shape,
        role: &str,
        hint: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        check_dtype(dtype, device)?;
        let mut made = self.made();
        if let Some(known) = made.parameters.find(role) {
            if known.shape() != &shape {
                let known = known.dims();
                bail!("{role} is requested with shape {shape:?}, but was made with {known:?}");
            }
            // A converted copy would not move with the variable.
            if known.dtype() != dtype || !is_one(known.device(), device) {
                let known = known.dtype();
                bail!(
                    "{role} is requested as {dtype:?}, but was made as {known:?}; a shared \
                     parameter has one dtype and device"
                );
            }
            return Ok(self.handed_out(role, known));
        }
        let (stem, _) = role.rsplit_once('.').unwrap_or(("", role));
        if let [_, d_in] = *shape.dims() {
            made.inputs.insert(stem.to_string(), d_in);
        }
        let (mut draw, mut mean) = (self.initialization.distribution(role), 0.0);
        match draw {
            Distribution::Layer => (draw, mean) = hinted(hint, &shape),
            Distribution::TorchLinear => match made.inputs.get(stem) {
                Some(&d_in) => {
                    draw = Distribution::Uniform {
                        bound: torch_bound(d_in),
                    }
                }
                None => bail!(
                    "{role} cannot be initialized like a linear layer: it has no weight [d_out, d_in]"
                ),
            },
            Distribution::TruncatedNormal { deviation, cut }
                if cut.is_nan() || cut < deviation / 100.0 =>
            {
                bail!(
                    "{role}: a normal distribution with standard deviation {deviation} has almost \
                     no values within ±{cut}"
                )
            }
            _ => {}
        }
        if shape.elem_count() > 0 && !is_distribution(draw) {
            bail!("{role}: {draw:?}, expected a finite number that is not negative");
        }
        let mut stream = ChaCha12Rng::seed_from_u64(self.seed ^ digest(role));
        let mut values: Vec<f64> = match draw {
            Distribution::LogOfCount => {
                let width = shape.dims().last().map_or(1, |&width| width.max(1));
                let counted = (0..shape.elem_count()).map(|i| i % width + 1);
                counted.map(|count| (count as f64).ln()).collect()
            }
            Distribution::Sinusoids => sinusoids(role, &shape)?,
            Distribution::PatchSinusoids => patch_sinusoids(role, &shape)?,
            _ => (0..shape.elem_count())
                .map(|_| mean + sample(draw, &mut stream))
                .collect(),
        };
        for row in self.initialization.zero_rows(role) {
            let n_rows = shape.dims().first().map_or(1, |&n_rows| n_rows.max(1));
            let width = values.len() / n_rows;
            let Some(row) = values.chunks_exact_mut(width.max(1)).nth(row) else {
                bail!("{role} has no row {row}, which should be 0: its shape is {shape:?}");
            };
            row.fill(0.0);
        }
        let values = Tensor::from_vec(values, shape, &Device::Cpu)?;
        let variable = Var::from_tensor(&values.to_dtype(dtype)?.to_device(device)?)?;
        let tensor = self.handed_out(role, &variable);
        made.parameters.push(role.to_string(), variable);
        Ok(tensor)
    }

    fn get_unchecked(&self, role: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{role}: a new parameter needs a shape")
    }

    fn contains_tensor(&self, role: &str) -> bool {
        self.made().parameters.find(role).is_some()
    }
}

/// Checks the distribution's parameters; with NaN, no value would ever lie within the bounds.
fn is_distribution(draw: Distribution) -> bool {
    match draw {
        Distribution::Normal { deviation: width }
        | Distribution::TruncatedNormal {
            deviation: width, ..
        }
        | Distribution::Uniform { bound: width } => width.is_finite() && width >= 0.0,
        Distribution::LogOfUniform { low, high } => 0.0 <= low && low < high && high.is_finite(),
        Distribution::BeforeSoftplus { low, high, floor } => {
            0.0 < low && low <= high && 0.0 < floor && high.is_finite() && floor.is_finite()
        }
        Distribution::BeforeDecay { low, high } => 0.0 < low && low <= high && high < 1.0,
        Distribution::Constant(_)
        | Distribution::Layer
        | Distribution::TorchLinear
        | Distribution::LogOfCount
        | Distribution::Sinusoids
        | Distribution::PatchSinusoids => true,
    }
}

/// Returns the distribution for a layer's candle `Init` hint, with its mean.
fn hinted(hint: Init, shape: &Shape) -> (Distribution, f64) {
    let draw = match hint {
        Init::Const(value) => Distribution::Constant(value),
        Init::Randn { mean, stdev } => return (Distribution::Normal { deviation: stdev }, mean),
        Init::Uniform { lo, up } => {
            let bound = (up - lo) / 2.0;
            return (Distribution::Uniform { bound }, lo + bound);
        }
        Init::Kaiming {
            dist,
            fan,
            non_linearity,
        } => {
            let deviation = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                candle_nn::init::NormalOrUniform::Normal => Distribution::Normal { deviation },
                candle_nn::init::NormalOrUniform::Uniform => Distribution::Uniform {
                    bound: 3f64.sqrt() * deviation,
                },
            }
        }
    };
    (draw, 0.0)
}

/// Samples one value from a distribution.
fn sample(draw: Distribution, stream: &mut ChaCha12Rng) -> f64 {
    match draw {
        Distribution::Constant(value) => value,
        Distribution::Normal { deviation } => deviation * normal(stream),
        Distribution::Uniform { bound } => bound * (2.0 * stream.random::<f64>() - 1.0),
        // 1 minus a number below 1 is not 0, whose logarithm is not finite.
        Distribution::LogOfUniform { low, high } => {
            (low + (high - low) * (1.0 - stream.random::<f64>())).ln()
        }
        Distribution::BeforeSoftplus { low, high, floor } => {
            let logarithm = low.ln() + (high.ln() - low.ln()) * stream.random::<f64>();
            before_softplus(logarithm.exp().max(floor))
        }
        Distribution::BeforeDecay { low, high } => {
            let square = low * low + (high * high - low * low) * stream.random::<f64>();
            before_softplus(-0.5 * square.ln())
        }
        Distribution::TruncatedNormal { deviation, cut } => loop {
            let value = deviation * normal(stream);
            if value.abs() <= cut {
                return value;
            }
        },
        Distribution::Layer
        | Distribution::TorchLinear
        | Distribution::LogOfCount
        | Distribution::Sinusoids
        | Distribution::PatchSinusoids => {
            unreachable!("resolved into one of the others")
        }
    }
}

/// Returns the number whose softplus is `step`.
fn before_softplus(step: f64) -> f64 {
    step + (-(-step).exp_m1()).ln()
}

/// Returns a table of positions, each with sines first and cosines second (`sinusoids` in transformers' Whisper).
fn sinusoids(role: &str, shape: &Shape) -> Result<Vec<f64>> {
    let (n_positions, width) = match *shape.dims() {
        [n_positions, width] if width % 2 == 0 && width > 2 => (n_positions, width),
        _ => bail!(
            "{role}: sinusoidal positions need a table with an even width above 2, not {shape:?}"
        ),
    };
    let half = width / 2;
    let angle = |position: usize, i: usize| {
        let step = libm::log(MAX_TIMESCALE) / (half - 1) as f64;
        position as f64 * libm::exp(-step * i as f64)
    };
    let row = |position| {
        let sines = (0..half).map(move |i| libm::sin(angle(position, i)));
        sines.chain((0..half).map(move |i| libm::cos(angle(position, i))))
    };
    Ok((0..n_positions).flat_map(row).collect())
}

/// Returns a table for the patches in a square image, after a row of zeros: sines and cosines for the column, then for the
/// row (transformers' `build_2d_sinusoidal_position_embedding`, whose halves ViT-MAE swaps).
fn patch_sinusoids(role: &str, shape: &Shape) -> Result<Vec<f64>> {
    let side = |n_rows: usize| (n_rows.max(1) - 1).isqrt();
    let (side, width) = match *shape.dims() {
        [n_rows, width] if width % 4 == 0 && side(n_rows).pow(2) + 1 == n_rows => {
            (side(n_rows), width)
        }
        _ => bail!(
            "{role}: sinusoidal positions of rows and columns need a table for a square of patches \
             after one token, with a width divisible by 4, not {shape:?}"
        ),
    };
    let quarter = width / 4;
    let waves = move |at: usize| {
        let angle = move |i: usize| {
            at as f64 * libm::exp(-libm::log(MAX_TIMESCALE) * i as f64 / quarter as f64)
        };
        let sines = (0..quarter).map(move |i| libm::sin(angle(i)));
        sines.chain((0..quarter).map(move |i| libm::cos(angle(i))))
    };
    let patch = |i: usize| waves(i % side).chain(waves(i / side));
    let patches = (0..side * side).flat_map(patch);
    Ok(std::iter::repeat_n(0.0, width).chain(patches).collect())
}

/// The Box-Muller transform, through `libm` for the same bits on every platform.
fn normal(stream: &mut ChaCha12Rng) -> f64 {
    let radius = (-2.0 * libm::log(1.0 - stream.random::<f64>())).sqrt();
    radius * libm::cos(TAU * stream.random::<f64>())
}

/// The FNV-1a hash, which never changes, unlike the standard library's hash.
fn digest(role: &str) -> u64 {
    role.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
