//! Token classification heads.

use super::prelude::*;

/// Returns a function that reads a decoder's token classification head called `classifier`. The class that decoders share
/// calls it `score`, and has a key for its bias.
pub(super) fn token_of_decoder(classifier: &str) -> ReadReadout {
    match classifier {
        "score" => of_shared_class,
        _ => of_own_class,
    }
}

fn of_shared_class(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let mut readout = of_own_class(json, stack)?;
    let has_bias = json.flag(&["token_classification_bias"], true)?;
    readout.output = readout.output.map(|output| output.with_bias(has_bias));
    Ok(readout)
}

fn of_own_class(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let hidden = json.number(&["hidden_dropout"], 0.1)?;
    token(json, json.number(&["classifier_dropout"], hidden)?)
}

/// Returns a token classification head after dropout.
pub(super) fn token(json: &ConfigJson, dropout: f64) -> Result<ReadoutConfig> {
    let output = labels(json)?.with_dropout(dropout);
    Ok(ReadoutConfig::new(TokenSelection::Each).with_output(output))
}
