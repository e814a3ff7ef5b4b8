//! How most families draw fresh parameters.

use crate::{checkpoint::config_json::ConfigJson, config::Initialization, error::Result};

/// transformers' default where a configuration says nothing.
const DEVIATION: f64 = 0.02;

/// Every weight normal with `initializer_range`, or `init_std` as BART, OPT and Whisper call it.
pub(crate) fn normal(json: &ConfigJson) -> Result<Initialization> {
    Ok(Initialization::normal(deviation(json, DEVIATION)?))
}

/// The standard deviation that the configuration gives.
pub(crate) fn deviation(json: &ConfigJson, default: f64) -> Result<f64> {
    let deviation = json.number(&["initializer_range", "init_std"], default)?;
    // transformers takes 0 for absent: `initializer_range or 0.02`.
    Ok(if deviation == 0.0 {
        DEVIATION
    } else {
        deviation
    })
}
