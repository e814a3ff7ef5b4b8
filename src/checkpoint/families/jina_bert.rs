//! BERT, and the second generation of Jina's embeddings, whose code has the same model type: linear biases on both sides in the
//! place of position embeddings, and a gated feed-forward. Their embeddings of code have further norms.
//!
//! `JinaBertLayer` and `JinaBertGLUMLP`: <https://huggingface.co/jinaai/jina-bert-implementation/blob/main/modeling_bert.py>, and
//! <https://huggingface.co/jinaai/jina-bert-v2-qk-post-norm/blob/main/modeling_bert.py>

use super::bert;
use super::bert_writer::crossed;
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::table()
        .read_by(|json| crossed(json, config))
        .block_rules(Rule::fused_gate(&["mlp.gated_layers"], GateHalf::First))
        .block_rules(Rule::fused_gate(&["mlp.up_gated_layer"], GateHalf::Second))
        .block_rules([
            Rule::norm("attention.query_norm", &["attention.self.layer_norm_q"]),
            Rule::norm("attention.key_norm", &["attention.self.layer_norm_k"]),
            Rule::norm("second_attention_norm", &["layer_norm_1"]),
        ])
        .replace_block_rules([
            Rule::linear(
                "feed_forward.down",
                &["output.dense", "mlp.wo", "mlp.down_layer"],
            ),
            Rule::norm(
                "feed_forward_norm",
                &["output.LayerNorm", "mlp.layernorm", "layer_norm_2"],
            ),
        ])
        .embeddings(|json, stack| match is_linear(json)? {
            true => {
                Ok(bert::typed_token_embeddings(json, stack, stack.blocks[0].d_model())?.into())
            }
            false => bert::embeddings(json, stack, ALL_POSITIONS),
        })
        .new_names(|json| {
            let is_tied = json.flag(&["tie_word_embeddings"], true)?;
            Ok(match (gate(json)?, is_of_code(json)?, is_tied) {
                (Some(_), true, _) => &[
                    "*.mlp.up_gated_layer.*",
                    "*.mlp.down_layer.*",
                    "*.layer_norm_2.*",
                    "*predictions.bias",
                ],
                (Some(_), false, _) => &[
                    "*.mlp.gated_layers.*",
                    "*.mlp.wo.*",
                    "*.mlp.layernorm.*",
                    "*predictions.bias",
                ],
                (None, _, true) => &["*predictions.bias"],
                (None, _, false) => &[],
            })
        })
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
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
    if is_of_code(json)? {
        block.own = OwnConfig::JinaCode;
        let norm = QueryKeyNorm::new(block.norm, QueryKeyNormSpan::Whole);
        block.attention_mut()?.query_key_norm = Some(norm);
    }
    if is_linear(json)? {
        let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::None);
        block.attention_mut()?.position = Position::Alibi(alibi.with_both_sides(true));
    }
    bert::stack(json, block)
}

/// Returns whether the code is that for embeddings of code: queries and keys are normalized, and the attention's output twice.
fn is_of_code(json: &ConfigJson) -> Result<bool> {
    let code = json.section(&["auto_map"])?;
    let code = code.map(|code| code.text(&["AutoConfig"])).transpose()?;
    let names = [code.flatten(), json.text(&["_name_or_path"])?];
    let is_of_code = |name: &String| name.contains("jina-bert-v2-qk-post-norm");
    Ok(names.iter().flatten().any(is_of_code))
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
