//! Reads parameters as layers request them.

pub(crate) mod as_stored;
pub(crate) mod by_role;
pub(crate) mod disk;
pub(crate) mod stored;
pub(crate) mod stored_frequencies;
pub(crate) mod tensor_parallel;
pub(crate) mod weights;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};

use crate::checkpoint::files::{converted, floating};
use crate::checkpoint::gguf::with_keys;
use crate::checkpoint::loader::stored::StoredMatrices;
use crate::checkpoint::plan::least_memory::LeastMemory;
use crate::checkpoint::plan::source::{Cut, StoredParameter};
use crate::checkpoint::plan::{Missing, missing};
use crate::checkpoint::scheme::strings;
use crate::checkpoint::{Checkpoint, Parameters, Strictness, Weights};
use crate::config::{OutputWeight, Precision};
use crate::device::{check_dtype, is_one};
use crate::error::{Error, Result, each_matches, matches};
use crate::layers::{
    FeedForward, ParameterBackend, ParameterSource, Stack, Stored, TransformerBlock, Weight,
};
use crate::memory::{check_all, check_next, loading};
use crate::ops::RankOf;

/// Loads layers from a checkpoint in the form that was given to [`Checkpoint::load`].
///
/// A dtype that the device does not support, tensors that [`Strictness`] forbids, and quantized weights that the files
/// lack are errors of the first layer that is loaded.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, Precision, Weights, candle_core::{DType, Device}};
/// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
/// let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
/// let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).trainable();
/// let stack = loader.stack()?;
/// for (role, variable) in loader.parameters() {
///     println!("{role} {:?}", variable.dims());
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[must_use = "it loads nothing until a layer is requested"]
pub struct Loader<'c> {
    checkpoint: &'c Checkpoint,
    dtype: DType,
    device: Device,
    /// The precision of packed layers.
    packing: Option<Precision>,
    frozen: Vec<String>,
    keeps_quantized: bool,
    /// Weights that stay quantized, once they are in memory.
    stored: OnceLock<Arc<StoredMatrices>>,
    /// The variables created so far, when training.
    parameters: Option<Arc<Mutex<Parameters>>>,
    /// The rank, if only a rank's part is loaded.
    rank: Option<RankOf>,
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Loader")
            .field("checkpoint", &self.checkpoint.files.path())
            .field("dtype", &self.dtype)
            .field("device", &self.device)
            .field("frozen", &self.frozen)
            .finish_non_exhaustive()
    }
}

impl<'c> Loader<'c> {
    pub(super) fn new(checkpoint: &'c Checkpoint, weights: Weights) -> Self {
        let (dtype, device, packing) = match weights {
            Weights::Dense(dtype, device) | Weights::AsStored(dtype, device) => {
                (dtype, device, None)
            }
            Weights::Packed(precision) => (DType::F32, &Device::Cpu, Some(precision)),
        };
        Self {
            checkpoint,
            dtype,
            device: device.clone(),
            packing,
            frozen: Vec::new(),
            keeps_quantized: match weights {
                Weights::Dense(..) => checkpoint.keeps_quantized,
                Weights::AsStored(..) => true,
                Weights::Packed(_) => false,
            },
            stored: OnceLock::new(),
            parameters: None,
            rank: None,
        }
    }

    /// Makes variables of the parameters, for training; [`Self::parameters`] lists them. Weights that stay quantized are not
    /// variables, and packed layers have none.
    pub fn trainable(mut self) -> Self {
        self.parameters = Some(Arc::default());
        self
    }

    /// Sets the dtype of parameters that are not packed.
    pub(crate) fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// # Errors
    /// If the device does not support the dtype, the files contain unknown tensors and [`Strictness`] forbids them, or
    /// packed layers are to be trained.
    pub(crate) fn check(&self) -> Result<()> {
        check_dtype(self.dtype, &self.device)?;
        if self.packing.is_some() && self.parameters.is_some() {
            return Err(Error::InvalidConfig(
                "packed layers have no gradient; load trainable ones with Weights::Dense"
                    .to_string(),
            ));
        }
        self.checkpoint.check_names()
    }

    /// Returns the matrices that stay quantized.
    ///
    /// # Errors
    /// If all should be, and the files have none.
    fn stored(&self) -> Result<Option<Arc<StoredMatrices>>> {
        if self.packing == Some(Precision::AsStored) {
            return Ok(Some(Arc::new(StoredMatrices::packed(self.checkpoint)?)));
        }
        if !self.keeps_quantized {
            return Ok(None);
        }
        if self.stored.get().is_none() {
            let matrices = StoredMatrices::dequantized(self.checkpoint)?;
            let _ = self.stored.set(Arc::new(matrices)); // another thread may have been first
        }
        Ok(self.stored.get().cloned())
    }

