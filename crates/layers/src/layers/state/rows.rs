//! Keys and values for an attention that is not packed.

use candle_core::{Device, Result, Tensor, bail};

use super::cached_rows::CachedRows;
use super::computed::Computed;
use super::named::{Given, Named, of_numbers};
use super::{Ledger, different_stacks};
use crate::layers::visit::join;

/// The keys and values of one attention, `[batch, kept, n_kv_heads · head_dim]`. For latent attention, the latents
/// and shared keys as one head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    n_kv_heads: usize,
    rows: Option<CachedRows>,
    computed: Computed,
    /// A window has dropped rows of some sequence.
    has_dropped: bool,
}

impl Rows {
    /// Appends new keys and values; returns all rows that the new queries may see. With a window of `w`, the oldest
    /// new query sees `w - 1` earlier keys, and older rows are dropped.
    ///
    /// # Errors
    /// If batch, dtype or width differ from those in the cache. The cache is then unchanged.
    pub fn append(
        &mut self,
        (key, value): (&Tensor, &Tensor),
        n_kv_heads: usize,
        window: Option<usize>,
    ) -> Result<(Tensor, Tensor)> {
        let rows = match &mut self.rows {
            None => self.rows.insert(CachedRows::of([key, value])?),
            Some(rows) => {
                let (old, _) = rows.views()?;
                let (batch, _, width) = old.dims3()?;
                let fits = (batch, key.dim(1)?, width) == key.dims3()?
                    && n_kv_heads == self.n_kv_heads
                    && old.dtype() == key.dtype();
                if !fits {
                    bail!(
                        "the cache holds a batch of {batch} with {} key/value heads of {} in {:?}, but the new keys have shape {:?} with {n_kv_heads} heads in {:?}; make another cache with new_cache",
                        self.n_kv_heads,
                        width / self.n_kv_heads,
                        old.dtype(),
                        key.dims(),
                        key.dtype()
                    );
                }
                let keep = window.map_or(rows.len(), |w| rows.len().min(w - 1));
                if window.is_some() {
                    self.computed.first_complete = self.computed.positions;
                }
                self.has_dropped |= keep < rows.len();
                rows.append([key, value], keep)?;
                rows
            }
        };
        self.computed.positions += key.dim(1)?;
        self.n_kv_heads = n_kv_heads;
        rows.views()
    }

    /// Adds the keys and values to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        let has_dropped = usize::from(self.has_dropped);
        let [positions, first_complete] = self.computed.numbers();
        let numbers = [self.n_kv_heads, positions, first_complete, has_dropped];
        to.insert(join(prefix, "numbers"), of_numbers(&numbers)?);
        if let Some(rows) = &self.rows {
            let (keys, values) = rows.views()?;
            to.insert(join(prefix, "keys"), keys);
            to.insert(join(prefix, "values"), values);
        }
        Ok(())
    }

    /// Returns the keys and values in a cache's tensors.
    ///
    /// # Errors
    /// If they are another mixer's.
    pub fn restored(given: &Given, ledger: &Ledger) -> Result<Self> {
        let numbers = given.numbers("numbers", 4)?;
        let mut made = Self {
            n_kv_heads: numbers[0],
            rows: None,
            computed: Computed::restored(given, [numbers[1], numbers[2]], ledger)?,
            has_dropped: numbers[3] != 0,
        };
        if ledger.seen() == 0 {
            return Ok(made);
        }
        let [keys, values] = ["keys", "values"].map(|name| given.tensor(name, 3, ledger.batch()));
        let (keys, values) = (keys?, values?);
        let (_, kept, width) = keys.dims3()?;
        let has_heads = numbers[0] > 0 && width.is_multiple_of(numbers[0]);
        if !has_heads || values.dim(1)? != kept || kept > ledger.seen() {
            let expected = format!("at most {} rows of whole heads", ledger.seen());
            return given.misfit("keys", &keys, expected);
        }
        made.rows = Some(CachedRows::of([&keys, &values])?);
        Ok(made)
    }

    /// Returns the bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, CachedRows::bytes)
    }

    /// Returns true if a window has dropped positions that are needed again after the first `seen` positions.
    pub fn lacks(&self, seen: usize) -> bool {
        self.has_dropped && seen < self.computed.first_complete
    }

    /// Removes the positions from `seen` on.
    pub fn truncate(&mut self, seen: usize) {
        match &mut self.rows {
            Some(rows) if seen > 0 => {
                rows.forget_last(self.computed.positions.saturating_sub(seen))
            }
            _ => (self.rows, self.has_dropped) = (None, false),
        }
        self.computed.truncate(seen);
    }

    /// Appends another batch's sequences. `paddings` are the positions that each batch gets as padding before its own.
    ///
    /// # Errors
    /// If the keys of the other batch have another shape or dtype.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) -> Result<()> {
        match (&mut self.rows, other.rows) {
            (Some(own), Some(new)) if self.n_kv_heads == other.n_kv_heads && own.is_like(&new) => {
                own.join(&new)?;
            }
            // A layer that reads the keys of another has none of its own.
            (None, None) => {}
            _ => return different_stacks(),
        }
        self.computed.join(other.computed, paddings);
        self.has_dropped |= other.has_dropped;
        Ok(())
    }

    /// Returns the device of the keys and values; the CPU if there are none.
    pub fn device(&self) -> Device {
        let rows = self.rows.as_ref();
        rows.map_or(Device::Cpu, CachedRows::device)
    }

    /// Replaces the batch by copies of the given sequences.
    pub fn take_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match &mut self.rows {
            Some(rows) => rows.keep_sequences(sequences),
            None => Ok(()),
        }
    }
}
