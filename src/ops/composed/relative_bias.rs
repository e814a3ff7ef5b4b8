//! Relative position bias: looks up a table's rows by query and key.

use candle_core::{Device, Result, Tensor};

use crate::ops::{constants::Constants, relative_bias::Buckets};

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn relative_bias(
        &self,
        buckets: &Buckets,
        constants: &Constants,
    ) -> Result<Self> {
        let (n_buckets, n_heads) = (self.rows(), self.slot.width);
        let (queries, keys) = (buckets.queries, buckets.keys);
        let (dtype, device) = (self.dtype(), self.data.device());
        let ids = constants.table(format!("buckets {}", buckets.name), (dtype, device), || {
            let all = Tensor::new(buckets.all(), &Device::Cpu)?;
            Array::of(&all).moved_to(device).map(Array::into_tensor)
        })?;
        let ids = Array::of(&ids);
        let dims = vec![1, n_heads, queries, keys];
        let y = self
            .view()?
            .select_rows(&ids)?
            .transpose(0, 1)?
            .reshape(&dims)?;
        let slot = self.slot.clone();
        Ok(self.computed((y, dims), &[slot.place], move |pass, dy| {
            // `[n_heads, pairs]` times a one-hot matrix for the pairs' buckets, which sums in f32. Adding row by row
            // would take one thread per head.
            let numbers = (0..n_buckets as u32).collect();
            let numbers = Array::upload_ids(numbers, &[1, n_buckets], dy.device())?;
            let has = ids
                .reshape(&[queries * keys, 1])?
                .eq(&numbers)?
                .to_dtype(dtype)?;
            let sums = dy.reshape(&[n_heads, queries * keys])?.matmul(&has)?;
            pass.add(&slot, sums.transpose(0, 1)?.contiguous()?)
        }))
    }
}
