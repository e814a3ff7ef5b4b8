//! Jina Embeddings v3: BERT's blocks with rotary embeddings, as in GTE. In the authors' own code, Jina Reranker v2 has the same
//! names, and XLM-RoBERTa's table of positions instead.
//!
//! transformers' `JinaEmbeddingsV3Layer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/jina_embeddings_v3/modeling_jina_embeddings_v3.py>

use super::bert;
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    bert::encoder("jina_embeddings_v3", "roberta.")
        .read_by(|json| uniform(json, block(json)?))
        .ignored(&["*.parametrizations.weight.0.lora_*"])
        .block("encoder.layers.{i}.")
        .replace_block_rules(Rule::fused_attention(&["mixer.Wqkv"], FusedLayout::Blocks))
        .replace_block_rules([
            Rule::linear("attention.output", &["mixer.out_proj"]),
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("feed_forward.up", &["mlp.fc1"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
            Rule::norm("feed_forward_norm", &["norm2"]),
        ])
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules())
        .end_rules([Rule::norm("embeddings.norm", &["emb_ln"])])
        .embeddings(|json, stack| {
            if !rotates(json)? {
                let padding = json.size_or(&["pad_token_id"], 1)?;
                return bert::embeddings(json, stack, positions_except(padding));
            }
            let width = stack.blocks[0].d_model();
            Ok(bert::typed_token_embeddings(json, stack, width)?.into())
        })
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_gelu)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, Activation::Tanh, classifier_dropout(json)?)
        })
        .new_names(|json| {
            Ok(match json.flag(&["tie_word_embeddings"], true)? {
                true => &["*emb_ln.*", "lm_head.bias"],
                false => &["*emb_ln.*"],
            })
        })
        .outside(&["emb_ln.*"])
}

/// Returns this type for a file of the authors' own code, which has another type or none.
///
/// <https://huggingface.co/jinaai/xlm-roberta-flash-implementation/blob/main/configuration_xlm_roberta.py>
pub(in crate::checkpoint) fn type_of_code(json: &ConfigJson) -> Result<Option<&'static str>> {
    let class = json.value_at("auto_map.AutoConfig").and_then(Value::as_str);
    let is_own = class.is_some_and(|class| class.ends_with("XLMRobertaFlashConfig"));
    Ok(is_own.then_some("jina_embeddings_v3"))
}

/// Returns whether queries and keys are rotated; otherwise there is a table of positions.
fn rotates(json: &ConfigJson) -> Result<bool> {
    let key = "position_embedding_type";
    if type_of_code(json)?.is_none() {
        return Ok(true); // transformers' class
    }
    json.only(key, &[json!("rotary"), json!("absolute")])?;
    Ok(json.text(&[key])?.is_none_or(|kind| kind == "rotary"))
}

fn block(json: &ConfigJson) -> Result<BlockConfig> {
    if !rotates(json)? {
        return bert::block(json);
    }
    let code_base = match type_of_code(json)? {
        Some(_) => Some(json.number(&["rotary_emb_base"], 10000.0)?),
        None => None,
    };
    let json = &code_base.map_or_else(|| json.clone(), |base| json.with("rope_theta", base));
    block_with(json, |json, head_dim| json.rotary(head_dim, 10000.0))
}

/// Returns BERT's block with the rotary embeddings that `rotary` reads for its head width.
pub(super) fn block_with(
    json: &ConfigJson,
    rotary: fn(&ConfigJson, usize) -> Result<RotaryConfig>,
) -> Result<BlockConfig> {
    let mut block = bert::block(json)?;
    let d_head = json.optional_size(&["head_dim"])?;
    let usual = block.attention()?.head_dim;
    if let Some(d_head) = d_head.filter(|&d_head| d_head != usual) {
        let reason = format!("found {d_head}, expected the model's width divided by the heads");
        return Err(json.error(&["head_dim"], reason));
    }
    block.attention_mut()?.position = Position::Rotary(rotary(json, usual)?);
    Ok(block)
}

pub(super) fn uniform(json: &ConfigJson, block: BlockConfig) -> Result<StackConfig> {
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None))
}
