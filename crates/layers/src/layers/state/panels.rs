//! Keys and values for a packed attention.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::attention::{Heads, KeyValuePanels, OperandFormat, Origin};
use candle_blocks_kernels::memory::LargePages;
use candle_core::{DType, Device, Result, Tensor};
use half::bf16;

use super::computed::Computed;
use super::latents::LatentRows;
use super::named::{Given, Named, dtype_of, of_numbers};
use super::shape::{CacheShape, Cached, misfit};
use super::{Ledger, different_stacks, reordered};
use crate::layers::packed::padding_seen;
use crate::layers::visit::join;

/// A packed attention's keys and values, to which new positions are appended. Clones share memory until one of them
/// writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panels {
    keys: Option<CachedKeys>,
    /// A sequence lacks the positions of the padding before it.
    computed: Computed,
    /// Pages for the keys and values of all layers. A step reads one layer after the other.
    pages: LargePages,
}

/// The forms in which keys and values are kept.
#[derive(Clone, Debug)]
enum CachedKeys {
    /// The panels of each sequence.
    Panels(Vec<KeyValuePanels>),
    /// Latents, in latent attention.
    Latents(LatentRows),
}

impl CachedKeys {
    fn cached(&self) -> Option<Cached> {
        match self {
            Self::Panels(panels) => panels_shape(panels).map(Cached::Panels),
            Self::Latents(latents) => Some(Cached::Latents(latents.shape())),
        }
    }
}

impl Panels {
    /// Creates an empty state whose keys and values are allocated from `pages`.
    pub fn new(pages: &LargePages) -> Self {
        Self {
            pages: pages.clone(),
            ..Self::default()
        }
    }

    /// Removes all positions and keeps the allocated memory.
    pub fn reset(&mut self) {
        self.computed = Computed::default();
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => panels.iter_mut().for_each(KeyValuePanels::reset),
            Some(CachedKeys::Latents(latents)) => latents.truncate(&[]),
            None => {}
        }
    }

    /// Replaces the batch by the given sequences, in this order. A sequence may be given several times.
    pub fn take_sequences(&mut self, sequences: &[usize]) {
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => reordered(panels, sequences),
            Some(CachedKeys::Latents(latents)) => latents.take_sequences(sequences),
            None => {}
        }
    }

    /// Appends another batch's sequences. `paddings` are the positions that each batch gets as padding before its own.
    ///
    /// # Errors
    /// If the keys of the other batch have another shape.
    pub fn join(&mut self, other: Self, paddings: [usize; 2]) -> Result<()> {
        match (&mut self.keys, other.keys) {
            (Some(CachedKeys::Panels(own)), Some(CachedKeys::Panels(new)))
                if panels_shape(own).map(|of| of.sequence)
                    == panels_shape(&new).map(|of| of.sequence) =>
            {
                own.extend(new);
            }
            (Some(CachedKeys::Latents(own)), Some(CachedKeys::Latents(new)))
                if own.shape().sequence == new.shape().sequence =>
            {
                own.join(new);
            }
            // A layer that reads the keys of another has none of its own.
            (None, None) => {}
            _ => return different_stacks(),
        }
        self.computed.join(other.computed, paddings);
        Ok(())
    }

    /// Returns true if a window has dropped positions that are needed again after the first `seen` positions.
    pub fn lacks(&self, seen: usize) -> bool {
        let has_dropped = match &self.keys {
            Some(CachedKeys::Panels(panels)) => panels.iter().any(|of| of.positions().start > 0),
            _ => false,
        };
        has_dropped && seen < self.computed.first_complete
    }

    /// Removes all but the first `seen` positions, also if a window has dropped some of these. Of these, each sequence
    /// has as many as `of_sequences` says.
    pub fn truncate(&mut self, seen: usize, of_sequences: &[usize]) {
        self.computed.truncate(seen);
        match &mut self.keys {
            Some(CachedKeys::Panels(panels)) => {
                for (i, panels) in panels.iter_mut().enumerate() {
                    panels.truncate(of_sequences.get(i).copied().unwrap_or(0));
                }
            }
            Some(CachedKeys::Latents(latents)) => latents.truncate(of_sequences),
            None => {}
        }
    }

    /// # Errors
    /// If the cached keys have another shape.
    pub fn check(&self, own: Cached) -> Result<()> {
        let keys = self.keys.as_ref().filter(|_| self.computed.positions > 0);
        match keys.and_then(CachedKeys::cached) {
            Some(theirs) if theirs != own => Err(misfit(theirs, own)),
            _ => Ok(()),
        }
    }

    /// Adds the keys and values to a cache's tensors.
    pub fn store(&self, prefix: &str, to: &mut Named) -> Result<()> {
        let numbers = of_numbers(&self.computed.numbers())?;
        to.insert(join(prefix, "numbers"), numbers);
        let positions = self.computed.positions;
        match &self.keys {
            Some(CachedKeys::Panels(panels)) if positions > 0 => store_panels(panels, prefix, to),
            Some(CachedKeys::Latents(latents)) if positions > 0 => latents.store(prefix, to),
            _ => Ok(()),
        }
    }

    /// Replaces the state by that in a cache's tensors, for an attention that keeps rows in this form.
    ///
    /// # Errors
    /// If they are another mixer's.
    pub fn restore(&mut self, own: &OwnRows, given: &Given, ledger: &Ledger) -> Result<()> {
        let numbers = given.numbers("numbers", 2)?;
        self.computed = Computed::restored(given, [numbers[0], numbers[1]], ledger)?;
        if ledger.seen() == 0 {
            return Ok(());
        }
        let lengths = ledger.of_sequences(ledger.seen());
        self.keys = Some(match own.cached {
            Cached::Latents(shape) => {
                CachedKeys::Latents(LatentRows::restored(shape, given, &lengths)?)
            }
            Cached::Panels(shape) => {
                let panels = restored_panels((shape, own.cpu), given, Some(&lengths), &self.pages)?;
                CachedKeys::Panels(panels)
            }
        });
        Ok(())
    }

    /// Returns the bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        match &self.keys {
            Some(CachedKeys::Panels(panels)) => panels.iter().map(panel_bytes).sum(),
            Some(CachedKeys::Latents(latents)) => latents.bytes(),
            None => 0,
        }
    }

    /// Returns the latents, to which new positions are appended. Rows with another shape are dropped.
    pub fn latents(&mut self, shape: CacheShape) -> &mut LatentRows {
        let is_other = |keys: &mut CachedKeys| keys.cached() != Some(Cached::Latents(shape));
        self.keys.take_if(is_other);
        let new = || CachedKeys::Latents(LatentRows::new(shape));
        match self.keys.get_or_insert_with(new) {
            CachedKeys::Latents(latents) => latents,
            CachedKeys::Panels(_) => unreachable!("panels were dropped"),
        }
    }

    /// Returns the panels, to which new positions are appended after the `seen` earlier ones, without the padding before
    /// sequences with these origins. A window drops positions hidden from the new queries. Panels with another
    /// shape are dropped, and an empty batch is resized.
    pub fn own(
        &mut self,
        shape: CacheShape,
        (seen, origins): (usize, Option<&[Origin]>),
        window: Option<usize>,
    ) -> &mut [KeyValuePanels] {
        self.keys.take_if(|keys| match keys {
            CachedKeys::Panels(panels) => panels.iter().any(|of| of.shape() != shape.sequence),
            CachedKeys::Latents(_) => true,
        });
        let new = || CachedKeys::Panels(Vec::new());
        let CachedKeys::Panels(panels) = self.keys.get_or_insert_with(new) else {
            unreachable!("latents were dropped");
        };
        let pages = &self.pages;
        panels.resize_with(shape.batch, || {
            KeyValuePanels::new_in(shape.sequence, pages)
        });
        if let Some(window) = window {
            for (i, panels) in panels.iter_mut().enumerate() {
                let padding = origins.map_or(0, |origins| padding_seen(origins[i]));
                panels.drop_before((seen - padding).saturating_sub(window - 1));
            }
            self.computed.first_complete = seen;
        }
        panels
    }

    /// Sets the number of positions that the layer has computed.
    pub fn computed(&mut self, positions: usize) {
        self.computed.positions = positions;
    }

    /// Returns the number of positions that the layer has computed.
    pub fn end(&self) -> usize {
        self.computed.positions
    }
}

