//! The initialization that most families share.

use crate::{checkpoint::config_json::ConfigJson, config::Initialization, error::Result};

/// transformers' default standard deviation.
const DEVIATION: f64 = 0.02;

/// Returns a normal distribution for every weight, with the standard deviation `initializer_range`, or `init_std` as in
/// BART, OPT and Whisper.
pub(crate) fn normal(json: &ConfigJson) -> Result<Initialization> {
    Ok(Initialization::normal(deviation(json, DEVIATION)?))
}

/// Returns the standard deviation in the configuration.
pub(crate) fn deviation(json: &ConfigJson, default: f64) -> Result<f64> {
    let deviation = json.number(&["initializer_range", "init_std"], default)?;
    // transformers treats 0 as absent: `initializer_range or 0.02`.
    Ok(if deviation == 0.0 {
        DEVIATION
    } else {
        deviation
    })
}
