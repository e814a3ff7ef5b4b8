//! Concatenation of heads with other heads, or with one shared head.

use candle_blocks_kernels::{Cpu, threads};
use candle_core::{DType, Result, bail};

use super::kernels::same_type;
use super::numbers::Numbers;
use super::tape::Taped;
use super::value::{Value, on_either};

const OP: &str = "join";

impl Value {
    /// Concatenates each head with the same head in `other`, or with the one that all share.
    ///
    /// # Shapes
    /// `self` `[rows, heads, a]` and `other` `[rows, heads or 1, b]` give `[rows, heads, a + b]`.
    ///
    /// # Errors
    /// If shapes or types do not match, or for half types: see [`Self::widened`].
    pub fn joined(&self, other: &Value) -> Result<Value> {
        let fits = match (self.dims(), other.dims()) {
            (&[rows, heads, _], &[of_rows, others, _]) => {
                rows == of_rows && (others == heads || others == 1)
            }
            _ => false,
        };
        let is_float = matches!(self.dtype(), DType::F32 | DType::F64);
        if !fits || !is_float || self.dtype() != other.dtype() {
            bail!(
                "{OP}: heads {:?} {:?} and {:?} {:?}; expected [rows, heads, ..] and as many heads or one, in F32 or F64",
                self.dtype(),
                self.dims(),
                other.dtype(),
                other.dims()
            );
        }
        on_either!(self, x => Ok(x.joined(&x.on_tape(other)?)?.into()))
    }
}

/// Rows per task.
const ROWS: usize = 64;

impl Taped<Cpu> {
    fn joined(&self, other: &Self) -> Result<Self> {
        let (slots, heads) = ([self.slot.clone(), other.slot.clone()], self.dims()[1]);
        let [own, added] = [&slots[0], &slots[1]].map(|slot| slot.columns.len());
        let dims = vec![self.dims()[0], heads, own + added];
        let sharing = if other.dims()[1] == heads { 1 } else { heads };
        let mut y = Numbers::new(self.dtype(), dims.iter().product())?;
        let threads = threads::threads_for(y.len(), self.engine().threads);
        let (mine, others) = (self.data.read(), other.data.read());
        for (slot, from, share, first) in [
            (&slots[0], mine.slice(), 1, 0),
            (&slots[1], others.slice(), sharing, own),
        ] {
            same_type!(y.slice_mut(), from, |to, from| {
                let width = own + added;
                threads::for_chunks(threads, to, ROWS * width.max(1), |start, rows| {
                    for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                        let at = (start / width + i) / share * slot.width;
                        let from = &from[at..at + slot.width][slot.columns.clone()];
                        row[first..first + from.len()].copy_from_slice(from);
                    }
                });
            });
        }
        let asks = [slots[0].place, slots[1].place];
        Ok(self.computed((y, dims), &asks, move |pass, dy| {
            let [to_own, to_other] = &slots;
            pass.add(to_own, columns(&dy, own + added, 0, own, 1)?)?;
            pass.add(to_other, columns(&dy, own + added, own, added, sharing)?)
        }))
    }
}

/// Returns some columns from rows with `width` elements, summed over each `share` rows.
fn columns(of: &Numbers, width: usize, first: usize, n: usize, share: usize) -> Result<Numbers> {
    let mut sums = Numbers::zeros(of.dtype(), of.len() / width.max(1) / share.max(1) * n)?;
    same_type!(sums.slice_mut(), of.slice(), |sums, of| {
        for (i, row) in of.chunks_exact(width.max(1)).enumerate() {
            let to = &mut sums[i / share * n..][..n];
            for (sum, &x) in to.iter_mut().zip(&row[first..]) {
                *sum += x;
            }
        }
    });
    Ok(sums)
}
