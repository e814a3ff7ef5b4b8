//! BERT, and the second generation of Jina's embeddings, whose code has the same model type: linear biases on both sides in the
//! place of position embeddings, and a gated feed-forward.
//!
//! `JinaBertLayer` and `JinaBertGLUMLP`: <https://huggingface.co/jinaai/jina-bert-implementation/blob/main/modeling_bert.py>

use super::bert;
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::family()
        .read_by(config)
        .block_rules(Rule::fused_gate(&["mlp.gated_layers"], GateHalf::First))
        .replace_block_rules([
            Rule::linear("feed_forward.down", &["output.dense", "mlp.wo"]),
            Rule::norm("feed_forward_norm", &["output.LayerNorm", "mlp.layernorm"]),
        ])
        .embeddings(|json, stack| match is_linear(json)? {
            true => Ok(bert::typed_words(json, stack, stack.blocks[0].d_model())?.into()),
            false => bert::embeddings(json, stack, ALL_POSITIONS),
        })
        .new_names(|json| {
            let is_tied = json.flag(&["tie_word_embeddings"], true)?;
            Ok(match (gate(json)?, is_tied) {
                (Some(_), true) => &["*.mlp.*", "*predictions.bias"],
                (Some(_), false) => &["*.mlp.*"],
                (None, _) => new_bias(json)?,
            })
        })
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let code = json.section(&["auto_map"])?;
    let code = code.map(|code| code.text(&["AutoConfig"])).transpose()?;
    let names = [code.flatten(), json.text(&["_name_or_path"])?];
    if let Some(name) = names
        .into_iter()
        .flatten()
        .find(|name| name.contains("qk-post-norm"))
    {
        let reason =
            format!("{name} normalizes an attention's output twice, which is not supported");
        return Err(json.error(&["auto_map", "_name_or_path"], reason));
    }
    let mut block = bert::block(json)?;
    if let Some(activation) = gate(json)? {
        block.feed_forward = block
            .feed_forward
            .with_form(FeedForwardForm::Gated)
            .with_activation(activation)
            .with_dropout(hidden_dropout(json)?);
        block.feed_forward.up_bias = false;
        block.residual.feed_forward_dropout = 0.0;
    }
    if is_linear(json)? {
        let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::None);
        block.attention.position = Position::Alibi(alibi.with_both_sides(true));
    }
    bert::stack(json, block)
}

/// Returns whether scores decrease with the distance, instead of position embeddings.
fn is_linear(json: &ConfigJson) -> Result<bool> {
    let key = "position_embedding_type";
    json.only(key, &[json!("absolute"), json!("alibi")])?;
    Ok(json.text(&[key])?.as_deref() == Some("alibi"))
}

/// Returns the activation of a gated feed-forward, or `None` for BERT's.
fn gate(json: &ConfigJson) -> Result<Option<Activation>> {
    let key = "feed_forward_type";
    json.only(key, &["original", "geglu", "reglu"].map(Value::from))?;
    Ok(match json.text(&[key])?.as_deref() {
        Some("geglu") => Some(Activation::Gelu),
        Some("reglu") => Some(Activation::Relu),
        _ => None,
    })
}
