//! A growing buffer for the keys and values of a cache.

use std::{ops::Range, sync::Arc};

use candle_core::{Device, Result, Tensor};

use crate::memory::check_pass;
use crate::ops;

/// Rows of keys and rows of values, each `[batch, kept, width]`, in a larger buffer `[batch, capacity, width]`. New
/// rows are appended. Dropped rows stay in the buffer: the kept rows are copied only when the buffer is full.
///
/// A clone shares the buffers until one of the two writes. The writer then copies its rows to new buffers.
#[derive(Clone, Debug)]
pub(super) struct CachedRows {
    buffers: Arc<[Tensor; 2]>,
    kept: Range<usize>,
}

impl CachedRows {
    /// Copies these keys and values.
    pub fn of(rows: [&Tensor; 2]) -> Result<Self> {
        let mut all = Self {
            buffers: buffers(rows, rows[0].dim(1)?)?,
            kept: 0..0,
        };
        all.append(rows, 0)?;
        Ok(all)
    }

    /// Drops all but the last `keep` rows, and appends new keys and values.
    ///
    /// # Errors
    /// If batch, width, dtype or device differ. The last `keep` rows are then unchanged.
    pub fn append(&mut self, new: [&Tensor; 2], keep: usize) -> Result<()> {
        let n = new[0].dim(1)?;
        self.kept.start = self.kept.end - keep;
        let capacity = self.buffers[0].dim(1)?;
        // After a long prompt, a window needs only a small part of the capacity.
        let fits = self.kept.end + n <= capacity && capacity <= 4 * (keep + n);
        if !fits || Arc::get_mut(&mut self.buffers).is_none() {
            let [keys, values] = &*self.buffers;
            let moved = buffers([keys, values], keep + n)?;
            for (from, to) in [keys, values].into_iter().zip(&*moved) {
                write(&from.narrow(1, self.kept.start, keep)?, to, 0)?;
            }
            (self.buffers, self.kept) = (moved, 0..keep);
        }
        for (from, to) in new.into_iter().zip(&*self.buffers) {
            write(from, to, self.kept.end)?;
        }
        self.kept.end += n;
        Ok(())
    }

    /// Removes the last `n` rows, or all rows if there are fewer.
    pub fn forget_last(&mut self, n: usize) {
        self.kept.end -= n.min(self.kept.len());
    }

    /// Replaces the batch by copies of the given sequences, in new buffers.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let [keys, values] = &*self.buffers;
        let kept = |rows: &Tensor| {
            ops::record("cat", rows)?;
            of_sequences(rows, sequences)
        };
        self.buffers = Arc::new([kept(keys)?, kept(values)?]);
        Ok(())
    }

    /// Appends another batch's sequences, in new buffers. The batch with fewer rows gets zeros before them: rows that
    /// are padding, or that a window has dropped.
    ///
    /// # Errors
    /// If width, dtype or device differ, as [`Self::is_like`] says. The rows are then unchanged.
    pub fn join(&mut self, other: &Self) -> Result<()> {
        let n = self.len().max(other.len());
        let [keys, values] = self.lengthened(n)?;
        let [other_keys, other_values] = other.lengthened(n)?;
        let keys = Tensor::cat(&[keys, other_keys], 0)?;
        let values = Tensor::cat(&[values, other_values], 0)?;
        *self = Self::of([&keys, &values])?;
        Ok(())
    }

    /// Returns whether both have the same widths, dtype and device, so that they can join.
    pub fn is_like(&self, other: &Self) -> bool {
        let mut buffers = self.buffers.iter().zip(&*other.buffers);
        buffers.all(|(own, new)| {
            own.dims().last() == new.dims().last()
                && own.dtype() == new.dtype()
                && own.device().same_device(new.device())
        })
    }

    /// Returns the last `n` rows of keys and values, with zeros before the first.
    fn lengthened(&self, n: usize) -> Result<[Tensor; 2]> {
        let (keys, values) = self.views()?;
        let lengthen = |rows: Tensor| {
            let (batch, found, width) = rows.dims3()?;
            if found == n {
                return Ok(rows);
            }
            ops::record("cat", &rows)?;
            let shape = (batch, n - found, width);
            let zeros = Tensor::zeros(shape, rows.dtype(), rows.device())?;
            Tensor::cat(&[zeros, rows], 1)
        };
        Ok([lengthen(keys)?, lengthen(values)?])
    }

    /// Returns the device of the rows.
    pub fn device(&self) -> Device {
        self.buffers[0].device().clone()
    }

    /// Returns the keys and the values as views.
    pub fn views(&self) -> Result<(Tensor, Tensor)> {
        let [keys, values] = &*self.buffers;
        let view = |of: &Tensor| of.narrow(1, self.kept.start, self.kept.len());
        Ok((view(keys)?, view(values)?))
    }

    /// Returns the bytes that the rows take.
    pub fn bytes(&self) -> usize {
        let of = |rows: &Tensor| {
            let per_position = rows.elem_count() / rows.dims()[1].max(1);
            self.len() * per_position * rows.dtype().size_in_bytes()
        };
        self.buffers.iter().map(of).sum()
    }

    /// Returns how many rows each sequence has.
    pub fn len(&self) -> usize {
        self.kept.len()
    }
}

