//! Arcee, Jais 2 and Nemotron: Llama's blocks with an ungated feed-forward and squared ReLU. Jais 2 has LayerNorm. Nemotron
//! has LayerNorm that multiplies by `1 + w`, and partial rotary embeddings.
//!
//! transformers' `ArceeMLP`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/arcee/modeling_arcee.py>, and
//! `NemotronDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/nemotron/modeling_nemotron.py>

use super::llama::{
    bias, biased_block, decoder, prefix_by_head, uniform, unrotated_block, with_mlp_bias,
};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        decoder("arcee", arcee).new_names(prefix_by_head),
        decoder("jais2", jais2),
        decoder("nemotron", nemotron).initialization(|json| {
            // transformers initializes these norms like norms that multiply by the weight alone.
            let deviation = initializer_range::deviation(json, 0.0134)?;
            Ok(Initialization::normal(deviation).with("*norm.weight", Distribution::Constant(1.0)))
        }),
    ]
}

pub(super) fn arcee(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(json)?;
    block.feed_forward.form = FeedForwardForm::Plain;
    uniform(json, block)
}

fn jais2(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = biased_block(json)?;
    block.feed_forward.form = FeedForwardForm::Plain;
    block.norm = NormConfig::layer_norm(block.d_model(), json.number(&["layer_norm_eps"], 1e-5)?);
    uniform(json, block)
}

fn nemotron(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = with_mlp_bias(json, unrotated_block(json, bias(json)?)?)?;
    block.feed_forward.form = FeedForwardForm::Plain;
    block.norm = NormConfig::layer_norm(block.d_model(), json.number(&["norm_eps"], 1e-5)?)
        .with_weight(NormWeight::OnePlus);
    let rotary = json.partial_rotary(block.attention()?.head_dim, 0.5, 10000.0)?;
    block.attention_mut()?.position = Position::Rotary(rotary);
    uniform(json, block)
}
