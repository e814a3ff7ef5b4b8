//! T5Gemma: encoder and decoder with Gemma 2's blocks. Each has a section of `config.json` and token embeddings of its own.
//!
//! transformers' `T5GemmaDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/t5gemma/modeling_t5gemma.py>

use super::encoder_decoder::start_token;
use super::gemma::{gemma2, sandwich_table, scaled_token_embeddings};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let of = |name: &str, part: StackPart, config| {
        let norm = |role: &str, name: &str| Rule::norm(role, &[name]);
        sandwich_table(name, config)
            .prefixes(&[&format!("model.{part}."), &format!("{part}.")])
            .block_rules(projections(
                "cross_attention",
                "cross_attn",
                ["q_proj", "k_proj", "v_proj", "o_proj"],
            ))
            .replace_block_rules([
                norm("attention_norm", "pre_self_attn_layernorm"),
                norm("attention_output_norm", "post_self_attn_layernorm"),
                norm("cross_attention_norm", "pre_cross_attn_layernorm"),
                norm("cross_attention_output_norm", "post_cross_attn_layernorm"),
            ])
            .replace_end_rules([Rule::linear("causal_lm.output", &["lm_head.out_proj"])])
            .embeddings(|json, stack| {
                let dropout = json.number(&["dropout_rate"], 0.0)?;
                Ok(scaled_token_embeddings(json, stack)?
                    .with_dropout(dropout)
                    .into())
            })
    };
    let whole = |part: StackPart, config| {
        let mut table = of("t5gemma", part, config);
        let other = match part {
            StackPart::Encoder => "*decoder.*",
            _ => "*encoder.*",
        };
        if part == StackPart::Decoder {
            let width = json!({"from": "encoder.hidden_size", "default": 2304});
            table.keys.fixed = json!({"cross_attention_hidden_size": width});
        }
        table
            .part(part)
            .section(&part.to_string())
            .handed_on("dropout_rate")
            .handed_on("attention_dropout")
            .outside(&[other])
    };
    let mut alone = of("t5_gemma_module", StackPart::Encoder, |json| {
        json.only("is_decoder", &[json!(false)])?;
        encoder(json)
    });
    alone.prefixes.push(String::new());
    vec![
        alone.without_heads(),
        whole(StackPart::Encoder, encoder).without_heads(),
        whole(StackPart::Decoder, decoder).joined(StackPart::Encoder, start),
    ]
    .into_iter()
    .map(|mut table| {
        // The classification heads read the last position of either stack.
        table.heads.retain(|(task, _)| *task == HeadTask::CausalLm);
        table
    })
    .collect()
}

/// Returns the start token: transformers' `_shift_right` takes the decoder's first one.
fn start(json: &ConfigJson) -> Result<TwoStackKind> {
    let decoder = json.section(&["decoder"])?;
    let first = decoder.map(|decoder| decoder.optional_size(&["bos_token_id"]));
    start_token(json, first.transpose()?.flatten().unwrap_or(2))
}

fn encoder(json: &ConfigJson) -> Result<StackConfig> {
    let dropout = json.number(&["dropout_rate"], 0.0)?;
    let stack = gemma2(json)?
        .with_each_attention(|_, attention| attention.visibility = Visibility::Bidirectional);
    let stack = stack.with_each(|_, block| {
        block.feed_forward.dropout = dropout;
        block.residual.attention_dropout = dropout;
        block.residual.feed_forward_dropout = dropout;
    });
    Ok(stack.with_output_dropout(dropout))
}

fn decoder(json: &ConfigJson) -> Result<StackConfig> {
    let stack = encoder(json)?;
    let d_encoder = json.optional_size(&["cross_attention_hidden_size"])?;
    Ok(stack.into_decoder().with_each(|_, block| {
        if let Some(cross) = &mut block.cross_attention {
            cross.d_encoder = d_encoder.unwrap_or(cross.d_model);
            cross.position = Position::None;
            cross.window = None;
        }
    }))
}
