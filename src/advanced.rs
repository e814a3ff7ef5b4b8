//! For layers, families and tools of your own: all configurations, layers and operations, and files without a model. A family's
//! rules are in [`checkpoint::scheme`](crate::checkpoint::scheme).
//!
//! These items are promised for one minor version only.

#[doc(inline)]
pub use crate::checkpoint::{config_json, files};
#[doc(inline)]
pub use crate::generate::{CausalDecoder, Choose, Decoder};
#[doc(inline)]
pub use candle_blocks_layers::{config, device, layers, layers::ParameterSource, ops};
