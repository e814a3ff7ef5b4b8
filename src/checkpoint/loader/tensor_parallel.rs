//! Loads a rank's part from every block, and saves variables that ranks trained together.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::plan::source::{Cut, StoredParameter};
use crate::checkpoint::{Loader, Parameters, SaveOptions};
use crate::config::StackConfig;
use crate::error::{Error, Result};
use crate::layers::{Communicator, DropoutSource, Partial, RankOf, Ranks, Stack};
use crate::layers::{mark_parts, visit::Visit};

/// Loads one rank's part of a checkpoint's blocks for tensor parallelism (Shoeybi et al. 2019,
/// <https://arxiv.org/abs/1909.08053>). Each rank has some heads of every attention and some hidden columns of every
/// feed-forward and expert, and the ranks sum their outputs after both. Every rank gets the same input and has the same
/// output, that of the whole model.
///
/// Only a rank's part is read from the files. All ranks make the same calls in the same order: a rank that stops leaves the
/// others waiting, or with an error if the [`Communicator`] can detect it.
///
/// ```
/// use std::sync::Arc;
/// use candle_blocks::{Checkpoint, Precision, Weights, checkpoint::TensorParallel, ops::parallel::Threads};
/// use candle_blocks::candle_core::{DType, Device, Module, Tensor};
///
/// // Here ranks are threads; `Mpi` makes them processes.
/// let outputs = std::thread::scope(|scope| {
///     let ranks = Threads::ranks(2).into_iter().map(|rank| {
///         scope.spawn(move || -> candle_blocks::Result<Tensor> {
///             let checkpoint = Checkpoint::open("weights/tiny-bert")?;
///             let loader = checkpoint.load(Weights::Packed(Precision::F32));
///             let stack = TensorParallel::new(loader, Arc::new(rank))?.stack()?;
///             let d_model = checkpoint.config().blocks[0].d_model();
///             Ok(stack.forward(&Tensor::ones((1, 3, d_model), DType::F32, &Device::Cpu)?)?)
///         })
///     });
///     let ranks: Vec<_> = ranks.collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// let rows = |y: &Tensor| y.flatten_all()?.to_vec1::<f32>();
/// assert_eq!(rows(&outputs[0])?, rows(&outputs[1])?);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorParallel<'c> {
    loader: Loader<'c>,
    config: StackConfig,
    communicator: Arc<dyn Communicator>,
}

impl<'c> TensorParallel<'c> {
    /// Loads the part for the communicator's rank through `loader`.
    ///
    /// # Errors
    /// If heads or hidden columns are not divisible by the number of ranks, a block has a part that cannot be divided (keys
    /// and values from a latent, disentangled attention, linear biases, norms over whole queries, a norm for
    /// each head, or norms before the output projections), weights are quantized, or the loader's dtype is not F32; also if a bias after a sum is trained without its weight.
    pub fn new(mut loader: Loader<'c>, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let checkpoint = loader.checkpoint();
        let rank = RankOf::of(communicator.as_ref());
        let config = checkpoint.config().part_of(rank.rank, rank.size)?;
        let sources = checkpoint.plan.in_blocks();
        if let Some(quantized) = sources.iter().find(|source| source.is_quantized) {
            let reason = "it is quantized, and quantized values are not divided among ranks; save \
             it dequantized first";
            return Err(Error::input(&quantized.name, reason));
        }
        let dtype = loader.dtype();
        if dtype != DType::F32 {
            let reason = format!("{dtype:?}; ranks only sum in F32, so load in that");
            return Err(Error::input("dtype", reason));
        }
        check_biases(&loader, sources)?;
        loader.divide(rank);
        Ok(Self {
            loader,
            config,
            communicator,
        })
    }