    /// Returns the checkpoint's path.
    pub(crate) fn path(&self) -> &Path {
        self.checkpoint.files.path()
    }

    /// Freezes the parameters whose role matches one of the patterns (`*` stands for any text). They are loaded as plain
    /// tensors, so that no backward pass spends time on their gradients. For tied parameters, only the first role counts.
    ///
    /// ```no_run
    /// use candle_blocks::{Checkpoint, candle_core::{DType, Device}};
    /// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
    /// // Only the feed-forwards are trained.
    /// let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?.freeze(&["*attention*", "*norm*"])?;
    /// let stack = loader.stack()?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a pattern matches no parameter.
    pub fn freeze(mut self, patterns: &[&str]) -> Result<Self> {
        let sources = &self.checkpoint.plan.sources;
        each_matches(patterns, sources.iter().map(|source| source.role.as_str()))?;
        self.frozen.extend(strings(patterns));
        Ok(self)
    }

    /// Returns a `VarBuilder` that maps this crate's names (`blocks.0.attention.query.weight`) to the checkpoint, for layers
    /// of your own. It only returns dense tensors; use [`Self::build`] for weights that stay quantized.
    pub fn var_builder(&self) -> VarBuilder<'c> {
        let backend = Box::new(self.backend(None));
        VarBuilder::from_backend(backend, self.dtype, self.device.clone())
    }

    fn backend(&self, stored: Option<Arc<StoredMatrices>>) -> CheckpointBackend<'c> {
        CheckpointBackend {
            stored,
            checkpoint: self.checkpoint,
            frozen: self.frozen.clone(),
            parameters: self.parameters.clone(),
            rank: self.rank,
            shared: Mutex::default(),
        }
    }

    /// Loads block `i`, counted from 0.
    ///
    /// # Errors
    /// If there is no such block, a tensor is missing or has the wrong shape or an unsupported dtype, or as described
    /// [above](Self).
    pub fn block(&self, i: usize) -> Result<TransformerBlock> {
        let config = self.block_config(i)?;
        self.build(|vb| {
            let block = TransformerBlock::new(config, vb.pp("blocks").pp(i))?;
            match self.packing {
                None => Ok(block),
                Some(precision) => block.pack(precision),
            }
        })
    }

    /// Loads the feed-forward in block `i`; errors as for [`Self::block`].
    pub fn feed_forward(&self, i: usize) -> Result<FeedForward> {
        let config = &self.block_config(i)?.feed_forward;
        self.build(|vb| {
            let layer = FeedForward::new(config, vb.pp("blocks").pp(i).pp("feed_forward"))?;
            match self.packing {
                None => Ok(layer),
                Some(precision) => layer.pack(precision),
            }
        })
    }

    /// Loads all blocks and the final norm; errors as for [`Self::block`]. Of packed layers, each block is packed, and its
    /// original weights are freed, before the next one is read.
    pub fn stack(&self) -> Result<Stack> {
        let config = &self.checkpoint.config;
        self.load(LoadScope::Blocks, |vb| match self.packing {
            None => Stack::new(config, vb),
            Some(precision) => Stack::packed(config, vb, precision),
        })
    }

    /// Checks that memory suffices to load `held`.
    ///
    /// # Errors
    /// If the minimum that they need ([`LeastMemory::needed`]) exceeds a limit.
    fn check_room(&self, held: LoadScope) -> Result<()> {
        let Checkpoint {
            plan,
            files,
            config,
            ..
        } = self.checkpoint;
        let sources = match held {
            LoadScope::Blocks => plan.in_blocks(),
            LoadScope::Model | LoadScope::TwoStacks => &plan.sources,
        };
        // The plan may include a second stack.
        if self.checkpoint.is_joined != matches!(held, LoadScope::TwoStacks) {
            return Ok(());
        }
        // If shapes do not fit the configuration or each other, that error is more helpful.
        let is_whole = plan.missing.is_empty()
            && sources
                .iter()
                .all(|source| source.check_shape(files).is_ok());
        if !self.device.is_cpu() || self.rank.is_some() || !is_whole {
            return Ok(());
        }
        let stored = match self.keeps_quantized {
            true => self.stored()?,
            false => None,
        };
        let is_dense = |source: &&StoredParameter| {
            !{ stored.as_ref() }.is_some_and(|stored| stored.has(&source.role))
        };
        let model = self.checkpoint.model_config().ok();
        let output = model.and_then(|model| model.head.as_ref()?.readout.output.as_ref());
        let least = LeastMemory {
            sources: sources.iter().filter(is_dense).collect(),
            files,
            number: self.dtype.size_in_bytes(),
            packing: self.packing,
            shares_embeddings: output.is_some_and(|output| output.weight == OutputWeight::Words),
            n_blocks: config.blocks.len(),
        };
        check_all(files.path(), least.needed())
    }

    /// From now on, loads one rank's part of layers that are divided among the ranks.
    pub(super) fn divide(&mut self, rank: RankOf) {
        self.rank = Some(rank);
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn packing(&self) -> Option<Precision> {
        self.packing
    }

    /// Returns whether a parameter is not a variable.
    pub(super) fn is_frozen(&self, role: &str) -> bool {
        let source = self.checkpoint.plan.source(role);
        self.parameters.is_none()
            || source.is_some_and(|source| !source.is_trained)
            || self.frozen.iter().any(|pattern| matches(pattern, role))
    }

    /// Returns the checkpoint.
    pub(crate) fn checkpoint(&self) -> &'c Checkpoint {
        self.checkpoint
    }

    /// Returns the variables of the layers loaded so far, by role; empty unless the loader is
    /// [`trainable`](Self::trainable). A buffer in PyTorch, such as BART's `final_logits_bias`, is not a variable.
    ///
    /// A role that is loaded again gives the same variable. [`Checkpoint::save`] saves the variables.
    pub fn parameters(&self) -> Parameters {
        match &self.parameters {
            Some(parameters) => lock(parameters).clone(),
            None => Parameters::default(),
        }
    }

    fn block_config(&self, i: usize) -> Result<&'c crate::config::BlockConfig> {
        let blocks = &self.checkpoint.config.blocks;
        blocks.get(i).ok_or_else(|| {
            Error::input(
                "block",
                format!(
                    "{i} was requested, but {} has the blocks 0 to {}",
                    self.checkpoint.files.path().display(),
                    blocks.len().saturating_sub(1)
                ),
            )
        })
    }

    /// Calls `build` with the source of this checkpoint's parameters. Use it to load layers with another configuration than
    /// the checkpoint's, for example other dropout, or to load layers of your own. Converts errors to this crate's types.
    ///
    /// ```no_run
    /// use candle_blocks::{Checkpoint, Stack, candle_core::{DType, Device}};
    /// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
    /// let config = checkpoint.config().clone();
    /// let config = config.with_each_attention(|_, attention| attention.dropout = 0.1);
    /// let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
    /// let stack = loader.build(|vb| Stack::new(&config, vb))?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::block`] and of `build`.
    pub fn build<T>(
        &self,
        build: impl FnOnce(ParameterSource<'c>) -> candle_core::Result<T>,
    ) -> Result<T> {
        self.check()?;
        let backend = self.backend(self.stored()?);
        let source = ParameterSource::new(backend, (self.dtype, &self.device));
        loading(self.checkpoint.files.path(), || build(source))
    }

    /// Loads a part of the checkpoint.
    ///
    /// # Errors
    /// If there cannot be enough memory, or as for [`Self::build`].
    pub(crate) fn load<T>(
        &self,
        held: LoadScope,
        build: impl FnOnce(ParameterSource<'c>) -> candle_core::Result<T>,
    ) -> Result<T> {
        self.check()?;
        self.check_room(held)?;
        self.build(build)
    }
}

impl Checkpoint {
    /// # Errors
    /// If the files contain unknown tensors and [`Strictness`] forbids them.
    fn check_names(&self) -> Result<()> {
        let unused = &self.plan.unused;
        if self.strictness == Strictness::Strict && !unused.is_empty() {
            // A renamed parameter is both missing and unused; the error about the missing one is clearer.
            return Err(match self.plan.missing.first() {
                Some(first) => missing(first, unused, &self.files),
                None => {
                    let error = Error::UnusedTensors {
                        path: self.files.path().to_path_buf(),
                        family: self.family.name.clone(),
                        names: unused.clone(),
                    };
                    with_keys(&self.files, &unused[0], error)
                }
            });
        }
        Ok(())
    }
}

/// The part of a checkpoint that is loaded.
#[derive(Clone, Copy)]
pub(crate) enum LoadScope {
    Blocks,
    /// The blocks, embeddings and head.
    Model,
    /// Two stacks that were opened as one model.
    TwoStacks,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct CheckpointBackend<'c> {
    checkpoint: &'c Checkpoint,
    /// Weights that stay quantized.
    stored: Option<Arc<StoredMatrices>>,
    frozen: Vec<String>,
    parameters: Option<Arc<Mutex<Parameters>>>,
    rank: Option<RankOf>,
    /// Tied tensors, once they are read.
    shared: Mutex<HashMap<String, Tensor>>,
}

impl CheckpointBackend<'_> {
    /// Returns a parameter's location in the files.
    fn source(&self, role: &str) -> Result<&StoredParameter> {
        let Checkpoint { plan, files, .. } = self.checkpoint;
        plan.source(role).ok_or_else(|| {
            let known = plan.missing.iter().find(|missing| missing.role == role);
            let unknown = Missing {
                role: role.to_string(),
                tried: vec![role.to_string()],
            };
            missing(known.unwrap_or(&unknown), &plan.unused, files)
        })
    }

    fn load(
        &self,
        shape: Option<Shape>,
        role: &str,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let files = &self.checkpoint.files;
        self.checkpoint.check_names()?; // for a `VarBuilder`, which no loader has checked
        let source = self.source(role)?;
        let mut cut = None;
        if let Some(shape) = shape {
            let config = &self.checkpoint.config;
            cut = self
                .rank
                .and_then(|rank| source.cut(shape.dims(), config, rank));
            let fits = |cut: &Cut| cut.range.len() == shape.dims()[cut.axis];
            if !cut.as_ref().is_some_and(fits) {
                source.check_request(shape.dims(), files)?;
            }
        }
        let read = || match &cut {
            None => self.read(source, dtype, device),
            Some(cut) => self.converted(source.read_part(files, cut)?, source, dtype, device),
        };
        let Some(parameters) = &self.parameters else {
            return read();
        };
        let role = &source.role; // the first of the roles that share the parameter
        if !source.is_trained || self.frozen.iter().any(|pattern| matches(pattern, role)) {
            return read();
        }
        let mut parameters = lock(parameters);
        // Layers that share a parameter train the same variable.
        if let Some(variable) = parameters.find(role) {
            // A converted copy would not follow the variable.
            if variable.dtype() != dtype || !is_one(variable.device(), device) {
                let reason = format!(
                    "it was requested as {dtype:?}, but was loaded as {:?}; a shared parameter has \
                     one dtype and device",
                    variable.dtype()
                );
                return Err(Error::input(role, reason));
            }
            return Ok(variable.as_tensor().clone());
        }
        let tensor = read()?;
        check_next(tensor.elem_count() * dtype.size_in_bytes())?;
        let variable = Var::from_tensor(&tensor)?;
        let tensor = variable.as_tensor().clone();
        parameters.push(role.to_string(), variable);
        Ok(tensor)
    }

    fn read(&self, source: &StoredParameter, dtype: DType, device: &Device) -> Result<Tensor> {
        if !self.checkpoint.plan.is_shared(&source.role) {
            return self.read_anew(source, dtype, device);
        }
        let mut shared = lock(&self.shared);
        let fits = |tensor: &&Tensor| tensor.dtype() == dtype && is_one(tensor.device(), device);
        if let Some(tensor) = shared.get(&source.role).filter(fits) {
            return Ok(tensor.clone());
        }
        let tensor = self.read_anew(source, dtype, device)?;
        shared.insert(source.role.clone(), tensor.clone());
        Ok(tensor)
    }

    fn read_anew(&self, source: &StoredParameter, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = source.read(&self.checkpoint.files)?;
        self.converted(tensor, source, dtype, device)
    }

    /// Converts a tensor to the requested dtype and device.
    fn converted(
        &self,
        tensor: Tensor,
        source: &StoredParameter,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let path = source.path(&self.checkpoint.files);
        let tensor = floating(tensor, &path, &source.name)?;
        if tensor.dtype() != dtype {
            check_next(tensor.elem_count() * dtype.size_in_bytes())?;
        }
        Ok(converted(&tensor, dtype)?.to_device(device)?)
    }
}

