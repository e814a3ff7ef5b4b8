//! wav2vec 2.0, HuBERT, UniSpeech, WavLM and data2vec's audio model: the blocks after the convolutions.
//!
//! transformers' `Wav2Vec2EncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/wav2vec2/modeling_wav2vec2.py>

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let speech = [
        ("wav2vec2", "wav2vec2."),
        ("hubert", "hubert."),
        ("unispeech", "unispeech."),
        ("unispeech-sat", "unispeech_sat."),
    ]
    .map(|(name, prefix)| {
        let table = family(name, prefix, |json| {
            let is_stable = json.flag(&["do_stable_layer_norm"], false)?;
            config(json, is_stable)
        });
        table.block_rules([
            Rule::norm("adapter_norm", &["adapter_layer.norm"]),
            Rule::linear("adapter.up", &["adapter_layer.linear_1"]),
            Rule::linear("adapter.down", &["adapter_layer.linear_2"]),
        ])
    });
    let data2vec = family("data2vec-audio", "data2vec_audio.", |json| {
        config(json, false)
    });
    let wavlm = family("wavlm", "wavlm.", gated_config)
        .block_rules([
            Rule::linear("attention.position_gate", &["attention.gru_rel_pos_linear"]),
            Rule::with_leading_ones(
                "attention.position_gate_factor",
                &["attention.gru_rel_pos_const"],
                1,
            ),
        ])
        .stack_rules([Rule::linear(
            "relative_embeddings",
            &["encoder.layers.0.attention.rel_attn_embed"],
        )])
        .initialization(|json| {
            let normal = initializer_range::normal(json)?;
            Ok(normal.with("*position_gate_factor.weight", Distribution::Constant(1.0)))
        });
    speech.into_iter().chain([data2vec, wavlm]).collect()
}

fn family(name: &str, prefix: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    Family::new(name, &[name], config)
        .prefixes(&[prefix, ""])
        .block("encoder.layers.{i}.")
        .block_rules(projections(
            "attention",
            "attention",
            ["q_proj", "k_proj", "v_proj", "out_proj"],
        ))
        .block_rules([
            Rule::norm("attention_norm", &["layer_norm"]),
            Rule::linear("feed_forward.up", &["feed_forward.intermediate_dense"]),
            Rule::linear("feed_forward.down", &["feed_forward.output_dense"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["encoder.layer_norm"])])
        .outside(&["feature_*", "encoder.pos_conv_embed.*", "masked_spec_embed"])
        .outside(&["encoder.layer_norm.*"]) // before the first block in post-norm models, after the last one otherwise
        .outside(&["adapter.*", "lm_head.*", "quantizer.*", "project*"])
        .outside(&["classifier.*", "layer_weights", "tdnn.*", "objective.*"])
        .outside(&["final_proj.*", "speaker_proj.*", "label_*"])
}

/// Reads the configuration; the "stable" variant is pre-norm.
fn config(json: &ConfigJson, is_stable: bool) -> Result<StackConfig> {
    let placement = match is_stable {
        true => NormPlacement::Pre,
        false => NormPlacement::Post,
    };
    let own = match json.optional_size(&["adapter_attn_dim"])? {
        Some(width) if is_stable => OwnConfig::Adapter { width },
        _ => OwnConfig::None, // post-norm blocks have no adapters
    };
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_dropout"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?)
        .with_dropout(json.number(&["activation_dropout"], 0.1)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let block = BlockConfig::new(attention, feed_forward, norm, placement)
        .with_own(own)
        .with_residual_dropout(json.number(&["hidden_dropout"], 0.1)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let stack = StackConfig::uniform(block, n_blocks, is_stable.then_some(norm));
    Ok(stack.with_layer_drop(json.number(&["layerdrop"], 0.1)?))
}

/// Reads WavLM's configuration: the same blocks with a bias by distance that each query gates.
fn gated_config(json: &ConfigJson) -> Result<StackConfig> {
    let mut stack = config(json, json.flag(&["do_stable_layer_norm"], false)?)?;
    let bias = RelativeBiasConfig {
        n_buckets: json.size_or(&["num_buckets"], 320)?,
        max_distance: json.size_or(&["max_bucket_distance"], 800)?,
        n_heads: json.size(&["num_attention_heads"])?,
    };
    for block in &mut stack.blocks {
        block.attention_mut()?.position = Position::GatedBias(bias);
    }
    Ok(stack.with_relative_embeddings(RelativeEmbeddingsConfig::new(bias.n_buckets, None)))
}
