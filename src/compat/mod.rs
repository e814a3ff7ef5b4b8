//! The interfaces of candle-transformers 0.11, on this crate's layers: to change over is one `use` line.

pub mod bert;