impl ParameterBackend for CheckpointBackend<'_> {
    fn tensor(
        &self,
        role: &str,
        shape: Shape,
        _: Init,
        (dtype, device): (DType, &Device),
    ) -> candle_core::Result<Tensor> {
        Ok(self.load(Some(shape), role, dtype, device)?)
    }

    fn weight(
        &self,
        role: &str,
        dims: (usize, usize),
        init: Init,
        kind: (DType, &Device),
    ) -> candle_core::Result<Weight> {
        let stored = self.stored.as_ref();
        let matrix = stored.map(|stored| stored.matrix(&self.source(role)?.role, dims));
        Ok(match matrix.transpose()?.flatten() {
            Some(matrix) => Stored::weight(matrix, dims, kind),
            None => Weight::Dense(self.tensor(role, dims.into(), init, kind)?),
        })
    }

    fn contains(&self, role: &str) -> bool {
        self.checkpoint.plan.source(role).is_some()
    }
}

impl SimpleBackend for CheckpointBackend<'_> {
    fn get(
        &self,
        shape: Shape,
        role: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        Ok(self.load(Some(shape), role, dtype, device)?)
    }

    fn get_unchecked(
        &self,
        role: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        Ok(self.load(None, role, dtype, device)?)
    }

    fn contains_tensor(&self, role: &str) -> bool {
        self.contains(role)
    }
}
