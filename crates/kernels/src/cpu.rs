//! The execution context: an instruction set, and a thread count.

use crate::threads::parallel;
use crate::vectors::{Isa, isa::IsaError};

/// An instruction set that this CPU has, and the maximum thread count. Passed to every call as one value. Results
/// depend on the instruction set only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The instruction set.
    pub isa: Isa,
    /// The thread count, including the caller.
    pub threads: usize,
}

/// Elements per piece of rows. A longer row is a piece alone.
pub(crate) const PIECE: usize = 8192;

impl Cpu {
    /// Returns the instruction set that the environment requests, or else this CPU's fastest. See [`Isa::selected`].
    ///
    /// # Errors
    /// If the environment requests an instruction set that is unknown, or that this CPU lacks.
    pub fn selected(threads: usize) -> Result<Self, IsaError> {
        Ok(Self {
            isa: Isa::selected()?,
            threads,
        })
    }

    /// Returns the same instruction set with another thread count.
    pub fn on(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Returns the same instruction set on the calling thread alone.
    pub fn alone(self) -> Self {
        self.on(1)
    }

    /// Returns all threads if this many multiplications are worth it, else the calling thread alone.
    pub(crate) fn for_work(self, work: usize) -> Self {
        self.on(parallel::threads_worth(work, self.threads))
    }

    /// Calls `work(start, piece)` for pieces of whole rows with `width` elements. A piece is about 32 KiB in f32,
    /// the size of an L1 cache. Uses all threads if this many elements in a norm, a softmax or an activation are
    /// worth it.
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

    /// Returns all threads if this many elements in a norm, a softmax or an activation are worth it.
    pub(crate) fn for_elements(self, elements: usize) -> Self {
        self.on(parallel::threads_for(elements, self.threads))
    }
}
