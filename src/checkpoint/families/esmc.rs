//! ESM C: an encoder of proteins with Llama's blocks, LayerNorm, and norms of queries and keys.
//!
//! transformers' `EsmcLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/esmc/modeling_esmc.py>

use super::encoder::*;
use super::llama::{biased_block, decoder, uniform};
use super::prelude::*;

pub(super) fn family() -> Family {
    let esmc = decoder("esmc", esmc)
        .prefixes(&["esmc.", ""])
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules());
    let esmc = Family {
        heads: vec![],
        ..esmc
    };
    esmc.embeddings(|json, stack| Ok(words(json, stack)?.into()))
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
    if block.attention.query_width() != d_model || block.attention.key_width() != d_model {
        let keys = ["head_dim", "num_key_value_heads"];
        return Err(json.error(
            &keys,
            "queries and keys have the model's width; expected that",
        ));
    }
    block.attention.visibility = Visibility::Bidirectional;
    block.attention.query_key_norm = Some(QueryKeyNorm::new(plain, QueryKeyNormSpan::Whole));
    block.norm = norm;
    let stack = StackConfig {
        final_norm: Some(plain),
        ..uniform(json, block)?
    };
    let multiplier = (36.0 / stack.blocks.len() as f64).sqrt();
    Ok(stack.with_each(|_, block| block.residual.multiplier = multiplier))
}
