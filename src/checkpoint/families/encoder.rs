//! What surrounds the blocks of several encoders.

use super::prelude::*;

/// BERT's names for the tables.
pub(super) fn embedding_rules() -> [Rule; 4] {
    [
        Rule::linear("embeddings.word", &["embeddings.word_embeddings"]),
        Rule::linear("embeddings.position", &["embeddings.position_embeddings"]),
        Rule::linear("embeddings.type", &["embeddings.token_type_embeddings"]),
        Rule::norm("embeddings.norm", &["embeddings.LayerNorm"]),
    ]
}

/// The rules for the logits of words, masked or next, behind a linear layer and a norm. The bias may lie in the output's
/// layer or beside it: transformers has both and computes with the first, to which it ties the second with the words.
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

/// Where transformers writes the bias of [`word_rules`]: beside the output's layer, unless the words have a table of their own.
pub(super) fn new_bias(json: &ConfigJson) -> Result<&'static [&'static str]> {
    Ok(match json.flag(&["tie_word_embeddings"], true)? {
        true => &["*predictions.bias", "lm_head.bias"],
        false => &[],
    })
}

/// The logits of words behind a linear layer of this width, an activation and a norm.
pub(super) fn word(
    json: &ConfigJson,
    stack: &StackConfig,
    width: usize,
    activation: Activation,
) -> Result<ReadoutConfig> {
    let norm = NormConfig::layer_norm(width, stack.blocks[0].norm.eps);
    Ok(ReadoutConfig::new(Reads::Each)
        .with_transform(TransformConfig::new(width, activation).with_norm(norm))
        .with_output(language_model(json)?.with_bias(true)))
}

/// [`word`] behind a GELU, whatever the blocks' activation is.
pub(super) fn word_by_gelu(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    word(json, stack, stack.blocks[0].d_model(), Activation::Gelu)
}

/// The first position through a linear layer and a tanh.
pub(super) fn first_through_tanh(stack: &StackConfig) -> ReadoutConfig {
    let d_model = stack.blocks[0].d_model();
    ReadoutConfig::new(Reads::First).with_transform(TransformConfig::new(d_model, Activation::Tanh))
}

/// The label of a text by what the pooler made of it.
pub(super) fn pooled(json: &ConfigJson, dropout: f64) -> Result<ReadoutConfig> {
    let output = labels(json)?.with_dropout(dropout);
    Ok(ReadoutConfig::new(Reads::Pooled).with_output(output))
}

/// How well a text fits as one of several choices, by what the pooler made of it.
pub(super) fn choice(dropout: f64) -> ReadoutConfig {
    ReadoutConfig::new(Reads::Pooled).with_output(OutputConfig::number().with_dropout(dropout))
}

/// The names of what [`first_token`] reads with.
pub(super) fn first_token_rules() -> [Rule; 2] {
    [
        Rule::linear("sequence_classification.transform", &["classifier.dense"]),
        Rule::linear("sequence_classification.output", &["classifier.out_proj"]),
    ]
}

/// The label of a text by its first position, through a linear layer and an activation, each behind a dropout.
pub(super) fn first_token(
    json: &ConfigJson,
    stack: &StackConfig,
    activation: Activation,
    dropout: f64,
) -> Result<ReadoutConfig> {
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation);
    Ok(ReadoutConfig::new(Reads::First)
        .with_dropout(dropout)
        .with_transform(transform)
        .with_output(labels(json)?.with_dropout(dropout)))
}

/// `classifier_dropout`, or else that of the blocks.
pub(super) fn classifier_dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["classifier_dropout"], hidden_dropout(json)?)
}

/// That of the blocks.
pub(super) fn hidden_dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["hidden_dropout_prob"], 0.1)
}
