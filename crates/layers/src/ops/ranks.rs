//! The ranks that compute a layer together, and their parts of its parameters.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use candle_core::{Result, TensorId, Var};

use super::engine::Engine;
use super::parallel::Communicator;

/// The ranks that compute a layer together.
#[derive(Debug)]
#[doc(hidden)]
pub struct Ranks {
    communicator: Arc<dyn Communicator>,
    partial: Vec<Partial>,
}

/// A parameter whose rows other ranks have too. Each rank finds a part of their gradient.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Partial {
    pub id: TensorId,
    /// Element count over all ranks' rows.
    pub n_whole: usize,
    /// This rank's elements.
    pub own: Range<usize>,
}

/// A rank, of which other ranks have other parts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct RankOf {
    pub rank: usize,
    pub size: usize,
}

impl RankOf {
    pub fn of(communicator: &dyn Communicator) -> Self {
        Self {
            rank: communicator.rank(),
            size: communicator.size(),
        }
    }
}

impl fmt::Display for RankOf {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

/// The variables that are one rank's part of a parameter. candle's variables cannot carry a mark. A mark stays after its
/// variable, because nothing tells when candle frees one; candle never uses an id again.
static PARTS: LazyLock<RwLock<HashMap<TensorId, RankOf>>> = LazyLock::new(RwLock::default);

/// Marks variables as a rank's parts.
#[doc(hidden)]
pub fn mark_parts<'v>(variables: impl Iterator<Item = &'v Var>, rank: RankOf) {
    let mut parts = PARTS.write().unwrap_or_else(PoisonError::into_inner);
    parts.extend(variables.map(|variable| (variable.id(), rank)));
}

/// Returns the rank of the first variable that is a rank's part, or `None` if all are whole parameters.
#[doc(hidden)]
pub fn part_of<'v>(mut variables: impl Iterator<Item = &'v Var>) -> Option<RankOf> {
    let parts = PARTS.read().unwrap_or_else(PoisonError::into_inner);
    match parts.is_empty() {
        true => None,
        false => variables.find_map(|variable| parts.get(&variable.id()).copied()),
    }
}

impl Ranks {
    pub fn new(communicator: Arc<dyn Communicator>, partial: Vec<Partial>) -> Arc<Self> {
        Arc::new(Self {
            communicator,
            partial,
        })
    }

    pub(super) fn sum<E: Engine>(&self, data: E::Data, dims: &[usize]) -> Result<E::Output> {
        E::cotangent(&self.communicator.sum(&E::tensor(data, dims)?)?)
    }

    /// Returns a tensor's whole gradient, given this rank's part.
    pub(super) fn whole<E: Engine>(
        &self,
        gradient: E::Output,
        id: TensorId,
        dims: &[usize],
    ) -> Result<E::Output> {
        let Some(partial) = self.partial.iter().find(|partial| partial.id == id) else {
            return Ok(gradient);
        };
        let (own, n) = (&partial.own, partial.n_whole);
        if own.len() == n {
            return self.sum::<E>(gradient.into(), dims);
        }
        let gradient = E::tensor(gradient.into(), &[own.len()])?;
        let among = gradient.pad_with_zeros(0, own.start, n - own.end)?;
        let sum = self.communicator.sum(&among)?;
        E::cotangent(&sum.narrow(0, own.start, own.len())?.reshape(dims)?)
    }
}