/// The form in which a packed attention keeps rows, and the CPU that packs them.
pub(crate) struct OwnRows {
    pub cached: Cached,
    pub cpu: Cpu,
}

/// Adds each sequence's keys and values to a cache's tensors.
pub(super) fn store_panels(panels: &[KeyValuePanels], prefix: &str, to: &mut Named) -> Result<()> {
    let starts: Vec<usize> = panels.iter().map(|of| of.positions().start).collect();
    to.insert(join(prefix, "starts"), of_numbers(&starts)?);
    for (i, panels) in panels.iter().enumerate() {
        let shape = panels.shape();
        let dtype = dtype_of(shape.stored);
        let dims = (panels.positions().len(), shape.n_kv_heads * shape.head_dim);
        for (name, rows) in ["keys", "values"].into_iter().zip(panels.to_rows()) {
            let rows = Tensor::from_vec(rows, dims, &Device::Cpu)?.to_dtype(dtype)?;
            to.insert(join(prefix, format_args!("{i}.{name}")), rows);
        }
    }
    Ok(())
}

/// Returns each sequence's panels of a cache's tensors. `ends` are the positions after the last ones, if they are known.
///
/// # Errors
/// If they are another attention's.
pub(super) fn restored_panels(
    (shape, cpu): (CacheShape, Cpu),
    given: &Given,
    ends: Option<&[usize]>,
    pages: &LargePages,
) -> Result<Vec<KeyValuePanels>> {
    let starts = given.numbers("starts", shape.batch)?;
    let panels = starts.into_iter().enumerate().map(|(i, start)| {
        let given = given.at(i);
        let n = match ends {
            Some(ends) => ends[i].checked_sub(start),
            None => given
                .dims("keys")
                .map(|dims| dims[0])
                .filter(|_| start == 0),
        };
        let n = n.unwrap_or(0);
        let [keys, values] = ["keys", "values"].map(|name| {
            let rows = given.of_sequence(name, n, shape.sequence)?;
            rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()
        });
        let (keys, values) = (keys?, values?);
        let width = shape.sequence.n_kv_heads * shape.sequence.head_dim;
        let rows = |data| Heads {
            data,
            row_stride: width,
            offset: 0,
        };
        let mut panels = KeyValuePanels::new_in(shape.sequence, pages);
        panels.begin_at(start);
        panels.append(cpu, 0..n, rows(&keys), rows(&values));
        Ok(panels)
    });
    panels.collect()
}

/// Returns the shape of a batch that is not empty.
pub(super) fn panels_shape(panels: &[KeyValuePanels]) -> Option<CacheShape> {
    panels.first().map(|first| CacheShape {
        batch: panels.len(),
        sequence: first.shape(),
    })
}

/// Returns the bytes that keys and values take.
pub(super) fn panel_bytes(panels: &KeyValuePanels) -> usize {
    let shape = panels.shape();
    let elements = 2 * shape.n_kv_heads * shape.head_dim;
    let size = match shape.stored {
        OperandFormat::F32 => size_of::<f32>(),
        OperandFormat::Bf16 => size_of::<bf16>(),
    };
    panels.positions().len() * elements * size
}
