//! `softmax(scale · q·kᵀ)·v` for every head, keeping nothing for the backward pass but its inputs.
//!
//! Composed of its parts, attention would leave scores and probabilities `[batch, heads, queries, keys]` in the graph,
//! and every reshape and transpose between them a node through which candle copies the gradient twice. Here a task
//! has one key/value head of one sequence; the backward pass computes its probabilities again, as FlashAttention does
//! (Dao et al. 2022, <https://arxiv.org/abs/2205.14135>).

use candle_core::{
    CpuStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor, WithDType,
    backend::BackendStorage, bail, utils::get_num_threads,
};

use super::{
    linear::{selected_isa, with_product},
    softmax::{Reach, Visible, check_keep},
    storage::{Float, cotangent, gradient, tensor_slice},
};
use crate::cpu::{
    Element,
    gemm::{self, Epilogue, Plain},
    isa::Isa,
    parallel,
    softmax::{self, Seen},
    view::View,
};

const OP: &str = "attention";

/// How the heads of queries, keys and values meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing<'a> {
    /// Heads of the queries: a multiple of `n_kv_heads`, those of one key/value head side by side.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Factor on the queries.
    pub scale: f64,
    /// What each query sees.
    pub visible: &'a Visible<'a>,
}

/// `softmax(scale · q·kᵀ)·v` per head, of what each query sees; on the CPU, in f32 or f64.
///
/// The bits are those of [`super::batched_product`] and [`super::attention_softmax`] one after the other.
///
/// # Shapes
/// `query`, `key` and `value` each `[batch, seq, heads · head_dim]` or `[batch, heads, seq, head_dim]`, views or not;
/// to `[batch, queries, n_heads · head_dim]`.
///
/// # Errors
/// If shapes or types do not fit.
pub(crate) fn mix(query: &Tensor, key: &Tensor, value: &Tensor, mixing: &Mixing) -> Result<Tensor> {
    let Mixing {
        n_heads,
        n_kv_heads,
        scale,
        visible,
    } = *mixing;
    let of_query = Sizes::of(query, n_heads)?;
    let (of_key, of_value) = (Sizes::of(key, n_kv_heads)?, Sizes::of(value, n_kv_heads)?);
    let fits = n_heads % n_kv_heads == 0
        && of_query.batch == of_key.batch
        && of_query.head_dim == of_key.head_dim
        && (of_key.batch, of_key.seq) == (of_value.batch, of_value.seq)
        && [key.dtype(), value.dtype()] == [query.dtype(); 2];
    if !fits {
        bail!(
            "{OP}: queries {:?} {:?} in {n_heads} heads do not fit keys {:?} {:?} and values {:?} {:?} in {n_kv_heads}",
            query.dtype(),
            query.dims(),
            key.dtype(),
            key.dims(),
            value.dtype(),
            value.dims()
        );
    }
    check_keep(visible, query, (of_key.batch, of_key.seq))?;
    query.apply_op3(
        key,
        value,
        Mix {
            n_heads,
            n_kv_heads,
            scale,
            keep: visible.keep.map(Tensor::contiguous).transpose()?,
            reach: Reach::of(visible),
        },
    )
}

struct Mix {
    n_heads: usize,
    n_kv_heads: usize,
    scale: f64,
    keep: Option<Tensor>, // [batch, keys]
    reach: Reach,
}

impl CustomOp3 for Mix {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_product!(OP, query.dtype(), T => {
            let query = Heads::new(query.as_slice::<T>()?, query_layout, self.n_heads)?;
            let key = Heads::new(key.as_slice::<T>()?, key_layout, self.n_kv_heads)?;
            let value = Heads::new(value.as_slice::<T>()?, value_layout, self.n_kv_heads)?;
            self.with_task(query, key, value, |task| {
                let width = self.n_heads * value.sizes.head_dim;
                let shape = Shape::from((query.sizes.batch, query.sizes.seq, width));
                (T::to_cpu_storage_owned(task.forward_all()), shape)
            })
        })
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(OP, grad)?;
        with_product!(OP, query.dtype(), T => {
            let (dy, dy_layout) = grad.storage_and_layout();
            let (q, q_layout) = query.storage_and_layout();
            let (k, k_layout) = key.storage_and_layout();
            let (v, v_layout) = value.storage_and_layout();
            let dy = Heads::<T>::of_storage(&dy, dy_layout, self.n_heads)?;
            let q = Heads::<T>::of_storage(&q, q_layout, self.n_heads)?;
            let k = Heads::<T>::of_storage(&k, k_layout, self.n_kv_heads)?;
            let v = Heads::<T>::of_storage(&v, v_layout, self.n_kv_heads)?;
            let [dq, dk, dv] = self.with_task(q, k, v, |task| task.backward_all(dy))?;
            let wanted = |values, of: &Tensor| of.track_op().then(|| gradient(values, of)).transpose();
            Ok((wanted(dq, query)?, wanted(dk, key)?, wanted(dv, value)?))
        })
    }
}

