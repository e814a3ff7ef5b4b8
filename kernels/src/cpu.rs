//! What a computation runs on: an instruction set, and a number of threads.

use crate::threads::parallel;
use crate::vectors::{Isa, isa::IsaError};

/// An instruction set of this CPU, and the most threads that may take part. It travels with every call as one value;
/// results depend on the instruction set only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The instruction set.
    pub isa: Isa,
    /// The number of threads, the caller's included.
    pub threads: usize,
}

/// Elements in a piece of rows; a longer row is a piece by itself.
pub(crate) const PIECE: usize = 8192;

impl Cpu {
    /// The instruction set that the environment asks for, or else the fastest of this CPU: see [`Isa::selected`].
    ///
    /// # Errors
    /// If it asks for one that is unknown, or that this CPU lacks.
    pub fn selected(threads: usize) -> Result<Self, IsaError> {
        Ok(Self {
            isa: Isa::selected()?,
            threads,
        })
    }

    /// The same instruction set on so many threads.
    pub fn on(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// On the calling thread alone.
    pub fn alone(self) -> Self {
        self.on(1)
    }

    /// On all threads if so many multiplications are worth it, and else on the calling thread alone.
    pub(crate) fn for_work(self, work: usize) -> Self {
        self.on(parallel::threads_worth(work, self.threads))
    }

    /// Calls `work(start, piece)` for pieces of whole rows of `width` elements, each some 32 KiB of f32, the size of a
    /// first-level cache; on all threads if so many elements of a norm, a softmax or an activation are worth it.
    pub(crate) fn for_rows<T: Send>(
        self,
        y: &mut [T],
        width: usize,
        work: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        let Some(rows) = PIECE.checked_div(width) else {
            return;
        };
        let threads = self.for_elements(y.len()).threads;
        parallel::for_chunks(threads, y, rows.max(1) * width, work);
    }

    /// On all threads if so many elements of a norm, a softmax or an activation are worth it.
    pub(crate) fn for_elements(self, elements: usize) -> Self {
        self.on(parallel::threads_for(elements, self.threads))
    }
}
