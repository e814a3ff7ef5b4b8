//! The contents of a checkpoint's files.

use std::collections::BTreeMap;

use candle_blocks::Checkpoint;

use crate::numbers::bits;

/// Returns a checkpoint's tensors by name: shape and bits.
pub fn contents(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<u64>)> {
    let files = checkpoint.files();
    let read = |name: &str| {
        let tensor = files.read(name).unwrap();
        (name.to_string(), (tensor.dims().to_vec(), bits(&tensor)))
    };
    files.names().map(read).collect()
}
