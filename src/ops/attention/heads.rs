//! The heads of a tensor, in either of the two shapes that tensors of heads have.

use candle_core::{Layout, Result, Storage, Tensor, bail};

use super::{super::storage::Float, OP};
use crate::cpu::{parallel, view::View};

/// The shape of a tensor of heads.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `[batch, seq, heads · head_dim]`
    Rows,
    /// `[batch, heads, seq, head_dim]`
    Heads,
}

/// The sizes of a tensor of heads, and its shape.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    pub heads: usize,
    pub seq: usize,
    pub head_dim: usize,
    pub form: Form,
}

impl Sizes {
    pub fn of(tensor: &Tensor, heads: usize) -> Result<Self> {
        Self::of_dims(tensor.dims(), heads)
    }

    fn of_dims(dims: &[usize], heads: usize) -> Result<Self> {
        let (batch, seq, head_dim, form) = match *dims {
            [batch, seq, width] if heads > 0 && width % heads == 0 => {
                (batch, seq, width / heads, Form::Rows)
            }
            [batch, n, seq, head_dim] if n == heads => (batch, seq, head_dim, Form::Heads),
            _ => bail!("{OP}: {dims:?} is nothing of {heads} heads"),
        };
        Ok(Self {
            batch,
            heads,
            seq,
            head_dim,
            form,
        })
    }

    pub fn elements(self) -> usize {
        self.batch * self.heads * self.seq * self.head_dim
    }

    /// Copies heads into the order of the shape; head `head` of sequence `batch` lies without gaps from
    /// `start(batch, head)` on in `pieces`.
    pub fn lay_out<T: Float>(
        self,
        pieces: &[T],
        start: impl Fn(usize, usize) -> usize + Sync,
        y: &mut [T],
    ) {
        assert_eq!(y.len(), self.elements());
        if y.is_empty() {
            return;
        }
        let (heads, head_dim) = (self.heads, self.head_dim);
        // One piece of work: a position of all heads, or one head.
        let chunk = match self.form {
            Form::Rows => heads * head_dim,
            Form::Heads => self.seq * head_dim,
        };
        parallel::for_chunks(y, chunk, |first, y| {
            let index = first / chunk;
            match self.form {
                Form::Rows => {
                    let (batch, position) = (index / self.seq, index % self.seq);
                    for (head, y) in y.chunks_exact_mut(head_dim).enumerate() {
                        let from = start(batch, head) + position * head_dim;
                        y.copy_from_slice(&pieces[from..][..head_dim]);
                    }
                }
                Form::Heads => {
                    let from = start(index / heads, index % heads);
                    y.copy_from_slice(&pieces[from..][..chunk]);
                }
            }
        });
    }
}

/// A tensor's heads, read in place.
#[derive(Clone, Copy)]
pub struct Heads<'a, T> {
    data: &'a [T],
    pub sizes: Sizes,
    /// Elements from one batch, head, position and column to the next.
    strides: [usize; 4],
}

impl<'a, T: Float> Heads<'a, T> {
    pub fn new(data: &'a [T], layout: &Layout, heads: usize) -> Result<Self> {
        let sizes = Sizes::of_dims(layout.dims(), heads)?;
        let strides = match *layout.stride() {
            [batch, position, column] => [batch, sizes.head_dim * column, position, column],
            [batch, head, position, column] => [batch, head, position, column],
            _ => bail!("{OP}: {:?} is nothing of {heads} heads", layout.dims()),
        };
        Ok(Self {
            data: data.get(layout.start_offset()..).unwrap_or(&[]),
            sizes,
            strides,
        })
    }

    /// Heads in rows without gaps.
    pub fn of_rows(data: &'a [T], (batch, seq): (usize, usize), heads: usize) -> Result<Self> {
        let width = data.len() / (batch * seq).max(1);
        Self::new(data, &Layout::contiguous((batch, seq, width)), heads)
    }

    pub fn of_storage(storage: &'a Storage, layout: &Layout, heads: usize) -> Result<Self> {
        match storage {
            Storage::Cpu(storage) => Self::new(storage.as_slice::<T>()?, layout, heads),
            _ => bail!("{OP}: expected a tensor on the CPU"),
        }
    }

    /// Head number `i`, counted through the batches, as `[seq, head_dim]`.
    pub fn matrix(&self, i: usize) -> View<'a, T> {
        let (batch, head) = (i / self.sizes.heads, i % self.sizes.heads);
        let start = batch * self.strides[0] + head * self.strides[1];
        View::new(
            self.data.get(start..).unwrap_or(&[]),
            (self.sizes.seq, self.sizes.head_dim),
            (self.strides[2], self.strides[3]),
        )
    }

    /// Heads `i · n` to `(i + 1) · n`, one below the other, with `map` applied: `[n · seq, head_dim]`.
    pub fn stacked(&self, i: usize, n: usize, map: impl Fn(T) -> T) -> Vec<T> {
        let mut all = Vec::with_capacity(n * self.sizes.seq * self.sizes.head_dim);
        for head in i * n..(i + 1) * n {
            let matrix = self.matrix(head);
            for row in 0..matrix.rows() {
                if matrix.has_whole_rows() {
                    let row = matrix.row(row, 0..matrix.columns());
                    all.extend(row.iter().map(|&x| map(x)));
                } else {
                    all.extend((0..matrix.columns()).map(|column| map(matrix.at(row, column))));
                }
            }
        }
        all
    }
}
