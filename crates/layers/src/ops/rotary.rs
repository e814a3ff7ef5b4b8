//! Rotary position embedding, given cosines and sines.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::rows::rotary::{Direction, Pairing, Rotation};
use candle_core::{Result, Tensor, bail};

use super::tape::{Reads, Taped, check_float};
use super::value::{Value, on_either};
use super::{array::wide, kernels::Data, numbers::Numbers};
use crate::config::RotaryPairing;

const OP: &str = "rotate";

/// Rotates the first `2·pairs` dimensions in every head, pair by pair: `(a, b)` becomes `(a cos - b sin, b cos + a
/// sin)` (Su et al. 2021, <https://arxiv.org/abs/2104.09864>).
///
/// # Shapes
/// `x` is `[batch, n_heads, seq, head_dim]`, `cos` and `sin` are `[batch or 1, seq, pairs]`. The result has `x`'s
/// shape. The tables get no gradient.
///
/// # Errors
/// If shapes or types do not match.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Tensor> {
    check_float(OP, x)?;
    if x.rank() != 4 {
        let found = x.dims();
        bail!("{OP}: {found:?}, expected [batch, n_heads, seq, head_dim]");
    }
    let rows = Value::of(&x.transpose(1, 2)?)?;
    rows.rotate(cos, sin, pairing)?.tensor()?.transpose(1, 2)
}

impl Value {
    /// Like [`rotate()`], for `[batch, seq, n_heads, head_dim]`.
    pub fn rotate(&self, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Value> {
        let [batch, seq, _, head_dim] = *self.dims() else {
            let found = self.dims();
            bail!("{OP}: {found:?}, expected [batch, seq, n_heads, head_dim]");
        };
        let (tables, rows, pairs) = cos.dims3()?;
        let fits = sin.dims() == cos.dims()
            && rows == seq
            && (tables == 1 || tables == batch)
            && 2 * pairs <= head_dim;
        let in_type = |table: &Tensor| match self {
            Self::Kernels(_) => table.dtype() == self.dtype(),
            Self::Composed(_) => wide(table.dtype()) == wide(self.dtype()),
        };
        if !fits || !in_type(cos) || !in_type(sin) {
            bail!(
                "{OP}: cos {:?} {:?} and sin {:?} do not fit an input of {:?} {:?}",
                cos.dtype(),
                cos.dims(),
                sin.dims(),
                self.dtype(),
                self.dims()
            );
        }
        on_either!(self, x => Ok(x.rotate(cos, sin, pairing)?.into()))
    }
}

impl Taped<Cpu> {
    fn rotate(&self, cos: &Tensor, sin: &Tensor, pairing: RotaryPairing) -> Result<Self> {
        let x = self.whole()?;
        let [_, seq, heads, head_dim] = *x.dims() else {
            bail!(
                "{OP}: {:?}, expected [batch, seq, n_heads, head_dim]",
                x.dims()
            );
        };
        let (tables, _, pairs) = cos.dims3()?;
        let step = RotaryStep {
            // Nothing writes to the tables.
            cos: x.parameter(&cos.detach(), Reads::Forward)?.0,
            sin: x.parameter(&sin.detach(), Reads::Forward)?.0,
            tables,
            sizes: [seq, heads, head_dim, pairs],
            pairing: pairing.into(),
        };
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        step.with(Direction::Forward, |rotation| {
            rotation.apply(x.engine(), x.data.read().slice(), y.slice_mut());
        });
        let slot = x.slot.clone();
        // The transposed rotation is the rotation by the negative angle.
        Ok(x.mapped(y, &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(dy.dtype(), dy.len())?;
            step.with(Direction::Back, |rotation| {
                rotation.apply(pass.engine, dy.slice(), dx.slice_mut());
            });
            pass.add(&slot, dx)
        }))
    }
}

struct RotaryStep {
    cos: Data,
    sin: Data,
    /// Table count: one for all sequences, or one for each.
    tables: usize,
    /// Positions, heads, dimensions per head, pairs.
    sizes: [usize; 4],
    pairing: Pairing,
}

impl RotaryStep {
    fn with(&self, direction: Direction, work: impl FnOnce(&Rotation)) {
        let [seq, heads, head_dim, pairs] = self.sizes;
        let rows = self.tables * seq;
        work(&Rotation {
            head_dim,
            pairs,
            pairing: self.pairing,
            direction,
            cos: self.cos.read().slice(),
            sin: self.sin.read().slice(),
            table_row: &|head| head / heads % rows,
        });
    }
}

impl From<RotaryPairing> for Pairing {
    fn from(pairing: RotaryPairing) -> Self {
        match pairing {
            RotaryPairing::Halves => Self::Halves,
            RotaryPairing::Interleaved => Self::Interleaved,
        }
    }
}
