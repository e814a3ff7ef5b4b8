//! ALBERT: BERT's blocks, each repeated for many layers.
//!
//! transformers' `AlbertTransformer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/albert/modeling_albert.py>

use super::super::config_json::MAX_BLOCKS;
use super::bert::block;
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("albert", &["albert"], config)
        .prefixes(&["albert.", ""])
        .block("encoder.albert_layer_groups.{i/inner_group_num}.albert_layers.{i%inner_group_num}.")
        .block_rules([
            Rule::linear("attention.query", &["attention.query"]),
            Rule::linear("attention.key", &["attention.key"]),
            Rule::linear("attention.value", &["attention.value"]),
            Rule::linear("attention.output", &["attention.dense"]),
            Rule::norm("attention_norm", &["attention.LayerNorm"]),
            Rule::linear("feed_forward.up", &["ffn"]),
            Rule::linear("feed_forward.down", &["ffn_output"]),
            Rule::norm("feed_forward_norm", &["full_layer_layer_norm"]),
        ])
        .end_rules(embedding_rules())
        .end_rules(word_rules([
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions",
        ]))
        .end_rules([
            Rule::linear(
                "embeddings.projection",
                &["encoder.embedding_hidden_mapping_in"],
            ),
            Rule::linear("pooler.transform", &["pooler"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("multiple_choice.output", &["classifier"]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .new_names(new_bias)
        .embeddings(embeddings)
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, |json, stack| {
            let activation = json.activation(&["hidden_act"], Activation::GeluTanh)?;
            word(json, stack, width(json)?, activation)
        })
        .head(HeadTask::SequenceClassification, |json, _| {
            pooled(json, dropout_of_labels(json)?)
        })
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, dropout_of_labels(json)?)
        })
        .head(HeadTask::QuestionAnswering, question_answering)
        .head(HeadTask::MultipleChoice, |json, _| {
            Ok(choice(dropout_of_labels(json)?))
        })
        .outside(&["embeddings.*"])
        .outside(&["encoder.embedding_hidden_mapping_in.*", "pooler*"])
        .outside(&["predictions.*", "sop_classifier.*", "classifier.*"])
        .outside(&["qa_outputs.*"])
}

fn width(json: &ConfigJson) -> Result<usize> {
    json.size_or(&["embedding_size"], 128)
}

fn dropout_of_labels(json: &ConfigJson) -> Result<f64> {
    json.number(&["classifier_dropout_prob"], 0.1)
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let width = width(json)?;
    let projection = EmbeddingProjection {
        of: Projected::Sum,
        bias: true,
    };
    let embeddings = padded_token_embeddings(json, stack)?
        .with_width(width)
        .with_positions(json.size(&["max_position_embeddings"])?)
        .with_types(json.size_or(&["type_vocab_size"], 2)?)
        .with_norm(NormConfig::layer_norm(width, stack.blocks[0].norm.eps))
        .with_dropout(json.number(&["hidden_dropout_prob"], 0.0)?);
    Ok(embeddings.with_projection(projection).into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = block(json)?;
    block.residual.feed_forward_dropout = 0.0;
    let n_layers = json.n_blocks(&["num_hidden_layers"])?;
    let groups = "num_hidden_groups";
    let n_groups = json.n_blocks_or(&[groups], 1)?; // each group is one block
    let inner = "inner_group_num";
    let n_inner = json.n_blocks_or(&[inner], 1)?;
    if n_inner * n_layers.max(n_groups) > MAX_BLOCKS {
        let reason = format!(
            "{n_inner} blocks in each of {n_groups} groups, at {n_layers} layers: expected {MAX_BLOCKS} in all"
        );
        return Err(json.error(&[inner], reason));
    }
    // transformers divides in floating point, which can differ from integer division.
    let per_group = n_layers as f64 / n_groups as f64;
    let group = |layer| ((layer as f64 / per_group) as usize).min(n_groups.saturating_sub(1));
    let inner_of = |group: usize| group * n_inner..(group + 1) * n_inner;
    let layers = (0..n_layers).map(group).flat_map(inner_of).collect();
    let n_blocks = n_groups * n_inner;
    Ok(StackConfig::uniform(block, n_blocks, None).with_layers(layers))
}
