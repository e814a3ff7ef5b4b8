//! XLM and FlauBERT: BERT's blocks, whose parts lie in lists of their own.
//!
//! transformers' `XLMModel` and `FlaubertModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/xlm/modeling_xlm.py>

use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    ["xlm", "flaubert"].map(family).into()
}

fn family(name: &str) -> Family {
    let names = ["q_lin", "k_lin", "v_lin", "out_lin"];
    Family::new(name, &[name], config)
        .prefixes(&["transformer.", ""])
        .block_rules(projections("attention", "attentions.{i}", names))
        .block_rules([
            Rule::norm("attention_norm", &["layer_norm1.{i}"]),
            Rule::linear("feed_forward.up", &["ffns.{i}.lin1"]),
            Rule::linear("feed_forward.down", &["ffns.{i}.lin2"]),
            Rule::norm("feed_forward_norm", &["layer_norm2.{i}"]),
        ])
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings"]),
            Rule::linear("embeddings.position", &["position_embeddings"]),
            Rule::norm("embeddings.norm", &["layer_norm_emb"]),
            Rule::linear("masked_lm.output", &["pred_layer.proj"]),
            Rule::linear("token_classification.output", &["classifier"]),
        ])
        .embeddings(|json, stack| {
            let embeddings = padded_token_embeddings(json, stack)?
                .with_positions(json.size_or(&["max_position_embeddings"], 512)?)
                .with_norm(stack.blocks[0].norm)
                .with_dropout(json.number(&["dropout"], 0.1)?);
            Ok(embeddings.into())
        })
        .head(HeadTask::MaskedLm, |json, _| {
            json.only("asm", &[json!(false)])?; // an adaptive softmax
            next_token(language_model(json)?.with_bias(true))
        })
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, json.number(&["dropout"], 0.1)?)
        })
        .outside(&["*embeddings.*", "layer_norm_emb.*", "pred_layer.*"])
        .outside(&["sequence_summary.*", "classifier.*", "qa_outputs.*"])
        .initialization(initialization)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("causal", &[json!(false)])?; // without a mask for padding
    json.only("is_encoder", &[json!(true)])?;
    json.only("pre_norm", &[json!(false)])?; // which transformers 5.23 cannot run
    let d_model = json.size_or(&["emb_dim"], 2048)?;
    let dropout = json.number(&["dropout"], 0.1)?;
    let attention = AttentionConfig::new(d_model, json.size_or(&["n_heads"], 16)?)?
        .with_dropout(json.number(&["attention_dropout"], 0.1)?);
    let activation = match json.flag(&["gelu_activation"], true)? {
        true => Activation::Gelu,
        false => Activation::Relu,
    };
    let feed_forward = FeedForwardConfig::new(d_model).with_activation(activation);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    let block = block.with_residual_dropout(dropout);
    let stack = StackConfig::uniform(block, json.n_blocks(&["n_layers"])?, None);
    Ok(stack.with_layer_drop(json.number(&["layerdrop"], 0.0)?))
}

fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let deviation = json.number(&["embed_init_std"], 2048f64.powf(-0.5))?;
    let embeddings = Distribution::Normal { deviation };
    let all = Initialization::normal(initializer_range::deviation(json, 0.02)?);
    Ok(all
        .with("embeddings.*.weight", embeddings)
        .with("embeddings.norm.weight", Distribution::Layer))
}
