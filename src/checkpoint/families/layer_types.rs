//! Types of layers, as transformers' `layer_types` names them.

pub(super) const FULL: &str = "full_attention";
pub(super) const LINEAR: &str = "linear_attention";
pub(super) const SLIDING: &str = "sliding_attention";
