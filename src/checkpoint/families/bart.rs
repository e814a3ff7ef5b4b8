//! BART: post-norm encoder and decoder with cross-attention.
//!
//! transformers' `BartDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bart/modeling_bart.py>

use super::encoder_decoder::*;
use super::new_names::of_bart;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let sides: Sides = [
        |json| bart(json, "encoder"),
        |json| Ok(bart(json, "decoder")?.into_decoder()),
    ];
    let start = |json: &ConfigJson| start_token(json, 2);
    classifying(pair("bart", sides, learned_after_two, start))
}

/// Functions that read the configurations of the encoder and the decoder.
pub(super) type Sides = [fn(&ConfigJson) -> Result<StackConfig>; 2];

/// Returns both stacks of a model with BART's names. Its language model's head has a bias of its own.
pub(super) fn pair(
    name: &str,
    [encoder, decoder]: Sides,
    embeddings: ReadEmbeddings,
    kind: ReadTwoStackKind,
) -> [Family; 2] {
    let bias = Rule {
        bias: strings(&["final_logits_bias"]),
        ..Rule::with_leading_ones("causal_lm.output", &[], 1)
    };
    let side = |part, config| {
        let side = stack(name, part, config).embeddings(embeddings);
        side.new_names(of_bart)
    };
    [
        side(StackPart::Encoder, encoder),
        side(StackPart::Decoder, decoder)
            .end_rules([Rule::named("causal_lm.output", &["lm_head.weight"], &[])])
            .end_rules([bias])
            .untrained(&["causal_lm.output.bias"])
            .head(HeadTask::CausalLm, |json, _| {
                next_token(language_model(json)?.with_bias(true))
            })
            .joined(StackPart::Encoder, kind),
    ]
}

/// The table for one stack of an encoder-decoder with BART's names.
pub(super) fn stack(
    name: &str,
    part: StackPart,
    config: fn(&ConfigJson) -> Result<StackConfig>,
) -> Family {
    let own = |part: StackPart| [format!("model.{part}."), format!("{part}.")];
    let (prefixes, other) = match part {
        StackPart::Encoder => (own(StackPart::Encoder), "*decoder.*"),
        _ => (own(StackPart::Decoder), "*encoder.*"),
    };
    let stack_prefixes = OF_STACKS.map(|name| format!("model.{name}"));
    let stack_prefixes = stack_prefixes.each_ref().map(String::as_str);
    Family::new(name, &[name], config)
        .part(part)
        .prefixes(&prefixes.each_ref().map(String::as_str))
        .block("layers.{i}.")
        .block_rules(attention("attention", "self_attn"))
        .block_rules(attention("cross_attention", "encoder_attn"))
        .block_rules([
            Rule::linear("feed_forward.up", &["fc1"]),
            Rule::linear("feed_forward.down", &["fc2"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layer_norm"])])
        .end_rules([
            Rule::linear(
                "embeddings.word",
                &["model.shared", "shared", "embed_tokens"],
            ),
            Rule::linear("embeddings.tied_word", &["lm_head"]),
            Rule::linear("embeddings.tied_word", &OF_STACKS),
            Rule::linear("embeddings.tied_word", &stack_prefixes),
            Rule::linear("embeddings.position", &["embed_positions"]),
            Rule::norm("embeddings.norm", &["layernorm_embedding"]),
        ])
        .ignored(&["*encoder.version", "*decoder.version"]) // in older files
        .outside(&["*embed_positions.*", "*embed_tokens.*", "*shared.*"])
        .outside(&["layernorm_embedding.*", "conv*", other])
        .outside(&["lm_head.*", "proj_out.*", "final_logits_bias"])
        .outside(&["classification_head.*", "qa_outputs.*"])
        .outside(&["projector.*", "classifier.*", "layer_weights"])
}

/// Names that the token embeddings also have in each stack; files with one copy may have either.
pub(super) const OF_STACKS: [&str; 2] = ["encoder.embed_tokens", "decoder.embed_tokens"];

fn attention(role: &str, stem: &str) -> Vec<Rule> {
    let mut rules = projections(role, stem, ["q_proj", "k_proj", "v_proj", "out_proj"]);
    let norm = format!("{stem}_layer_norm");
    rules.push(Rule::norm(&format!("{role}_norm"), &[&norm]));
    rules
}

fn bart(json: &ConfigJson, side: &str) -> Result<StackConfig> {
    json.only("normalize_before", &[json!(false)])?; // mBART's variant
    json.only("add_final_layer_norm", &[json!(false)])?;
    config(json, side, AttentionBias::ALL, NormPlacement::Post)
}

/// Reads one stack's configuration, whose keys begin with `side`.
pub(super) fn config(
    json: &ConfigJson,
    side: &str,
    bias: AttentionBias,
    placement: NormPlacement,
) -> Result<StackConfig> {
    let key = |name: &str| format!("{side}_{name}");
    let d_model = json.size(&["d_model", "hidden_size"])?;
    let attention = AttentionConfig::new(
        d_model,
        json.size(&keys(side, &key("attention_heads"), "num_attention_heads"))?,
    )?
    .with_bias(bias)
    .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&[&key("ffn_dim")])?)
        .with_activation(json.activation(&["activation_function"], Activation::Gelu)?)
        .with_dropout(json.number(&["activation_dropout"], 0.0)?);
    let norm = NormConfig::layer_norm(d_model, 1e-5);
    let block = BlockConfig::new(attention, feed_forward, norm, placement)
        .with_residual_dropout(json.number(&["dropout"], 0.1)?);
    let n_blocks = json.n_blocks(&keys(side, &key("layers"), "num_hidden_layers"))?;
    let final_norm = (placement == NormPlacement::Pre).then_some(norm);
    let stack = StackConfig::uniform(block, n_blocks, final_norm);
    Ok(stack.with_layer_drop(json.number(&[&key("layerdrop")], 0.0)?))
}

/// Returns the names of one stack's key: transformers also accepts a common name for the encoder's.
fn keys<'k>(side: &str, own: &'k str, shared: &'k str) -> Vec<&'k str> {
    match side {
        "encoder" => vec![own, shared],
        _ => vec![own],
    }
}