impl Mix {
    fn with_task<T: Float + Plain, R>(
        &self,
        query: Heads<T>,
        key: Heads<T>,
        value: Heads<T>,
        run: impl FnOnce(&Task<T>) -> R,
    ) -> Result<R> {
        let keep = self.keep.as_ref().map(Tensor::storage_and_layout);
        let keep: Option<&[u8]> = match &keep {
            Some((storage, layout)) => Some(tensor_slice(OP, storage, layout)?),
            None => None,
        };
        Ok(run(&Task {
            isa: selected_isa()?,
            query,
            key,
            value,
            scale: <T as WithDType>::from_f64(self.scale),
            keep,
            reach: self.reach,
        }))
    }
}

/// Attention of whole tensors; a piece of work is one key/value head of one sequence.
struct Task<'a, T> {
    isa: Isa,
    query: Heads<'a, T>,
    key: Heads<'a, T>,
    value: Heads<'a, T>,
    scale: T,
    keep: Option<&'a [u8]>,
    reach: Reach,
}

impl<T: Float + Plain> Task<'_, T> {
    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.query.sizes.heads / self.key.sizes.heads
    }

    /// `[batch, queries, n_heads · head_dim]`
    fn forward_all(&self) -> Vec<T> {
        let (group, sizes) = (self.group(), self.value.sizes);
        let length = group * self.query.sizes.seq * sizes.head_dim;
        let mut pieces = zeros(sizes.batch * sizes.heads * length);
        if pieces.is_empty() || sizes.seq == 0 {
            return pieces; // who sees no key gets zeros
        }
        parallel::for_pieces(self.threads(), &mut pieces, length, |i, y| {
            let query = self.stacked_queries(i);
            multiply(
                self.isa,
                rows(&self.probabilities(i, &query), sizes.seq),
                self.value.matrix(i),
                y,
            );
        });
        let sizes = Sizes {
            heads: self.query.sizes.heads,
            seq: self.query.sizes.seq,
            form: Form::Rows,
            ..sizes
        };
        let head = sizes.seq * sizes.head_dim;
        sizes.laid_out(&pieces, |batch, i| (batch * sizes.heads + i) * head)
    }

    /// Gradients of query, key and value, each as its tensor lies in memory without gaps.
    fn backward_all(&self, dy: Heads<T>) -> [Vec<T>; 3] {
        let all = [self.query.sizes, self.key.sizes, self.value.sizes];
        let n_tasks = all[1].batch * all[1].heads;
        let lengths = all.map(|sizes| sizes.elements() / n_tasks.max(1));
        let length: usize = lengths.iter().sum();
        let mut pieces = zeros(n_tasks * length); // of each task dq, dk, dv
        if pieces.is_empty() || all[1].seq == 0 {
            return all.map(|sizes| zeros(sizes.elements()));
        }
        parallel::for_pieces(self.threads(), &mut pieces, length, |i, gradients| {
            let (dq, rest) = gradients.split_at_mut(lengths[0]);
            let (dk, dv) = rest.split_at_mut(lengths[1]);
            self.backward(i, dy, dq, dk, dv);
        });
        let starts = [0, lengths[0], lengths[0] + lengths[1]];
        [0, 1, 2].map(|which| {
            let sizes = all[which];
            let per_task = sizes.heads / all[1].heads;
            let head = sizes.seq * sizes.head_dim;
            sizes.laid_out(&pieces, |batch, i| {
                let task = batch * all[1].heads + i / per_task;
                task * length + starts[which] + i % per_task * head
            })
        })
    }

    /// With `p` the probabilities and `dp = dy·vᵀ`: `dv = pᵀ·dy`, `ds = p · (dp - Σ p·dp)`, `dq = scale · ds·k`,
    /// `dk = dsᵀ·(scale · q)`.
    fn backward(&self, i: usize, dy: Heads<T>, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
        let (isa, keys) = (self.isa, self.key.sizes.seq);
        let query = self.stacked_queries(i);
        let dy = dy.stacked(i, self.group(), |x| x);
        let p = self.probabilities(i, &query);
        let dy = rows(&dy, self.value.sizes.head_dim);
        multiply(isa, rows(&p, keys).transposed(), dy, dv);
        let mut dp = zeros(p.len());
        multiply(isa, dy, self.value.matrix(i).transposed(), &mut dp);
        let mut ds = zeros(p.len());
        softmax::backward_here(isa, &p, &dp, &mut ds, keys);
        let ds = rows(&ds, keys);
        multiply(isa, ds, self.key.matrix(i), dq);
        for dq in dq {
            *dq *= self.scale;
        }
        let query = rows(&query, self.query.sizes.head_dim);
        multiply(isa, ds.transposed(), query, dk);
    }

    /// A task's queries times the scale, head after head: `[group · queries, head_dim]`.
    fn stacked_queries(&self, i: usize) -> Vec<T> {
        self.query.stacked(i, self.group(), |x| x * self.scale)
    }

    /// `[group · queries, keys]`
    fn probabilities(&self, i: usize, query: &[T]) -> Vec<T> {
        let (queries, keys) = (self.query.sizes.seq, self.key.sizes.seq);
        let query = rows(query, self.query.sizes.head_dim);
        let mut scores = zeros(query.rows() * keys);
        let key = self.key.matrix(i).transposed();
        multiply(self.isa, query, key, &mut scores);
        let batch = i / self.key.sizes.heads;
        let keep = self.keep.map(|keep| &keep[batch * keys..][..keys]);
        let mut probabilities = zeros(scores.len());
        softmax::forward_here(self.isa, &scores, &mut probabilities, keys, |row| Seen {
            range: self.reach.range(row % queries, keys),
            keep,
        });
        probabilities
    }

    fn threads(&self) -> usize {
        let work = self.query.sizes.elements() * self.key.sizes.seq;
        if work < PARALLEL_FROM {
            1
        } else {
            get_num_threads()
        }
    }
}