/// Returns the given sequences' rows.
#[doc(hidden)]
pub fn of_sequences(rows: &Tensor, sequences: &[usize]) -> Result<Tensor> {
    let rows = sequences.iter().map(|&of| rows.narrow(0, of, 1));
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

/// Allocates buffers for twice `n` rows.
fn buffers(like: [&Tensor; 2], n: usize) -> Result<Arc<[Tensor; 2]>> {
    let buffer = |like: &Tensor| {
        let (batch, _, width) = like.dims3()?;
        ops::record("zeros", like)?;
        if like.device().is_cpu() {
            check_pass(batch * 2 * n * width * like.dtype().size_in_bytes())?;
        }
        Tensor::zeros((batch, 2 * n, width), like.dtype(), like.device())
    };
    Ok(Arc::new([buffer(like[0])?, buffer(like[1])?]))
}

/// Writes rows into a buffer, beginning at row `at`.
fn write(rows: &Tensor, to: &Tensor, at: usize) -> Result<()> {
    match rows.elem_count() {
        0 => Ok(()),
        _ => {
            ops::record("cat", rows)?;
            to.slice_set(&rows.contiguous()?, 1, at)
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Storage};

    use super::*;

    const BATCH: usize = 3;

    /// Returns keys for `n` positions from `at` on, and values with another width. Each `branch` has different
    /// values.
    fn rows(branch: usize, at: usize, n: usize) -> Result<[Tensor; 2]> {
        let of = |width: usize| {
            let row = move |b, p| {
                (0..width).map(move |w| (((branch * 100 + p) * 10 + b) * 10 + w) as u32)
            };
            let all = (0..BATCH).flat_map(move |b| (at..at + n).flat_map(move |p| row(b, p)));
            Tensor::from_vec(all.collect::<Vec<_>>(), (BATCH, n, width), &Device::Cpu)?
                .to_dtype(DType::F32)
        };
        Ok([of(4)?, of(2)?])
    }

    /// Returns the keys' and the values' addresses.
    fn addresses(of: &CachedRows) -> [usize; 2] {
        [&of.buffers[0], &of.buffers[1]].map(|buffer| match &*buffer.storage_and_layout().0 {
            Storage::Cpu(numbers) => numbers.as_slice::<f32>().unwrap().as_ptr() as usize,
            _ => panic!("not on the CPU"),
        })
    }

    /// The expected rows, joined with `Tensor::cat`.
    struct Joined([Tensor; 2]);

    impl Joined {
        fn append(&mut self, new: &[Tensor; 2], keep: usize) -> Result<()> {
            for (old, new) in self.0.iter_mut().zip(new) {
                let kept = old.narrow(1, old.dim(1)? - keep, keep)?;
                *old = Tensor::cat(&[&kept, new], 1)?;
            }
            Ok(())
        }

        fn assert_are(&self, of: &CachedRows, what: &str) -> Result<()> {
            let numbers = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            let (keys, values) = of.views()?;
            for (ours, theirs) in [&keys, &values].into_iter().zip(&self.0) {
                assert_eq!(ours.dims(), theirs.dims(), "{what}");
                assert_eq!(numbers(ours)?, numbers(theirs)?, "{what}");
            }
            Ok(())
        }
    }

    /// Appends the same rows to both, and compares them.
    fn go_on(
        ours: &mut CachedRows,
        theirs: &mut Joined,
        new: &[Tensor; 2],
        window: usize,
        what: &str,
    ) -> Result<()> {
        let keep = ours.len().min(window - 1);
        ours.append([&new[0], &new[1]], keep)?;
        theirs.append(new, keep)?;
        theirs.assert_are(ours, what)
    }

    /// Appends past the capacity at every length. Clones made on the way continue independently.
    #[test]
    fn rows_are_those_of_joined_tensors() -> Result<()> {
        for (first, chunk) in [(1, 1), (1, 2), (2, 5), (7, 1), (40, 1), (3, 40)] {
            for window in [1, 2, 3, 8, 1000] {
                let begun = rows(0, 0, first)?;
                let mut ours = CachedRows::of([&begun[0], &begun[1]])?;
                let mut theirs = Joined(begun);
                for step in 0..30 {
                    let what = format!("{first} + {step} · {chunk}, window {window}");
                    let at = first + step * chunk;
                    let (mut other, mut of_other) = (ours.clone(), Joined(theirs.0.clone()));
                    let news = [
                        rows(1, at, chunk)?,
                        rows(0, at, chunk)?,
                        rows(1, at + chunk, chunk)?,
                    ];
                    go_on(&mut other, &mut of_other, &news[0], window, &what)?;
                    go_on(&mut ours, &mut theirs, &news[1], window, &what)?;
                    go_on(&mut other, &mut of_other, &news[2], window, &what)?;
                    theirs.assert_are(&ours, &what)?;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn forgotten_positions_are_written_over() -> Result<()> {
        let begun = rows(0, 0, 3)?;
        let mut ours = CachedRows::of([&begun[0], &begun[1]])?;
        let mut theirs = Joined(begun);
        for n in 1..12 {
            let refused = rows(1, 50, n)?;
            ours.append([&refused[0], &refused[1]], ours.len())?;
            ours.forget_last(n);
            theirs.assert_are(&ours, "forgotten")?;
            go_on(&mut ours, &mut theirs, &rows(0, n, 1)?, 1000, "after")?;
        }
        ours.forget_last(1000);
        assert_eq!(ours.len(), 0);
        Ok(())
    }

    /// Otherwise each token would copy all earlier rows.
    #[test]
    fn a_token_is_written_after_those_that_stay_where_they_are() -> Result<()> {
        for (window, most) in [(10_000, 9), (16, 1000 / 16 + 1)] {
            let begun = rows(0, 0, 3)?;
            let mut ours = CachedRows::of([&begun[0], &begun[1]])?;
            let (mut before, mut n_moves) = (addresses(&ours), 0);
            for at in 3..1003 {
                let new = rows(0, at, 1)?;
                ours.append([&new[0], &new[1]], ours.len().min(window - 1))?;
                let after = addresses(&ours);
                n_moves += usize::from(after != before);
                before = after;
            }
            assert!(
                n_moves <= most,
                "moved {n_moves} times with a window of {window}"
            );
        }
        Ok(())
    }

    #[test]
    fn the_last_of_some_clones_writes_where_they_all_began() -> Result<()> {
        let (begun, new) = (rows(0, 0, 3)?, rows(0, 3, 1)?);
        let mut ours = CachedRows::of([&begun[0], &begun[1]])?;
        let before = addresses(&ours);
        let mut other = ours.clone();
        assert_eq!(addresses(&other), before);
        other.append([&new[0], &new[1]], 3)?;
        assert_ne!(addresses(&other), before);
        ours.append([&new[0], &new[1]], 3)?;
        assert_eq!(addresses(&ours), before);
        Ok(())
    }

    #[test]
    fn a_window_gives_back_the_memory_of_a_long_prompt() -> Result<()> {
        let begun = rows(0, 0, 500)?;
        let mut ours = CachedRows::of([&begun[0], &begun[1]])?;
        let new = rows(0, 500, 1)?;
        ours.append([&new[0], &new[1]], 7)?;
        assert!(ours.buffers[0].dim(1)? <= 16);
        Ok(())
    }
}
