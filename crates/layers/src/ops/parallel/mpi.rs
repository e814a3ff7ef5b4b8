//! Ranks that are processes in an MPI job.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use candle_core::{Result, bail};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::CommunicatorCollectives as _;

use super::Communicator;

/// The exit status of a Rust process that panicked.
const PANIC: i32 = 101;
/// The maximum value count in one message: MPI counts in 32 bits.
const MOST: usize = 1 << 24;

/// A rank that is a process in an MPI job, as started by `mpirun -n 2 program`.
///
/// Sums use `MPI_Allreduce`, whose order the library defines. An MPI error ends all processes in the job. So do
/// [`std::process::exit`] with a nonzero status, and a panic that drops the communicator. A process that drops its
/// communicator otherwise, for example because `main` returns an error, waits for the others.
pub struct Mpi {
    rank: usize,
    size: usize,
    /// Ended when dropped. Only one thread at a time calls MPI.
    universe: Mutex<Universe>,
}

impl Mpi {
    /// Initializes MPI. A process can do this once.
    ///
    /// # Errors
    /// If MPI was initialized before, or its library does not support calls from several threads in turn.
    pub fn new() -> Result<Self> {
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized)
        else {
            bail!("parallel: MPI was initialized before; keep the communicator and share it");
        };
        if threading < Threading::Serialized {
            bail!("parallel: this MPI serves one thread alone ({threading:?})");
        }
        let world = universe.world();
        Ok(Self {
            rank: world.rank() as usize,
            size: world.size() as usize,
            universe: Mutex::new(universe),
        })
    }

    fn with_world<R>(&self, call: impl FnOnce(SimpleCommunicator) -> R) -> R {
        let universe = self.universe.lock().unwrap_or_else(PoisonError::into_inner);
        call(universe.world())
    }
}

impl Drop for Mpi {
    /// Ends all processes in the job if this one panics. The others wait for it, and `MPI_Finalize`, which the universe calls
    /// when dropped, would wait for them.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.with_world::<()>(|world| world.abort(PANIC));
        }
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<()> {
        self.with_world(|world| {
            let mut sent = vec![0.0; values.len().min(MOST)];
            for values in values.chunks_mut(MOST) {
                let sent = &mut sent[..values.len()];
                sent.copy_from_slice(values);
                world.all_reduce_into(sent, values, SystemOperation::sum());
            }
        });
        Ok(())
    }

    fn all_gather(&self, part: &[f32], all: &mut [f32]) -> Result<()> {
        if all.len() != self.size * part.len() {
            let (found, expected) = (all.len(), self.size * part.len());
            bail!("parallel: {found} places for the values of all ranks, expected {expected}");
        }
        self.with_world(|world| {
            let mut gathered = vec![0.0; self.size * part.len().min(MOST)];
            for (i, piece) in part.chunks(MOST).enumerate() {
                let gathered = &mut gathered[..self.size * piece.len()];
                world.all_gather_into(piece, gathered);
                let parts = all.chunks_exact_mut(part.len());
                for (to, from) in parts.zip(gathered.chunks_exact(piece.len())) {
                    to[i * MOST..][..piece.len()].copy_from_slice(from);
                }
            }
        });
        Ok(())
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Mpi({} of {})", self.rank, self.size)
    }
}
