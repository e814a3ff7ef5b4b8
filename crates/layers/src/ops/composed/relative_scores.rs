//! Relative position scores: products between contents and positions, gathered by distance.

use candle_blocks_kernels::attention::ContentOf;
use candle_core::{DType, Device, Result, Tensor};

use crate::ops::mixing::{Mixing, Relative};
use crate::ops::relative_scores::PlacedTerm;
use crate::ops::slot::Slot;

use super::{Array, Composed, Taped};

/// A term whose rows are sorted by head: `[n_heads, rows, head_dim]`.
struct Sorted {
    content: (Array, Slot),
    of: ContentOf,
    table: (Array, Slot),
    /// The table's rows for each content row in a sequence, `[seq, seq]`.
    ids: Array,
}

impl Taped<Composed> {
    pub(in crate::ops) fn relative_scores(
        &self,
        terms: Vec<PlacedTerm<Self>>,
        relative: &Relative,
        mixing: &Mixing,
    ) -> Result<Self> {
        let &Mixing {
            batch,
            queries: seq,
            n_heads,
            ..
        } = mixing;
        let scale = relative.scale;
        let dims = vec![batch, n_heads, seq, seq];
        let asks: Vec<Option<usize>> = terms.iter().flat_map(PlacedTerm::asks).collect();
        if dims.contains(&0) {
            let (zeros, slots) = (self.data.zeros(&dims)?, terms.into_iter());
            let slots = slots.flat_map(|term| [term.content.0, term.table]);
            let slots: Vec<_> = slots
                .map(|of| (of.slot.clone(), of.dims().to_vec()))
                .collect();
            return Ok(self.computed((zeros, dims), &asks, move |pass, dy| {
                let mut slots = slots.iter();
                slots.try_for_each(|(slot, dims)| pass.add(slot, dy.zeros(dims)?))
            }));
        }
        let sorted = |term: &PlacedTerm<Self>| -> Result<Sorted> {
            let by_head = |of: &Self| -> Result<(Array, Slot)> {
                Ok((by_head(&of.view()?, n_heads)?, of.slot.clone()))
            };
            Ok(Sorted {
                content: by_head(&term.content.0)?,
                of: term.content.1,
                table: by_head(&term.table)?,
                ids: ids(term.content.1, relative, mixing, self.data.device())?,
            })
        };
        let terms = terms.iter().map(sorted).collect::<Result<Vec<_>>>()?;
        let mut scores = self.data.zeros(&dims)?;
        for term in &terms {
            scores = scores.add(&term.scores([batch, n_heads, seq], scale)?)?;
        }
        Ok(self.computed((scores, dims), &asks, move |pass, dy| {
            for term in &terms {
                let (dcontent, dtable) = term.gradients([batch, n_heads, seq], scale, &dy)?;
                for ((_, slot), gradient) in [(&term.content, dcontent), (&term.table, dtable)] {
                    if slot.place.is_some() {
                        let gradient = gradient.transpose(0, 1)?.contiguous()?;
                        pass.add(
                            slot,
                            gradient.reshape(&[gradient.dims()[0], slot.columns.len()])?,
                        )?;
                    }
                }
            }
            Ok(())
        }))
    }
}

impl Sorted {
    /// `[batch, n_heads, queries, keys]`
    fn scores(&self, [batch, n_heads, seq]: [usize; 3], scale: f64) -> Result<Array> {
        let (content, table) = (&self.content.0, &self.table.0);
        let products = content
            .matmul(&table.transpose(1, 2)?)?
            .affine(scale, 0.0)?;
        let ids = self.ids_of(batch * n_heads)?;
        let found = products.rows()?.gather(&ids)?;
        let found = found
            .reshape(&[n_heads, batch, seq, seq])?
            .transpose(0, 1)?;
        match self.of {
            ContentOf::Queries => Ok(found),
            ContentOf::Keys => found.transpose(2, 3),
        }
    }

    /// Computes the content's and the table's gradients, sorted by head, given the scores' gradient.
    fn gradients(
        &self,
        [batch, n_heads, seq]: [usize; 3],
        scale: f64,
        dscores: &Array,
    ) -> Result<(Array, Array)> {
        let (content, table) = (&self.content.0, &self.table.0);
        let dscores = dscores
            .reshape(&[batch, n_heads, seq, seq])?
            .transpose(0, 1)?;
        let dscores = match self.of {
            ContentOf::Queries => dscores,
            ContentOf::Keys => dscores.transpose(2, 3)?,
        };
        let (n_rows, n_table) = (n_heads * batch * seq, table.dims()[1]);
        let dscores = dscores.affine(scale, 0.0)?.reshape(&[n_rows, seq])?;
        let zeros = dscores.zeros(&[n_rows, n_table])?;
        let dproducts = zeros.scatter_add(&self.ids_of(batch * n_heads)?, &dscores)?;
        let dproducts = dproducts.reshape(&[n_heads, batch * seq, n_table])?;
        let dtable = dproducts.transpose(1, 2)?.matmul(content)?;
        Ok((dproducts.matmul(table)?, dtable))
    }

    /// Returns the row indices for `n` stacked sequences.
    fn ids_of(&self, n: usize) -> Result<Array> {
        let seq = self.ids.width();
        let all = self.ids.zeros(&[n, seq, seq])?.add(&self.ids)?;
        all.reshape(&[n * seq, seq])
    }
}

/// Converts rows `[.., n_heads · head_dim]` to `[n_heads, rows, head_dim]`.
fn by_head(x: &Array, n_heads: usize) -> Result<Array> {
    let rows = x.rows()?;
    let dims = [rows.dims()[0], n_heads, rows.width() / n_heads];
    rows.reshape(&dims)?.transpose(0, 1)?.contiguous()
}

/// Returns the table row that each content row uses for each other row.
fn ids(of: ContentOf, relative: &Relative, mixing: &Mixing, device: &Device) -> Result<Array> {
    let (seq, rows) = (mixing.queries, relative.rows);
    let text = format!("distances {of:?} {seq} {}", relative.name);
    let table = mixing.constants.table(text, (DType::U32, device), || {
        let pair = |row: usize, other: usize| match of {
            ContentOf::Queries => rows[row + seq - 1 - other],
            ContentOf::Keys => rows[other + seq - 1 - row],
        };
        let all = (0..seq).flat_map(|row| (0..seq).map(move |other| pair(row, other)));
        let all = Tensor::from_vec(all.collect::<Vec<u32>>(), (seq, seq), &Device::Cpu)?;
        Array::of(&all).moved_to(device).map(Array::into_tensor)
    })?;
    Ok(Array::of(&table))
}
