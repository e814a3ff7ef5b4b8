//! ModernBERT: pre-norm encoder without a norm before the first attention, gated feed-forward, local and global layers.
//!
//! transformers' `ModernBertEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/modernbert/modeling_modernbert.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("modernbert", &["modernbert"], config)
        .prefixes(&["model.", ""])
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["attn_norm"]),
            Rule::linear("attention.output", &["attn.Wo"]),
            Rule::norm("feed_forward_norm", &["mlp_norm"]),
            Rule::linear("feed_forward.down", &["mlp.Wo"]),
        ])
        .block_rules(Rule::fused_attention(&["attn.Wqkv"], FusedLayout::Blocks))
        .block_rules(Rule::fused_gate(&["mlp.Wi"], GateHalf::First))
        .stack_rules([Rule::norm("final_norm", &["final_norm"])])
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings.tok_embeddings"]),
            Rule::norm("embeddings.norm", &["embeddings.norm"]),
            Rule::linear("masked_lm.output", &["decoder", "lm_head"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("question_answering.output", &["classifier"]),
        ])
        .end_rules(HEADS.map(|task| Rule::linear(&format!("{task}.transform"), &DENSE)))
        .end_rules(HEADS.map(|task| Rule::norm(&format!("{task}.norm"), &NORM)))
        .embeddings(embeddings)
        .head(HeadTask::MaskedLm, |json, stack| {
            let bias = json.flag(&["decoder_bias"], true)?;
            let output = language_model(json)?.with_bias(bias);
            head(json, stack, TokenSelection::Each, output)
        })
        .head(HeadTask::SequenceClassification, |json, stack| {
            json.only("classifier_pooling", &["cls", "mean"].map(Value::from))?;
            let reads = match json.text(&["classifier_pooling"])?.as_deref() {
                Some("mean") => TokenSelection::Mean,
                _ => TokenSelection::First,
            };
            head(json, stack, reads, classified(json)?)
        })
        .head(HeadTask::TokenClassification, |json, stack| {
            head(json, stack, TokenSelection::Each, classified(json)?)
        })
        .head(HeadTask::QuestionAnswering, |json, stack| {
            head(json, stack, TokenSelection::Each, classified(json)?)
        })
        .outside(&["embeddings.*", "head.*", "decoder.*", "classifier.*"])
        .initialization(initialization)
}

/// Patterns for the heads, whose names look like those in a layer.
const HEADS: [&str; 4] = [
    "masked_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
];

/// Names of the layer before an output, and of its norm; the second ones are ModernVBERT's.
const DENSE: [&str; 2] = ["head.dense", "projection_head.dense"];
const NORM: [&str; 2] = ["head.norm", "projection_head.norm"];

pub(super) fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?
        .with_norm(stack.blocks[0].norm)
        .with_dropout(json.number(&["embedding_dropout"], 0.0)?);
    Ok(embeddings.into())
}

pub(super) fn head(
    json: &ConfigJson,
    stack: &StackConfig,
    reads: TokenSelection,
    output: OutputConfig,
) -> Result<ReadoutConfig> {
    let activation = json.activation(&["classifier_activation"], Activation::Gelu)?;
    let transform = TransformConfig::new(stack.blocks[0].d_model(), activation)
        .with_bias(json.flag(&["classifier_bias"], false)?)
        .with_norm(stack.blocks[0].norm);
    Ok(ReadoutConfig::new(reads)
        .with_transform(transform)
        .with_output(output))
}

fn classified(json: &ConfigJson) -> Result<OutputConfig> {
    Ok(labels(json)?.with_dropout(json.number(&["classifier_dropout"], 0.0)?))
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let has_bias = json.flag(&["attention_bias"], false)?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_form(FeedForwardForm::Gated)
        .with_activation(json.activation(&["hidden_activation"], Activation::Gelu)?)
        .with_bias(json.flag(&["mlp_bias"], false)?)
        .with_dropout(json.number(&["mlp_dropout"], 0.0)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["norm_eps"], 1e-5)?)
        .with_bias(json.flag(&["norm_bias"], false)?);
    let head_dim = attention.head_dim;
    json.only("head_dim", &[json!(head_dim)])?; // only its rotation reads this key
    let global = json.rotary_of_type("full_attention", "global_rope_theta", head_dim, 160000.0)?;
    let local = json.rotary_of_type("sliding_attention", "local_rope_theta", head_dim, 10000.0)?;
    let both_sides = json.size_or(&["local_attention"], 128)?;
    let window = json.size_or(&["sliding_window"], both_sides / 2)?; // the size of one side, which transformers reads first
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let period = json.size_or(&["global_attn_every_n_layers"], 3)?;
    let is_local = json.sliding_layers(n_blocks, |i| !i.is_multiple_of(period))?;
    let attention_dropout = attention.dropout;
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    block.residual.attention_dropout = attention_dropout;
    let stack = StackConfig::uniform(block, n_blocks, Some(norm));
    let mut stack = stack.with_each_attention(|i, attention| {
        let rotary = if is_local[i] { &local } else { &global };
        attention.position = Position::Rotary(rotary.clone());
        attention.window = is_local[i].then_some(window);
    });
    stack.blocks[0].attention_placement = NormPlacement::None; // the embeddings are already normalized
    Ok(stack)
}

pub(super) fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let inner = initializer_range::deviation(json, 0.02)?;
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let cut = json.switchable_number("initializer_cutoff_factor", 2.0)?;
    let draw = |deviation: f64| Distribution::TruncatedNormal {
        deviation,
        cut: cut.unwrap_or(3.0) * deviation,
    };
    let outer = draw(inner / (2.0 * n_blocks as f64).sqrt());
    let classifier = draw((json.size(&["hidden_size"])? as f64).powf(-0.5));
    Ok(Initialization::normal(inner)
        .with("embeddings.word.weight", draw(inner))
        .with("*.transform.weight", outer)
        .with("*_lm.output.weight", outer)
        .with("*_classification.output.weight", classifier)
        .with("question_answering.output.weight", classifier)
        .with("*attention.*.weight", draw(inner))
        .with("*feed_forward.*.weight", draw(inner))
        .with("*attention.output.weight", outer)
        .with("*feed_forward.down.weight", outer))
}
