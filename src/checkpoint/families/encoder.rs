//! Embeddings and heads that several encoders share.

use super::prelude::*;

/// Rules with BERT's names for the embeddings.
pub(super) fn embedding_rules() -> [Rule; 4] {
    [
        Rule::linear("embeddings.word", &["embeddings.word_embeddings"]),
        Rule::linear("embeddings.position", &["embeddings.position_embeddings"]),
        Rule::linear("embeddings.type", &["embeddings.token_type_embeddings"]),
        Rule::norm("embeddings.norm", &["embeddings.LayerNorm"]),
    ]
}

/// Rules for a language model's head with a linear layer and a norm before the output. The bias may be in the output layer
/// or beside it. transformers has both, computes with the first, and ties the second to it when it ties the embeddings.
pub(super) fn word_rules([transform, norm, output]: [&str; 3]) -> Vec<Rule> {
    let (own, inner) = (format!("{output}.bias"), format!("{output}.decoder.bias"));
    let weights = [
        format!("{output}.decoder.weight"),
        format!("{output}.weight"),
    ];
    let rules = |task| {
        [
            Rule::linear(&format!("{task}.transform"), &[transform]),
            Rule::norm(&format!("{task}.norm"), &[norm]),
            Rule::named(
                &format!("{task}.output"),
                &weights.each_ref().map(String::as_str),
                &[&inner, &own],
            ),
        ]
    };
    ["masked_lm", "causal_lm"]
        .map(rules)
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the name under which transformers saves the bias of [`word_rules`]: beside the output layer, unless the head has
/// its own weight.
pub(super) fn new_bias(json: &ConfigJson) -> Result<&'static [&'static str]> {
    Ok(match json.flag(&["tie_word_embeddings"], true)? {
        true => &["*predictions.bias", "lm_head.bias"],
        false => &[],
    })
}

/// Returns a language model's head after a linear layer with this width, an activation and a norm.
pub(super) fn word(
    json: &ConfigJson,
    stack: &StackConfig,
    width: usize,
    activation: Activation,
) -> Result<ReadoutConfig> {
    let norm = NormConfig::layer_norm(width, stack.blocks[0].norm.eps);
    Ok(ReadoutConfig::new(TokenSelection::Each)
        .with_transform(TransformConfig::new(width, activation).with_norm(norm))
        .with_output(language_model(json)?.with_bias(true)))
}

/// Returns [`word`] with GELU, independent of the blocks' activation.
pub(super) fn word_by_gelu(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    word(json, stack, stack.blocks[0].d_model(), Activation::Gelu)
}

/// Returns the first position after a linear layer and tanh.
pub(super) fn first_through_tanh(stack: &StackConfig) -> ReadoutConfig {
    let d_model = stack.blocks[0].d_model();
    ReadoutConfig::new(TokenSelection::First)
        .with_transform(TransformConfig::new(d_model, Activation::Tanh))
}

/// Returns a classification head on the pooler's output.
pub(super) fn pooled(json: &ConfigJson, dropout: f64) -> Result<ReadoutConfig> {
    let output = labels(json)?.with_dropout(dropout);
    Ok(ReadoutConfig::new(TokenSelection::Pooled).with_output(output))
}

/// Returns a multiple-choice head on the pooler's output: one score for each choice.
pub(super) fn choice(dropout: f64) -> ReadoutConfig {
    ReadoutConfig::new(TokenSelection::Pooled)
        .with_output(OutputConfig::number().with_dropout(dropout))
}

/// Rules for [`first_token`].
pub(super) fn first_token_rules() -> [Rule; 2] {
    [
        Rule::linear("sequence_classification.transform", &["classifier.dense"]),
        Rule::linear("sequence_classification.output", &["classifier.out_proj"]),
    ]
}

/// Returns a classification head on the first position, after a linear layer and an activation with dropout before each
/// linear layer.
pub(super) fn first_token(
    json: &ConfigJson,
    stack: &StackConfig,
    activation: Activation,
    dropout: f64,
) -> Result<ReadoutConfig> {
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation);
    Ok(ReadoutConfig::new(TokenSelection::First)
        .with_dropout(dropout)
        .with_transform(transform)
        .with_output(labels(json)?.with_dropout(dropout)))
}

/// Returns a classification head on the pooler's output, after [`classifier_dropout`].
pub(super) fn pooled_of_encoder(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    pooled(json, classifier_dropout(json)?)
}

/// Returns a token classification head after [`hidden_dropout`].
pub(super) fn token_of_encoder(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    token(json, hidden_dropout(json)?)
}

/// Returns `classifier_dropout`, or without it the blocks' dropout.
pub(super) fn classifier_dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["classifier_dropout"], hidden_dropout(json)?)
}

/// Returns the blocks' dropout.
pub(super) fn hidden_dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["hidden_dropout_prob"], 0.1)
}
