//! What surrounds the stacks of several encoder-decoders.

use super::prelude::*;

/// The token before the first, where the file names no other.
pub(super) fn start_token(json: &ConfigJson, default: usize) -> Result<Joint> {
    let token = json.size_or(&["decoder_start_token_id"], default)?;
    Ok(Joint::Memory {
        start_token: Some(token as u32),
    })
}

/// The names of a language model's output, whose bias is no trained one in most files.
pub(super) fn next_token() -> [Rule; 2] {
    [
        Rule::named("causal_lm.output", &["lm_head.weight"], &[]),
        Rule {
            bias: strings(&["final_logits_bias"]),
            ..Rule::behind_ones("causal_lm.output", &[], 1)
        },
    ]
}

/// The names of heads other than the language model's.
pub(super) fn head_rules() -> [Rule; 3] {
    let classification = |part: &str, name: &str| {
        Rule::linear(
            &format!("sequence_classification.{part}"),
            &[&format!("classification_head.{name}")],
        )
    };
    [
        classification("transform", "dense"),
        classification("output", "out_proj"),
        Rule::linear("question_answering.output", &["qa_outputs"]),
    ]
}

/// The label of a text, at the last of its end tokens, which has this id where the file says nothing.
pub(super) fn end_of_text(
    json: &ConfigJson,
    stack: &StackConfig,
    default: usize,
) -> Result<ReadoutConfig> {
    let end = json.size_or(&["eos_token_id"], default)?;
    let dropout = json.number(&["classifier_dropout"], 0.0)?;
    let transform = TransformConfig::new(stack.blocks[0].d_model(), Activation::Tanh);
    Ok(ReadoutConfig::new(Reads::LastOf(end as u32))
        .with_dropout(dropout)
        .with_transform(transform)
        .with_output(labels(json)?.with_dropout(dropout)))
}
