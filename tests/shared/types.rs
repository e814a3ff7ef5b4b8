//! The types that the device under test computes in.

use candle_blocks::candle_core::DType;

use crate::double::has_f64;

/// The given types, without f64 where the device under test has none, and says so.
pub fn computable(dtypes: impl IntoIterator<Item = DType>, what: &str) -> Vec<DType> {
    let is_computable = |&dtype: &DType| dtype != DType::F64 || has_f64(what);
    dtypes.into_iter().filter(is_computable).collect()
}
