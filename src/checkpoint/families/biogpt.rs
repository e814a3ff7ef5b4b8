//! BioGPT: pre-norm decoder with OPT's names, GELU, and learned positions after two unused rows. XGLM: the same with
//! sinusoidal positions.
//!
//! transformers' `BioGptDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/biogpt/modeling_biogpt.py>, and
//! `XGLMDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/xglm/modeling_xglm.py>

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let with_table = table("biogpt", "biogpt.", biogpt)
        .end_rules([
            Rule::linear("embeddings.position", &["embed_positions"]),
            Rule::linear("causal_lm.output", &["output_projection"]),
        ])
        .new_names(|_| Ok(&["output_projection.*"]))
        .embeddings(|json, stack| embeddings(json, stack, PositionVectors::Learned))
        .outside(&["embed_positions.*", "output_projection.*"]);
    let renamed = [
        ("hidden_size", "d_model"),
        ("num_attention_heads", "attention_heads"),
        ("num_hidden_layers", "num_layers"),
        ("intermediate_size", "ffn_dim"),
        ("hidden_act", "activation_function"),
        ("hidden_dropout_prob", "dropout"),
        ("attention_probs_dropout_prob", "attention_dropout"),
    ];
    let with_sines = table("xglm", "model.", xglm)
        .embeddings(xglm_embeddings)
        .ignored(&["*embed_positions.weights"]);
    let rename = |table: Family, (key, name)| table.renamed(key, name);
    vec![with_table, renamed.into_iter().fold(with_sines, rename)]
}

fn table(name: &str, prefix: &str, config: fn(&ConfigJson) -> Result<StackConfig>) -> Family {
    Family::new(name, &[name], config)
        .prefixes(&[prefix, ""])
        .block("layers.{i}.")
        .block_rules(projections("attention", "self_attn", OUT_PROJ))
        .block_rules([
            Rule::norm("attention_norm", &["self_attn_layer_norm"]),
            Rule::norm("feed_forward_norm", &["final_layer_norm"]),
            Rule::linear("feed_forward.up", &["fc1"]),
            Rule::linear("feed_forward.down", &["fc2"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["layer_norm"])])
        .decoder_embeddings_and_heads("embed_tokens", "classifier")
        .head(HeadTask::TokenClassification, |json, _| {
            let hidden = json.number(&["hidden_dropout_prob"], 0.1)?;
            token(json, json.number(&["classifier_dropout"], hidden)?)
        })
        .outside(&["embed_tokens.*"])
}

const OUT_PROJ: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];

fn xglm_embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    // For another padding id that row would be zeros.
    json.only("pad_token_id", &[json!(0), json!(1)])?;
    let vectors = PositionVectors::Sines(LastFrequency::Reached);
    embeddings(json, stack, vectors)
}

fn embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
    vectors: PositionVectors,
) -> Result<EmbeddingsConfig> {
    let scale = match json.flag(&["scale_embedding"], true)? {
        true => (stack.blocks[0].d_model() as f64).sqrt(),
        false => 1.0,
    };
    let table = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])? + 2,
        first_row: 2,
        vectors,
        ..ALL_POSITIONS
    };
    let embeddings = padded_token_embeddings(json, stack)?
        .with_scale(scale)
        .with_position_table(table)
        .with_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    Ok(embeddings.into())
}

fn xglm(json: &ConfigJson) -> Result<StackConfig> {
    json.only("add_cross_attention", &[json!(false)])?;
    biogpt(json)
}

fn biogpt(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .causal()
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?)
        .with_dropout(json.number(&["activation_dropout"], 0.0)?);
    let norm = NormConfig::layer_norm(d_model, 1e-5); // whatever `layer_norm_eps` says
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre)
        .with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    let stack = StackConfig::uniform(block, n_blocks, Some(norm));
    Ok(stack.with_layer_drop(json.number(&["layerdrop"], 0.0)?))
}
