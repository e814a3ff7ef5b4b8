//! The vision tower of Qwen2-VL: patches ordered by window, rotary embeddings by row and column, and a layer that merges
//! each window into one vector. A still image fills all frames of a patch.
//!
//! transformers' `Qwen2VisionTransformerPretrainedModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2_vl/modeling_qwen2_vl.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("qwen2_vl_vision", &["qwen2_vl_vision"], config)
        .prefixes(&["visual.", "model.visual.", ""])
        .block("blocks.{i}.")
        .block_rules(Rule::fused_attention(&["attn.qkv"], FusedLayout::Blocks))
        .block_rules([
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("attention.output", &["attn.proj"]),
            Rule::norm("feed_forward_norm", &["norm2"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
        ])
        .end_rules([
            Rule::linear("embeddings.patch", &["patch_embed.proj"]),
            Rule::norm("pooler.window_norm", &["merger.ln_q"]),
            Rule::linear("pooler.transform", &["merger.mlp.0"]),
            Rule::linear("pooler.output", &["merger.mlp.2"]),
        ])
        .embeddings(|json, stack| {
            let d_model = stack.blocks[0].d_model();
            Ok(EmbeddingsConfig::Patches(embeddings(json, d_model)?))
        })
        .class_sizes(&["depth"])
        .pooler(merger)
        .outside(&["patch_embed.*", "merger.*"])
        // The text stack.
        .outside(&["model.embed_tokens.*", "model.layers.*", "model.norm.*"])
        .outside(&["model.language_model.*", "lm_head.*"])
}

/// Returns patch embeddings for images of any size that windows can fill; the smallest image is one window.
fn embeddings(json: &ConfigJson, d_model: usize) -> Result<PatchEmbeddingsConfig> {
    let patch = json.size_or(&["patch_size"], 14)?;
    let window = json.size_or(&["spatial_merge_size"], 2)?;
    Ok(PatchEmbeddingsConfig {
        n_channels: json.size_or(&["in_channels"], 3)?,
        frames: Some(json.size_or(&["temporal_patch_size"], 2)?),
        window,
        bias: false,
        class_token: false,
        positions: false,
        ..PatchEmbeddingsConfig::new(window * patch, patch, d_model)
    })
}

/// Returns the head that merges each window into one vector, as wide as the embeddings of the language model that reads it.
fn merger(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let window = json.size_or(&["spatial_merge_size"], 2)?;
    let (positions, norm) = (window.saturating_mul(window), stack.blocks[0].norm);
    let width = positions.saturating_mul(stack.blocks[0].d_model());
    let output = OutputConfig::new(json.size_or(&["hidden_size"], 3584)?).with_bias(true);
    Ok(
        ReadoutConfig::new(TokenSelection::Windows { positions, norm })
            .with_transform(TransformConfig::new(width, Activation::Gelu))
            .with_output(output),
    )
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size_or(&["embed_dim"], 1280)?;
    let patches = embeddings(json, d_model)?;
    let n_heads = json.size_or(&["num_heads", "num_attention_heads"], 16)?;
    let attention = AttentionConfig::new(d_model, n_heads)?;
    let axes = PatchAxes {
        n_front: 0,
        grid: patches.grid(),
        coordinates: PatchCoordinates::Counted,
        window: patches.window,
        random_in_training: false,
    };
    let theta = match json.rotary_section()? {
        None => 1e4,
        Some(parameters) => {
            parameters.only("rope_type", &[json!("axial")])?;
            parameters.number(&["rope_theta"], 1e4)?
        }
    };
    let rotary = RotaryConfig::new(attention.head_dim, theta).with_axes(RotaryAxes::Patches(axes));
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(d_model * json.size_or(&["mlp_ratio"], 4)?)
        .with_activation(json.activation(&["hidden_act"], Activation::QuickGelu)?);
    let norm = NormConfig::layer_norm(d_model, 1e-6);
    let attention = attention.with_position(Position::Rotary(rotary));
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    Ok(StackConfig::uniform(
        block,
        json.n_blocks(&["depth", "num_hidden_layers"])?,
        None,
    ))
}
