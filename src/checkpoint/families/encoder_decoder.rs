//! Embeddings and heads that several encoder-decoders share.

use super::prelude::*;

/// Adds the classification heads, such as BART's.
pub(super) fn classifying([encoder, decoder]: [Family; 2]) -> Vec<Family> {
    let decoder = decoder
        .end_rules(head_rules())
        .head(HeadTask::SequenceClassification, |json, stack| {
            end_of_text(json, stack, 2)
        })
        .head(HeadTask::QuestionAnswering, question_answering);
    vec![encoder, decoder]
}

/// Refuses files whose stacks have separate token embeddings.
pub(super) fn only_shared(json: &ConfigJson) -> Result<()> {
    json.only("tie_word_embeddings", &[json!(true)])
}

/// Returns token embeddings, scaled if the file says so.
pub(super) fn scaled_token_embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<TokenEmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?;
    let scale = match json.flag(&["scale_embedding"], false)? {
        true => (embeddings.d_model as f64).sqrt(),
        false => 1.0,
    };
    let dropout = json.number(&["dropout"], 0.1)?;
    Ok(embeddings.with_scale(scale).with_dropout(dropout))
}

/// Returns normalized token embeddings with learned positions, whose first two rows are unused.
pub(super) fn learned_after_two(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<EmbeddingsConfig> {
    let embeddings = scaled_token_embeddings(json, stack)?;
    let norm = NormConfig::layer_norm(embeddings.d_model, 1e-5);
    let positions = PositionTableConfig {
        n_rows: json.size_or(&["max_position_embeddings"], 1024)? + 2,
        first_row: 2,
        ..ALL_POSITIONS
    };
    Ok(embeddings
        .with_position_table(positions)
        .with_norm(norm)
        .into())
}

/// Returns the decoder's start token; `default` if the file names none.
pub(super) fn start_token(json: &ConfigJson, default: usize) -> Result<TwoStackKind> {
    let token = json.size_or(&["decoder_start_token_id"], default)?;
    Ok(TwoStackKind::EncoderDecoder {
        start_token: Some(token as u32),
    })
}

/// Rules for all heads but the language model's.
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

/// Returns a classification head on the last end token. `default` is that token's id if the file names none.
pub(super) fn end_of_text(
    json: &ConfigJson,
    stack: &StackConfig,
    default: usize,
) -> Result<ReadoutConfig> {
    let end = json.size_or(&["eos_token_id"], default)?;
    let dropout = json.number(&["classifier_dropout"], 0.0)?;
    let transform = TransformConfig::new(stack.blocks[0].d_model(), Activation::Tanh);
    Ok(ReadoutConfig::new(TokenSelection::LastOf(end as u32))
        .with_dropout(dropout)
        .with_transform(transform)
        .with_output(labels(json)?.with_dropout(dropout)))
}
