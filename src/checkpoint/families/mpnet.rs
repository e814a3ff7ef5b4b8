//! MPNet: BERT's blocks with T5's relative position bias.
//!
//! transformers' `MPNetEncoder`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mpnet/modeling_mpnet.py>

use super::bert::block;
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("mpnet", &["mpnet"], config)
        .prefixes(&["mpnet.", ""])
        .block("encoder.layer.{i}.")
        .block_rules([
            Rule::linear("attention.query", &["attention.attn.q"]),
            Rule::linear("attention.key", &["attention.attn.k"]),
            Rule::linear("attention.value", &["attention.attn.v"]),
            Rule::linear("attention.output", &["attention.attn.o"]),
            Rule::norm("attention_norm", &["attention.LayerNorm"]),
            Rule::linear("feed_forward.up", &["intermediate.dense"]),
            Rule::linear("feed_forward.down", &["output.dense"]),
            Rule::norm("feed_forward_norm", &["output.LayerNorm"]),
        ])
        .stack_rules([Rule::linear(
            "relative_bias",
            &["encoder.relative_attention_bias"],
        )])
        .end_rules(embedding_rules())
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules())
        .end_rules([
            Rule::linear("pooler.transform", &["pooler.dense"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("multiple_choice.output", &["classifier"]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .new_names(new_bias)
        .embeddings(embeddings)
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_gelu)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, Activation::Tanh, hidden_dropout(json)?)
        })
        .head(HeadTask::TokenClassification, token_of_encoder)
        .head(HeadTask::QuestionAnswering, question_answering)
        .head(HeadTask::MultipleChoice, |json, _| {
            Ok(choice(hidden_dropout(json)?))
        })
        .outside(&["embeddings.*", "pooler.*", "lm_head.*"])
        .outside(&["classifier.*", "qa_outputs.*"])
}

/// The number of buckets in transformers' `compute_position_bias`, which ignores the table's size.
const N_BUCKETS: usize = 32;

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])?,
        ..positions_except(1) // independent of the padding id
    };
    let embeddings = padded_token_embeddings(json, stack)?
        .with_position_table(positions)
        .with_norm(stack.blocks[0].norm)
        .with_dropout(hidden_dropout(json)?);
    Ok(embeddings.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("relative_attention_num_buckets", &[json!(N_BUCKETS)])?; // the number of buckets that it uses
    let block = block(json)?;
    let bias = RelativeBiasConfig {
        n_buckets: N_BUCKETS,
        max_distance: 128,
        n_heads: block.attention()?.n_heads,
    };
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None).with_relative_bias(bias))
}
