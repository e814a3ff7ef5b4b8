//! CLIP: a text tower and a vision tower of pre-norm blocks.
//!
//! transformers' `CLIPEncoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/clip/modeling_clip.py>

use super::{patches, prelude::*};

pub(super) fn families() -> Vec<Family> {
    [
        tower(
            Family::new("clip", &["clip", "clip_text_model"], |json| {
                TEXT.config(json)
            })
            .initialization(|json| initialization(json, &TEXT))
            .embeddings(|json, stack| TEXT.words(json, stack, [49408, 77]))
            .end_rules([Rule::linear("projection.output", &["text_projection"])])
            .end_rules([Rule::named("similarity", &["logit_scale"], &[])])
            .pooler(end_of_text)
            .joined(StackPart::Vision, |_| Ok(Joint::Similarity { bias: false })),
            StackPart::Text,
        ),
        tower(
            Family::new("clip", &["clip", "clip_vision_model"], vision)
                .initialization(|json| initialization(json, &VISION))
                .embeddings(images)
                .end_rules([Rule::linear("projection.output", &["visual_projection"])])
                .pooler(first_normed),
            StackPart::Vision,
        ),
    ]
    .map(|family| family.head(Task::Projection, projection))
    .into()
}

/// One of two towers with CLIP's names.
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
        .ignored(&["*position_ids"])
        .outside(&["embeddings.*", "head.*", other, "logit_*"])
        .outside(&["text_projection.*", "visual_projection.*", "*classifier.*"])
        .outside(&["*layrnorm.*", "post_layernorm.*"])
}

const TEXT: Tower = Tower {
    section: "text_config",
    visibility: Visibility::Causal,
    activation: Activation::QuickGelu,
    eps: 1e-5,
    width: 512,
};
const VISION: Tower = Tower {
    section: "vision_config",
    visibility: Visibility::Bidirectional,
    width: 768,
    ..TEXT
};

fn vision(json: &ConfigJson) -> Result<StackConfig> {
    // Its last norm is for the pooled output alone.
    Ok(StackConfig {
        final_norm: None,
        ..VISION.config(json)?
    })
}

/// The end of a text. Files of before 2023 have a wrong number for its token, which is the highest.
fn end_of_text(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let end = TEXT.section(json)?.size_or(&["eos_token_id"], 49407)?;
    Ok(ReadoutConfig::new(match end {
        2 => Reads::Highest,
        end => Reads::FirstOf(end as u32),
    }))
}

fn images(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let patches = patches::config(&VISION.section(json)?, stack, [224, 32])?;
    Ok(EmbeddingsConfig::Patches(PatchEmbeddingsConfig {
        bias: false,
        norm: Some(stack.blocks[0].norm),
        ..patches
    }))
}

fn first_normed(_: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let norm = TransformConfig::norm(stack.blocks[0].norm);
    Ok(ReadoutConfig::new(Reads::First).with_transform(norm))
}

/// Into the space that texts and images have in common.
fn projection(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let output = OutputConfig::new(json.size_or(&["projection_dim"], 512)?);
    Ok(ReadoutConfig::new(Reads::Pooled).with_output(output))
}

/// What the configuration class of a tower says where the file says nothing: files hold what differs from it.
pub(super) struct Tower {
    /// The key of the tower's own configuration; a file of one tower has its keys outside.
    pub(super) section: &'static str,
    pub(super) visibility: Visibility,
    pub(super) activation: Activation,
    pub(super) eps: f64,
    /// A tower of twelve blocks with heads of width 64 and a feed-forward four times as wide as the model.
    pub(super) width: usize,
}

impl Tower {
    /// Its own part of the file.
    pub(super) fn section(&self, json: &ConfigJson) -> Result<ConfigJson> {
        let section = json.section(&[self.section])?;
        Ok(section.unwrap_or_else(|| json.clone()))
    }

    /// Words and positions, of which there are so many where the file says nothing.
    pub(super) fn words(
        &self,
        json: &ConfigJson,
        stack: &StackConfig,
        [n_tokens, n_positions]: [usize; 2],
    ) -> Result<EmbeddingsConfig> {
        let json = self.section(json)?;
        let n_tokens = json.size_or(&["vocab_size"], n_tokens)?;
        let words = TokenEmbeddingsConfig::new(n_tokens, stack.blocks[0].d_model());
        let n_positions = json.size_or(&["max_position_embeddings"], n_positions)?;
        Ok(words.with_positions(n_positions).into())
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
        let n_blocks = match json.optional_size(&["num_hidden_layers"])? {
            Some(_) => json.n_blocks(&["num_hidden_layers"])?,
            None => 12,
        };
        Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
    }
}

/// Smaller where a branch is added to the residual stream, by the depth of the tower.
fn initialization(json: &ConfigJson, tower: &Tower) -> Result<Initialization> {
    let stack = tower.config(json)?;
    let factor = tower.section(json)?.number(&["initializer_factor"], 1.0)?;
    let width = stack.blocks[0].d_model() as f64;
    let depth = stack.blocks.len() as f64;
    let normal = |by: f64| Draw::Normal {
        deviation: factor / by.sqrt(),
    };
    Ok(Initialization::normal(0.02)
        .with("*attention.*.weight", normal(width * 2.0 * depth))
        .with("*attention.output.weight", normal(width))
        .with("*feed_forward.up.weight", normal(2.0 * width))
        .with("*feed_forward.down.weight", normal(width * 2.0 * depth)))
}
