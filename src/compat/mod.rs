//! The interfaces of candle-transformers 0.11, implemented with this crate's layers. To switch, change the `use`
//! line.

pub mod bert;
