//! DINOv3: DINOv2's blocks with rotary embeddings by the row and column of each patch.
//!
//! transformers' `DINOv3ViTLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dinov3_vit/modeling_dinov3_vit.py>

use super::{dinov2, patches, prelude::*};

pub(super) fn family() -> Family {
    let token = |role: &str, name: &str, ones| Rule::with_leading_ones(role, &[name], ones);
    Family::new("dinov3_vit", &["dinov3_vit"], config)
        .prefixes(&[""])
        .block("layer.{i}.")
        .block_rules([Rule::norm("attention_norm", &["norm1"])])
        .block_rules(projections(
            "attention",
            "attention",
            ["q_proj", "k_proj", "v_proj", "o_proj"],
        ))
        .block_rules([
            Rule::named("attention_layer_scale", &["layer_scale1.lambda1"], &[]),
            Rule::norm("feed_forward_norm", &["norm2"]),
            Rule::named("feed_forward_layer_scale", &["layer_scale2.lambda1"], &[]),
        ])
        .block_rules(gated("feed_forward", "mlp"))
        .stack_rules([Rule::norm("final_norm", &["norm"])])
        .end_rules([
            Rule::linear("embeddings.patch", &["embeddings.patch_embeddings"]),
            token("embeddings.class_token", "embeddings.cls_token", 2),
            token("embeddings.registers", "embeddings.register_tokens", 1),
        ])
        .embeddings(|json, stack| {
            Ok(EmbeddingsConfig::Patches(embeddings(
                json,
                stack.blocks[0].d_model(),
            )?))
        })
        .pooler(|_, _| Ok(ReadoutConfig::new(TokenSelection::First)))
        .ignored(&["embeddings.register_tokens"]) // without register tokens
        .ignored(&["*embeddings.mask_token"]) // for pretraining alone
        .outside(&["embeddings.*"])
        .initialization(initialization)
}

fn embeddings(json: &ConfigJson, d_model: usize) -> Result<PatchEmbeddingsConfig> {
    Ok(PatchEmbeddingsConfig {
        positions: false,
        n_registers: json.size_or(&["num_register_tokens"], 0)?,
        ..patches::config(json, d_model, [224, 16])?
    })
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size_or(&["hidden_size"], 384)?;
    let patches = embeddings(json, d_model)?;
    let random = [
        json.optional_number(&["pos_embed_shift"])?,
        json.optional_number(&["pos_embed_jitter"])?,
        json.switchable_number("pos_embed_rescale", 2.0)?,
    ];
    let axes = PatchAxes {
        n_front: patches.n_front(),
        grid: patches.grid(),
        coordinates: PatchCoordinates::Centers,
        window: 1,
        random_in_training: random.into_iter().flatten().next().is_some(),
    };
    let attention = AttentionConfig::new(d_model, json.size_or(&["num_attention_heads"], 6)?)?;
    let theta = json.number(&["rope_theta"], 100.0)?;
    let rotary = RotaryConfig::new(attention.head_dim, theta).with_axes(RotaryAxes::Patches(axes));
    let attention = attention
        .with_bias(AttentionBias {
            query: json.flag(&["query_bias"], true)?,
            key: json.flag(&["key_bias"], false)?,
            value: json.flag(&["value_bias"], true)?,
            output: json.flag(&["proj_bias"], true)?,
        })
        .with_position(Position::Rotary(rotary))
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let form = match json.flag(&["use_gated_mlp"], false)? {
        true => FeedForwardForm::Gated,
        false => FeedForwardForm::Plain,
    };
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size_or(&["intermediate_size"], 1536)?)
        .with_form(form)
        .with_bias(json.flag(&["mlp_bias"], true)?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-5)?);
    let residual = ResidualConfig {
        layer_scale: true,
        drop_path: json.number(&["drop_path_rate"], 0.0)?, // the same at every depth
        ..ResidualConfig::default()
    };
    let block =
        BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre).with_residual(residual);
    let n_blocks = json.n_blocks_or(&["num_hidden_layers"], 12)?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let in_blocks = dinov2::initialization(json)?;
    Ok(in_blocks.with("embeddings.*.weight", dinov2::weight(json)?))
}
