//! Assigns tensors to files, and writes the index.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::checkpoint::write::TensorRecord;

/// Fills one shard after another; a tensor above the limit gets its own shard, as in
/// `huggingface_hub.split_state_dict_into_shards_factory`.
pub(super) fn shards(records: Vec<TensorRecord>, max_bytes: u64) -> Vec<Vec<TensorRecord>> {
    let mut shards = Vec::new();
    let mut current = Vec::new();
    let mut filled = 0;
    for record in records {
        let n_bytes = record.n_bytes() as u64;
        if n_bytes > max_bytes {
            shards.push(vec![record]);
            continue;
        }
        if filled + n_bytes > max_bytes {
            shards.push(std::mem::take(&mut current));
            filled = 0;
        }
        filled += n_bytes;
        current.push(record);
    }
    if !current.is_empty() || shards.is_empty() {
        shards.push(current);
    }
    shards
}

/// `model.safetensors.index.json`.
#[derive(Default, Serialize)]
pub(super) struct ShardIndex {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Default, Serialize)]
struct IndexMetadata {
    total_parameters: usize,
    total_size: usize,
}

impl ShardIndex {
    pub fn add(&mut self, record: &TensorRecord, file: &str) {
        self.metadata.total_parameters += record.shape.iter().product::<usize>();
        self.metadata.total_size += record.n_bytes();
        self.weight_map
            .insert(record.name.clone(), file.to_string());
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    /// The example in the documentation of huggingface_hub's function.
    #[test]
    fn shards_are_filled_as_the_hub_fills_them() {
        let split = |sizes: &[usize], limit| -> Vec<Vec<usize>> {
            let record = |&size: &usize| TensorRecord {
                name: size.to_string(),
                dtype: Dtype::U8,
                shape: vec![size],
            };
            let shards = shards(sizes.iter().map(record).collect(), limit);
            let sizes =
                |shard: Vec<TensorRecord>| shard.iter().map(TensorRecord::n_bytes).collect();
            shards.into_iter().map(sizes).collect()
        };
        assert_eq!(
            split(&[6, 6, 2, 6, 2, 2], 10),
            [vec![6], vec![6, 2], vec![6, 2, 2]]
        );
        // A tensor that is too large does not close the shard that is being filled.
        assert_eq!(split(&[3, 20, 4], 10), [vec![20], vec![3, 4]]);
        assert_eq!(split(&[], 10), [Vec::<usize>::new()]);
    }
}
