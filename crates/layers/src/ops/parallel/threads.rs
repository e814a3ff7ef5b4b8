//! Ranks that are threads in one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_core::{Result, bail};

use super::Communicator;

/// A rank that is a thread in this process, for tests. Sums are computed in rank order.
///
/// ```
/// use candle_blocks::ops::parallel::{Communicator, Threads};
/// let sums = std::thread::scope(|scope| {
///     let ranks = Threads::ranks(3).into_iter().map(|rank| {
///         scope.spawn(move || {
///             let mut values = [rank.rank() as f32, 1.0];
///             rank.all_reduce_sum(&mut values).map(|()| values)
///         })
///     });
///     let ranks: Vec<_> = ranks.collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(sums, [[3.0, 3.0]; 3]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// The place where the ranks wait for each other.
#[derive(Debug)]
struct Meeting {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Each rank's contribution, exchanged when all are there.
    brought: Vec<Option<Vec<f32>>>,
    /// All contributions in the last exchange.
    all: Arc<Vec<Vec<f32>>>,
    /// The number of exchanges so far.
    n_meetings: usize,
    /// True once a rank has ended: the others must not wait for it.
    is_over: bool,
}

impl Threads {
    /// Creates `size` ranks, one per thread. When one is dropped, the others' calls return errors.
    pub fn ranks(size: usize) -> Vec<Self> {
        let state = State {
            brought: vec![None; size],
            ..State::default()
        };
        let meeting = Arc::new(Meeting {
            size,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let rank = |rank| Self {
            rank,
            meeting: meeting.clone(),
        };
        (0..size).map(rank).collect()
    }

    /// Returns all ranks' contributions.
    fn exchanged(&self, values: &[f32]) -> Result<Arc<Vec<Vec<f32>>>> {
        let meeting = &self.meeting;
        let mut state = meeting.state();
        let before = state.n_meetings;
        state.brought[self.rank] = Some(values.to_vec());
        if state.brought.iter().all(Option::is_some) {
            let all = state.brought.iter_mut().filter_map(Option::take).collect();
            state.all = Arc::new(all);
            state.n_meetings += 1;
            meeting.changed.notify_all();
        }
        while state.n_meetings == before && !state.is_over {
            let waited = meeting.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.n_meetings == before {
            bail!("parallel: another rank is gone; its own error says why");
        }
        let all = state.all.clone();
        if all.iter().any(|brought| brought.len() != values.len()) {
            let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
            bail!("parallel: the ranks passed {lengths:?} values; all must make the same calls");
        }
        Ok(all)
    }
}

impl Meeting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<()> {
        let all = self.exchanged(values)?;
        let (first, others) = all.split_at(1);
        values.copy_from_slice(&first[0]);
        for other in others {
            for (sum, value) in values.iter_mut().zip(other) {
                *sum += value;
            }
        }
        Ok(())
    }

    fn all_gather(&self, part: &[f32], all: &mut [f32]) -> Result<()> {
        let gathered = self.exchanged(part)?.concat();
        if gathered.len() != all.len() {
            let (found, expected) = (all.len(), gathered.len());
            bail!("parallel: {found} places for the values of all ranks, expected {expected}");
        }
        all.copy_from_slice(&gathered);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.meeting.state().is_over = true;
        self.meeting.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_waits_for_one_that_has_ended() {
        let mut ranks = Threads::ranks(2);
        drop(ranks.pop());
        let error = ranks[0].all_reduce_sum(&mut [1.0]).unwrap_err();
        assert!(error.to_string().contains("is gone"), "{error}");
    }

    #[test]
    fn ranks_that_disagree_about_the_length_all_get_an_error() {
        let errors = std::thread::scope(|scope| {
            let ranks: Vec<_> = Threads::ranks(2)
                .into_iter()
                .map(|rank| {
                    scope.spawn(move || {
                        let mut values = vec![0.0; 1 + rank.rank()];
                        rank.all_reduce_sum(&mut values).unwrap_err().to_string()
                    })
                })
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert!(
            errors.iter().all(|error| error.contains("[1, 2]")),
            "{errors:?}"
        );
    }
}
