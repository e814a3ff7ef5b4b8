//! T5: encoder and decoder with RMSNorm, unscaled scores and a shared relative position bias.
//!
//! transformers' `T5Block`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/t5/modeling_t5.py>

use super::bart::OF_STACKS;
use super::encoder_decoder::{end_of_text, head_rules, start_token};
use super::t5_feed_forward::feed_forward;
use super::{new_names, prelude::*};

pub(super) fn families() -> Vec<Family> {
    let stack = |part, feed_forward: usize, config, other| {
        let of = |layer: usize, name: &str| format!("layer.{layer}.{name}");
        let dense = |role, name| {
            let name = format!("DenseReluDense.{name}");
            Rule::linear(role, &[&of(feed_forward, &name)])
        };
        let relative_bias = "block.0.layer.0.SelfAttention.relative_attention_bias";
        let names = ["shared", "transformer.shared", "embed_tokens"];
        Family::new("t5", &["t5", "mt5"], config)
            .part(part)
            .initialization(initialization)
            .new_names(new_names::of_t5)
            .prefixes(&[&format!("{part}."), &format!("transformer.{part}.")])
            .block("block.{i}.")
            .block_rules(attention("attention", "layer.0", "SelfAttention"))
            .block_rules(attention("cross_attention", "layer.1", "EncDecAttention"))
            .block_rules([
                Rule::norm("feed_forward_norm", &[&of(feed_forward, "layer_norm")]),
                dense("feed_forward.up", "wi"),
                dense("feed_forward.gate", "wi_0"),
                dense("feed_forward.up", "wi_1"),
                dense("feed_forward.down", "wo"),
            ])
            .stack_rules([
                Rule::linear("relative_bias", &[relative_bias]),
                Rule::norm("final_norm", &["final_layer_norm"]),
            ])
            .end_rules([
                Rule::linear("embeddings.word", &names),
                Rule::linear("embeddings.word", &OF_STACKS),
                Rule::linear("embeddings.tied_word", &["lm_head"]),
            ])
            .embeddings(embeddings)
            .ignored(&["*EncDecAttention.relative_attention_bias.*"]) // in older files, never used
            .outside(&["*shared.*", "*embed_tokens.*", other])
            .outside(&["lm_head.*", "classifier.*", "classification_head.*"])
            .outside(&["qa_outputs.*"])
    };
    vec![
        stack(StackPart::Encoder, 1, encoder, "*decoder.*")
            .end_rules([Rule::linear("token_classification.output", &["classifier"])])
            .head(HeadTask::TokenClassification, |json, _| {
                token(json, json.number(&["classifier_dropout"], 0.0)?)
            }),
        stack(StackPart::Decoder, 2, decoder, "*encoder.*")
            // A head without its own weight is tied to the token embeddings.
            .end_rules([Rule::linear("causal_lm.output", &["lm_head", "shared"])])
            .end_rules(head_rules())
            .head(HeadTask::CausalLm, next_token)
            .head(HeadTask::SequenceClassification, |json, stack| {
                end_of_text(json, stack, 1)
            })
            .head(HeadTask::QuestionAnswering, question_answering)
            .joined(StackPart::Encoder, |json| start_token(json, 0)),
    ]
}

/// Returns the language model's head. T5's first version scales its input: older files say so by tied weights, newer ones by
/// `scale_decoder_outputs`.
pub(super) fn next_token(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let is_t5 = json.text(&["model_type"])?.as_deref() == Some("t5");
    let is_first = is_t5 && json.flag(&["tie_word_embeddings"], true)?;
    let mut output = language_model(json)?;
    if json.flag(&["scale_decoder_outputs"], is_first)? {
        output.scale = (stack.blocks[0].d_model() as f64).powf(-0.5);
    }
    Ok(ReadoutConfig::new(TokenSelection::Each).with_output(output))
}

pub(super) fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let dropout = json.number(&["dropout_rate"], 0.1)?;
    Ok(token_embeddings(json, stack)?.with_dropout(dropout).into())
}

fn attention(role: &str, layer: &str, name: &str) -> Vec<Rule> {
    let mut rules = projections(role, &format!("{layer}.{name}"), ["q", "k", "v", "o"]);
    let norm = format!("{layer}.layer_norm");
    rules.push(Rule::norm(&format!("{role}_norm"), &[&norm]));
    rules
}

pub(super) fn encoder(json: &ConfigJson) -> Result<StackConfig> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    if classes
        .iter()
        .any(|class| class.ends_with("ForTokenClassification"))
    {
        // With this key, the encoder of that class attends to another model's output.
        json.only("is_decoder", &[false.into()])?;
    }
    config(json, json.n_blocks(&["num_layers", "num_hidden_layers"])?)
}

pub(super) fn decoder(json: &ConfigJson) -> Result<StackConfig> {
    let keys = ["num_decoder_layers", "num_layers", "num_hidden_layers"];
    Ok(config(json, json.n_blocks(&keys)?)?.into_decoder())
}

fn config(json: &ConfigJson, n_blocks: usize) -> Result<StackConfig> {
    let d_model = json.size(&["d_model", "hidden_size"])?;
    let n_heads = json.size(&["num_heads", "num_attention_heads"])?;
    let dropout = json.number(&["dropout_rate"], 0.1)?;
    let attention =
        AttentionConfig::with_head_dim(d_model, n_heads, json.size(&["d_kv", "head_dim"])?)
            .with_scale(1.0)
            .with_bias(AttentionBias::NONE)
            .with_dropout(dropout);
    let feed_forward = feed_forward(json, d_model)?.with_dropout(dropout);
    let norm = NormConfig::rms_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-6)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(dropout);
    let or = |key: &str, default| json.size_or(&[key], default);
    let bias = RelativeBiasConfig {
        n_buckets: or("relative_attention_num_buckets", 32)?,
        max_distance: or("relative_attention_max_distance", 128)?,
        n_heads,
    };
    let stack = StackConfig::uniform(block, n_blocks, Some(norm)).with_relative_bias(bias);
    Ok(stack.with_output_dropout(dropout))
}

/// Each standard deviation is the inverse square root of a width, because the scores are not scaled.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let factor = json.number(&["initializer_factor"], 1.0)?;
    let block = &encoder(json)?.blocks[0];
    let (d_model, d_ff) = (block.d_model(), block.feed_forward.d_ff);
    let (n_heads, d_kv) = (block.attention()?.n_heads, block.attention()?.head_dim);
    let normal = |width: usize| Distribution::Normal {
        deviation: factor / (width as f64).sqrt(),
    };
    Ok(Initialization::normal(factor)
        .with("*weight", normal(d_model))
        .with("*attention.query.weight", normal(d_model * d_kv))
        .with("*attention.output.weight", normal(n_heads * d_kv))
        .with("*feed_forward.down.weight", normal(d_ff))
        .with("embeddings.word.weight", normal(1))
        .with("causal_lm.output.weight", normal(1))
        .with("token_classification.output.weight", normal(1))
        .with("*norm.weight", Distribution::Constant(factor)))
}
