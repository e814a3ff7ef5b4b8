//! `softmax(scale · q·kᵀ)·v` for every head, which keeps nothing for the backward pass but its inputs.
//!
//! Composed of separate operations, attention would keep scores and probabilities `[batch, heads, queries, keys]`
//! in the graph, and every reshape and transpose between them would be a node through which candle copies the
//! gradient twice. Here a task is one key/value head of one sequence; the backward pass computes its probabilities
//! again, as FlashAttention does (Dao et al. 2022, <https://arxiv.org/abs/2205.14135>).

mod heads;
mod task;

use candle_core::{
    CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType, backend::BackendStorage, bail,
};

use super::{
    linear::{selected_isa, with_product},
    softmax::{Reach, Visible, check_keep},
    storage::{Float, cotangent, gradient, tensor_slice},
};
use crate::cpu::{Element, gemm::Plain, recycled::Recycled};

pub(super) use heads::Heads;
use heads::Sizes;
use task::Task;

const OP: &str = "attention";

/// How the heads of queries, keys and values are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing<'a> {
    /// Heads of the queries: a multiple of `n_kv_heads`; those that share a key/value head are consecutive.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Factor on the queries.
    pub scale: f64,
    /// What each query sees.
    pub visible: &'a Visible<'a>,
}

/// `softmax(scale · q·kᵀ)·v` per head, over the keys that each query sees; on the CPU, in f32 or f64.
///
/// The bits are those of [`super::batched_product()`] and [`super::attention_softmax`], one after the other.
///
/// # Shapes
/// `query`, `key` and `value` each `[batch, seq, heads · head_dim]` or `[batch, heads, seq, head_dim]`,
/// contiguous or not; the result is `[batch, queries, n_heads · head_dim]`.
///
/// # Errors
/// If the shapes or types do not fit.
pub(crate) fn mix(query: &Tensor, key: &Tensor, value: &Tensor, mixing: &Mixing) -> Result<Tensor> {
    let Mixing {
        n_heads,
        n_kv_heads,
        visible,
        ..
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
    query.apply_op3(key, value, Mix::new(mixing)?)
}

/// An owned [`Mixing`], for the graph to keep.
pub(super) struct Mix {
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
                let mut y = vec![T::ZERO; shape.elem_count()];
                task.forward_all(&mut y);
                (T::to_cpu_storage_owned(y), shape)
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
            let mut gradients = [query, key, value].map(|of| vec![T::ZERO; of.elem_count()]);
            let [dq, dk, dv] = gradients.each_mut().map(Vec::as_mut_slice);
            self.with_task(q, k, v, |task| task.backward_all(dy, [dq, dk, dv]))?;
            let [dq, dk, dv] = gradients;
            let wanted = |values, of: &Tensor| of.track_op().then(|| gradient(values, of)).transpose();
            Ok((wanted(dq, query)?, wanted(dk, key)?, wanted(dv, value)?))
        })
    }
}

impl Mix {
    /// Does not check that the mixing fits its operands.
    pub fn new(mixing: &Mixing) -> Result<Self> {
        Ok(Self {
            n_heads: mixing.n_heads,
            n_kv_heads: mixing.n_kv_heads,
            scale: mixing.scale,
            keep: mixing.visible.keep.map(Tensor::contiguous).transpose()?,
            reach: Reach::of(mixing.visible),
        })
    }

    /// The number of query heads, and of key/value heads.
    pub fn heads(&self) -> (usize, usize) {
        (self.n_heads, self.n_kv_heads)
    }

    pub fn with_task<T: Float + Plain + Recycled, R>(
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

#[cfg(test)]
mod tests;