/// Fewer multiplications than this stay on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;

fn zeros<T: Float>(len: usize) -> Vec<T> {
    vec![<T as Element>::ZERO; len]
}

/// Rows without gaps.
fn rows<T: Float>(data: &[T], width: usize) -> View<'_, T> {
    View::new(data, (data.len() / width.max(1), width), (width, 1))
}

/// On the calling thread.
fn multiply<T: Plain>(isa: Isa, a: View<T>, b: View<T>, y: &mut [T]) {
    gemm::multiply(isa, a, b, &Epilogue::NONE, y, 1);
}

/// How a tensor names its heads.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// `[batch, seq, heads · head_dim]`
    Rows,
    /// `[batch, heads, seq, head_dim]`
    Heads,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    heads: usize,
    seq: usize,
    head_dim: usize,
    form: Form,
}

impl Sizes {
    fn of(tensor: &Tensor, heads: usize) -> Result<Self> {
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

    fn elements(self) -> usize {
        self.batch * self.heads * self.seq * self.head_dim
    }

    /// In the order of the form, from heads that each lie without gaps from `start(batch, head)` on.
    fn laid_out<T: Float>(
        self,
        pieces: &[T],
        start: impl Fn(usize, usize) -> usize + Sync,
    ) -> Vec<T> {
        let mut y = zeros(self.elements());
        if y.is_empty() {
            return y;
        }
        let (heads, head_dim) = (self.heads, self.head_dim);
        // A position of all heads, or a head.
        let chunk = match self.form {
            Form::Rows => heads * head_dim,
            Form::Heads => self.seq * head_dim,
        };
        parallel::for_chunks(&mut y, chunk, |first, y| {
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
        y
    }
}

/// A tensor's heads, as they lie.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    data: &'a [T],
    sizes: Sizes,
    /// Of batch, head, position and column.
    strides: [usize; 4],
}

impl<'a, T: Float> Heads<'a, T> {
    fn new(data: &'a [T], layout: &Layout, heads: usize) -> Result<Self> {
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

    fn of_storage(storage: &'a Storage, layout: &Layout, heads: usize) -> Result<Self> {
        match storage {
            Storage::Cpu(storage) => Self::new(storage.as_slice::<T>()?, layout, heads),
            _ => bail!("{OP}: expected a tensor on the CPU"),
        }
    }

    /// Head number `i`, heads within batches: `[seq, head_dim]`.
    fn matrix(&self, i: usize) -> View<'a, T> {
        let (batch, head) = (i / self.sizes.heads, i % self.sizes.heads);
        let start = batch * self.strides[0] + head * self.strides[1];
        View::new(
            self.data.get(start..).unwrap_or(&[]),
            (self.sizes.seq, self.sizes.head_dim),
            (self.strides[2], self.strides[3]),
        )
    }

    /// `map` of the `i`th `n` heads, one below the other: `[n · seq, head_dim]`.
    fn stacked(&self, i: usize, n: usize, map: impl Fn(T) -> T) -> Vec<T> {
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

#[cfg(test)]
mod tests;
