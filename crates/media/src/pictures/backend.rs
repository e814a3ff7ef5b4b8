//! The libraries that resize for transformers.

use std::str::FromStr;

use candle_blocks_base::{Error, Result};

/// The library whose results resizing, cropping and normalizing have. transformers' image processors come in two forms, and by
/// default the one with torchvision runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// torchvision: 16-bit weights, rescaling and normalization in one step.
    #[default]
    Torchvision,
    /// PIL with NumPy: 22-bit weights, rescaling in f64 before normalization.
    Pil,
}

impl Backend {
    /// The names that [`str::parse`] reads.
    pub const NAMES: [&'static str; 2] = ["torchvision", "pil"];
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "torchvision" => Ok(Self::Torchvision),
            "pil" => Ok(Self::Pil),
            _ => Err(Error::input(
                "backend",
                format!("found {name:?}, expected one of {:?}", Self::NAMES),
            )),
        }
    }
}
