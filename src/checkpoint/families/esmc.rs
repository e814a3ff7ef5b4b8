//! Encoders with Llama's blocks: UltraBERT, whose windows reach to both sides, and ESM C, for proteins, with LayerNorm and norms of
//! queries and keys.
//!
//! transformers' `UltrabertModel` and `EsmcLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/esmc/modeling_esmc.py>

use super::encoder::*;
use super::llama::{biased_block, decoder, uniform};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let ultrabert = decoder("ultrabert", ultrabert)
        .prefixes(&["ultrabert.", "model.", ""])
        .without_embeddings_and_heads()
        .end_rules([
            Rule::linear("embeddings.word", &["embed_tokens"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("token_classification.output", &["classifier"]),
        ])
        .head(HeadTask::SequenceClassification, |json, _| {
            json.only("classifier_pooling", &["cls", "mean"].map(Value::from))?;
            let reads = match json.text(&["classifier_pooling"])?.as_deref() {
                Some("mean") => TokenSelection::Mean,
                _ => TokenSelection::First,
            };
            Ok(ReadoutConfig::new(reads).with_output(labels(json)?))
        })
        .outside(&["head.*"]);
    vec![ultrabert, esmc_table()]
}

fn ultrabert(json: &ConfigJson) -> Result<StackConfig> {
    json.only("attention_windows", &[Value::Null])?; // a list for all layers
    let usual = biased_block(&json.without("rope_parameters"))?;
    let stack = uniform(json, usual)?;
    let head_dim = stack.blocks[0].attention()?.head_dim;
    let rotary = |kind, theta| json.rotary_of_type(kind, "rope_theta", head_dim, theta);
    let near = rotary("sliding_attention", 10_000.0)?;
    let far = rotary("full_attention", 2_560_000.0)?;
    let window = json.size_or(&["sliding_window"], 128)?;
    let is_sliding = json.sliding_layers(stack.blocks.len(), |i| !(i + 1).is_multiple_of(3))?;
    Ok(stack.with_each_attention(|i, attention| {
        let (rotary, window) = match is_sliding[i] {
            true => (near.clone(), Some(window)),
            false => (far.clone(), None),
        };
        attention.visibility = Visibility::Bidirectional;
        attention.position = Position::Rotary(rotary);
        attention.window = window;
    }))
}

fn esmc_table() -> Family {
    decoder("esmc", esmc)
        .without_heads()
        .prefixes(&["esmc.", ""])
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules())
        .embeddings(|json, stack| Ok(token_embeddings(json, stack)?.into()))
        .head(HeadTask::MaskedLm, |json, stack| {
            let d_model = stack.blocks[0].d_model();
            let transform = TransformConfig::new(d_model, Activation::Gelu);
            let output = OutputConfig::new(json.size(&["vocab_size"])?).with_bias(true);
            Ok(ReadoutConfig::new(TokenSelection::Each)
                .with_transform(transform.with_norm(NormConfig::layer_norm(d_model, 1e-5)))
                .with_output(output))
        })
        .head(HeadTask::SequenceClassification, |json, stack| {
            let dropout = json.number(&["classifier_dropout"], 0.1)?;
            first_token(json, stack, Activation::Tanh, dropout)
        })
        .head(HeadTask::TokenClassification, token_of_decoder("score"))
}

fn esmc(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(json)?;
    let d_model = block.d_model();
    let norm = NormConfig::layer_norm(d_model, 1e-5);
    let plain = NormConfig {
        bias: false,
        ..norm
    };
    if block.attention()?.query_width() != d_model || block.attention()?.key_width() != d_model {
        let keys = ["head_dim", "num_key_value_heads"];
        return Err(json.error(
            &keys,
            "queries and keys have the model's width; expected that",
        ));
    }
    block.attention_mut()?.visibility = Visibility::Bidirectional;
    block.attention_mut()?.query_key_norm = Some(QueryKeyNorm::new(plain, QueryKeyNormSpan::Whole));
    block.norm = norm;
    let stack = StackConfig {
        final_norm: Some(plain),
        ..uniform(json, block)?
    };
    let multiplier = (36.0 / stack.blocks.len() as f64).sqrt();
    Ok(stack.with_each(|_, block| block.residual.multiplier = multiplier))
}