    /// Returns this rank's configuration.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// The ranks.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.communicator
    }

    /// Loads this rank's part from all blocks, and the final norm, in the loader's form.
    ///
    /// A stack of tensors is trained like any other stack, but without dropout, for which ranks would need the same masks. Each rank
    /// computes the gradients of its rows, and `Gradients::norm_among` the norm over all, without which clipping is refused. An encoder's output and an
    /// additive mask get no gradients.
    ///
    /// # Errors
    /// Errors as for [`Loader::stack`].
    pub fn stack(&self) -> Result<Stack> {
        if let Some(precision) = self.loader.packing() {
            let ranks = (self.communicator.size() > 1).then(|| self.ranks());
            return self
                .loader
                .build(|vb| Stack::packed_part(&self.config, vb, precision, ranks.as_ref()));
        }
        let mut stack = self.loader.build(|vb| Stack::new(&self.config, vb))?;
        if self.communicator.size() > 1 {
            stack.divide(&self.ranks());
            self.mark_parts();
            stack.set_dropout_source(&DropoutSource::refused(
                "tensor parallel blocks have no dropout; set its probabilities to 0",
            ));
        }
        Ok(stack)
    }

    /// Returns this rank's variables by role; see [`Loader::parameters`].
    pub fn parameters(&self) -> Parameters {
        self.loader.parameters()
    }

    fn ranks(&self) -> Arc<Ranks> {
        let parameters = self.parameters();
        let partial = parameters.iter().filter_map(|(role, variable)| {
            // Outside the divided layers, every rank computes the whole gradient.
            let is_inside = role.contains("attention.") || role.contains(".feed_forward.");
            let is_partial = is_inside && self.n_holders(role, variable) > 1;
            is_partial.then(|| {
                let dims = variable.dims();
                let row: usize = dims.iter().skip(1).product();
                let (n, rows) = match self.cut(self.communicator.rank(), role, dims) {
                    Some((cut, source)) if cut.axis == 0 => (source.shape[0], cut.range),
                    _ => (variable.elem_count() / row, 0..variable.elem_count() / row),
                };
                Partial {
                    id: variable.id(),
                    n_whole: n * row,
                    own: rows.start * row..rows.end * row,
                }
            })
        });
        Ranks::new(self.communicator.clone(), partial.collect())
    }

    /// Marks the variables that are divided among ranks, for their gradients and their optimizer's state.
    fn mark_parts(&self) {
        let parameters = self.parameters();
        let n_ranks = self.communicator.size();
        let divided = parameters
            .iter()
            .filter(|(role, variable)| self.n_holders(role, variable) != n_ranks);
        let rank = RankOf::of(self.communicator.as_ref());
        mark_parts(divided.map(|(_, variable)| variable), rank);
    }

    /// Returns a rank's part from a parameter, given that part's dimensions, and the parameter's location; `None`
    /// if every rank has it whole.
    fn cut(&self, rank: usize, role: &str, dims: &[usize]) -> Option<(Cut, &StoredParameter)> {
        let checkpoint = self.loader.checkpoint();
        let source = checkpoint.plan.source(role)?;
        let size = self.communicator.size();
        let among = RankOf { rank, size };
        Some((source.cut(dims, checkpoint.config(), among)?, source))
    }

    /// Returns how many ranks have this rank's elements in a parameter.
    pub(crate) fn n_holders(&self, role: &str, own: &Tensor) -> usize {
        if is_after_sum(role) {
            return 1;
        }
        let range = |rank| Some(self.cut(rank, role, own.dims())?.0.range);
        let own_range = range(self.communicator.rank());
        let ranks = 0..self.communicator.size();
        ranks.filter(|&rank| range(rank) == own_range).count()
    }

    /// Saves a copy of the checkpoint with the variables of all ranks, as one process would. Rank 0 gathers and writes it,
    /// and needs memory for all of them; the others wait, and return an error if it failed.
    ///
    /// # Errors
    /// Errors as for [`SaveOptions::save`].
    pub fn save(&self, directory: impl AsRef<Path>) -> Result<()> {
        self.save_with(&SaveOptions::default(), directory)
    }

    /// Like [`Self::save`], with options.
    ///
    /// # Errors
    /// Errors as for [`SaveOptions::save`].
    pub fn save_with(&self, options: &SaveOptions, directory: impl AsRef<Path>) -> Result<()> {
        let whole = self.gathered()?;
        let saved = match self.communicator.rank() {
            0 => options.save(self.loader.checkpoint(), directory.as_ref(), whole),
            _ => Ok(()),
        };
        let mut n_failed = [f32::from(u8::from(saved.is_err()))];
        self.communicator.all_reduce_sum(&mut n_failed)?;
        match n_failed {
            [0.0] => saved,
            _ => saved.and(Err(Error::input(
                directory.as_ref().display().to_string(),
                "rank 0 could not save there; its error gives the reason",
            ))),
        }
    }

    /// Returns on rank 0 all variables, joined one after another; nothing on the others.
    fn gathered(&self) -> Result<Vec<(String, Tensor)>> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let mut whole = Vec::new();
        for (role, variable) in &self.parameters() {
            let own = variable.as_detached_tensor();
            let cut = |rank| Some(self.cut(rank, role, own.dims())?.0);
            let cuts: Option<Vec<Cut>> = (0..size).map(cut).collect();
            let tensor = match cuts {
                None => own,
                Some(cuts) => match self.joined(&own, &cuts)? {
                    Some(tensor) => tensor,
                    None => continue,
                },
            };
            if rank == 0 {
                whole.push((role.clone(), tensor));
            }
        }
        Ok(whole)
    }

    /// Returns on rank 0 a whole parameter that is divided among the ranks.
    fn joined(&self, own: &Tensor, cuts: &[Cut]) -> Result<Option<Tensor>> {
        let axis = cuts[0].axis;
        let others: usize = own.elem_count() / own.dims()[axis];
        // All ranks send as many elements as the largest part has.
        let n = cuts.iter().map(|cut| cut.range.len()).max().unwrap_or(0) * others;
        let mut part = own
            .flatten_all()?
            .to_device(&Device::Cpu)?
            .to_vec1::<f32>()?;
        part.resize(n, 0.0);
        let mut all = vec![0.0; cuts.len() * n];
        self.communicator.all_gather(&part, &mut all)?;
        if self.communicator.rank() > 0 {
            return Ok(None);
        }
        let mut parts: Vec<Tensor> = Vec::new();
        let mut end = 0;
        for (part, cut) in all.chunks_exact(n).zip(cuts) {
            // Ranks with the same part are consecutive.
            if cut.range.start == end {
                let mut dims = own.dims().to_vec();
                dims[axis] = cut.range.len();
                let part = &part[..cut.range.len() * others];
                parts.push(Tensor::from_slice(part, dims, &Device::Cpu)?);
                end = cut.range.end;
            }
        }
        Ok(Some(Tensor::cat(&parts, axis)?))
    }
}

/// # Errors
/// If a bias after a sum, which only one rank has, is trained without its weight: that rank's backward pass would wait for
/// others that have nothing to train.
fn check_biases(loader: &Loader, sources: &[StoredParameter]) -> Result<()> {
    for bias in sources.iter().filter(|source| is_after_sum(&source.role)) {
        let weight = bias.role.replace(".bias", ".weight");
        if !loader.is_frozen(&bias.role) && loader.is_frozen(&weight) {
            let reason =
                format!("it is trained and {weight} is not; among ranks, freeze both or neither");
            return Err(Error::input(&bias.role, reason));
        }
    }
    Ok(())
}

/// Returns whether a parameter is added after the sum over ranks, by rank 0 alone.
fn is_after_sum(role: &str) -> bool {
    role.ends_with("attention.output.bias")
        || role.contains(".feed_forward.") && role.ends_with(".down.bias")
}
