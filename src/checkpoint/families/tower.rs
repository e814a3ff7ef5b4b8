//! Settings that CLIP's and SigLIP's text and vision towers share.

use super::prelude::*;

/// The table for one of two towers with CLIP's names.
pub(super) fn tower(family: Family, part: StackPart) -> Family {
    let prefixes = match part {
        StackPart::Text => ["text_model.", ""],
        _ => ["vision_model.", ""],
    };
    let other = match part {
        StackPart::Text => "vision_model.*",
        _ => "text_model.*",
    };
    family
        .part(part)
        .prefixes(&prefixes)
        .block("encoder.layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["layer_norm1"]),
            Rule::linear("attention.query", &["self_attn.q_proj"]),
            Rule::linear("attention.key", &["self_attn.k_proj"]),
            Rule::linear("attention.value", &["self_attn.v_proj"]),
            Rule::linear("attention.output", &["self_attn.out_proj"]),
            Rule::norm("feed_forward_norm", &["layer_norm2"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
        ])
        .stack_rules([Rule::norm(
            "final_norm",
            &["final_layer_norm", "post_layernorm"],
        )])
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings.token_embedding"]),
            Rule::linear("embeddings.position", &["embeddings.position_embedding"]),
            Rule::linear("embeddings.patch", &["embeddings.patch_embedding"]),
            Rule::named(
                "embeddings.class_token",
                &["embeddings.class_embedding"],
                &[],
            ),
            Rule::norm("embeddings.norm", &["pre_layrnorm"]),
            Rule::norm("pooler.norm", &["post_layernorm"]),
            Rule::linear("image_classification.output", &["classifier"]),
        ])
        .outside(&["embeddings.*", "head.*", other, "logit_*"])
        .outside(&["text_projection.*", "visual_projection.*", "*classifier.*"])
        .outside(&["*layrnorm.*", "post_layernorm.*", "*pre_layernorm.*"])
}

/// Defaults of a tower's configuration class. Files only contain the keys that differ from them.
pub(super) struct Tower {
    /// The key of the tower's own section. A file with one tower has these keys at the top level.
    pub(super) section: &'static str,
    pub(super) visibility: Visibility,
    pub(super) activation: Activation,
    pub(super) eps: f64,
    /// The width of a default tower, with twelve blocks, head width 64, and a feed-forward four times as wide as the model.
    pub(super) width: usize,
}

impl Tower {
    /// Returns the tower's section of the file.
    pub(super) fn section(&self, json: &ConfigJson) -> Result<ConfigJson> {
        let section = json.section(&[self.section])?;
        Ok(section.unwrap_or_else(|| json.clone()))
    }

    /// Returns token embeddings with positions; `n_tokens` and `n_positions` are the default sizes.
    pub(super) fn token_embeddings(
        &self,
        json: &ConfigJson,
        stack: &StackConfig,
        [n_tokens, n_positions]: [usize; 2],
    ) -> Result<EmbeddingsConfig> {
        let json = self.section(json)?;
        let n_tokens = json.size_or(&["vocab_size"], n_tokens)?;
        let embeddings = TokenEmbeddingsConfig::new(n_tokens, stack.blocks[0].d_model());
        let n_positions = json.size_or(&["max_position_embeddings"], n_positions)?;
        Ok(embeddings.with_positions(n_positions).into())
    }

    pub(super) fn config(&self, json: &ConfigJson) -> Result<StackConfig> {
        let json = self.section(json)?;
        let or = |key, default| json.size_or(&[key], default);
        let d_model = or("hidden_size", self.width)?;
        let attention = AttentionConfig::new(d_model, or("num_attention_heads", self.width / 64)?)?
            .with_visibility(self.visibility)
            .with_dropout(json.number(&["attention_dropout"], 0.0)?);
        let feed_forward = FeedForwardConfig::new(d_model)
            .with_d_ff(or("intermediate_size", 4 * self.width)?)
            .with_activation(json.activation(&["hidden_act"], self.activation)?);
        let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], self.eps)?);
        let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
        let n_blocks = json.n_blocks_or(&["num_hidden_layers"], 12)?;
        masked(&json, StackConfig::uniform(block, n_blocks, Some(norm)))
    }
}

/// Rules for blocks with OpenCLIP's names.
pub(super) fn open_clip_rules() -> [Rule; 8] {
    let names = [["attn.in_proj_weight"], ["attn.in_proj_bias"]];
    let fused = |part: &str, projection| {
        Rule::named(&format!("attention.{part}"), &names[0], &names[1])
            .part(Part::Fused(FusedLayout::Blocks, projection))
    };
    [
        Rule::norm("attention_norm", &["ln_1"]),
        fused("query", Projection::Query),
        fused("key", Projection::Key),
        fused("value", Projection::Value),
        Rule::linear("attention.output", &["attn.out_proj"]),
        Rule::norm("feed_forward_norm", &["ln_2"]),
        Rule::linear("feed_forward.up", &["mlp.c_fc"]),
        Rule::linear("feed_forward.down", &["mlp.c_proj"]),
    ]
}
