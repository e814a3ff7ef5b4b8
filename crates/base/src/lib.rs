//! All packages of [candle-blocks](https://docs.rs/candle-blocks) share this: the [`enum@Error`] type, checks of memory before it is
//! taken, patterns for names, and macros for builder methods.
//!
//! Users of candle-blocks find [`enum@Error`] and [`Result`] there. All other items serve its packages, and may change with every
//! version.
//!
//! ```
//! use candle_blocks_base::Error;
//!
//! let error = Error::input("attention_mask", "expected [2, 4], found [2, 3]");
//! assert_eq!(error.to_string(), "attention_mask: expected [2, 4], found [2, 3]");
//! ```
#![deny(missing_docs)]

mod error;
pub mod memory;
mod nearest;
mod pattern;
mod setters;
pub mod stop_strings;

pub use error::{Error, Result, abbreviated, escape, listed};
pub use nearest::{near, nearest};
pub use pattern::{each_matches, matches};

/// The largest size in a configuration: products over two sizes, and three such products together, do not overflow. The widest
/// published layers have a few hundred thousand features.
pub const MAX_SIZE: usize = 1 << 30;
