//! Decoders of code on the Hub that compute as Llama, with other names or few settings: Yi, XVERSE, Skywork, Aquila, Orion, DeciLM,
//! Baichuan, MiniCPM, and Llama and Qwen 3 without a causal mask.
//!
//! <https://huggingface.co/01-ai/Yi-6B>, <https://huggingface.co/xverse/XVERSE-13B>, <https://huggingface.co/Skywork/Skywork-13B-base>,
//! <https://huggingface.co/BAAI/Aquila-7B>, <https://huggingface.co/OrionStarAI/Orion-14B-Base>, <https://huggingface.co/Deci/DeciLM-7B>,
//! <https://huggingface.co/baichuan-inc/Baichuan-13B-Base>, <https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16>,
//! <https://huggingface.co/nvidia/llama-embed-nemotron-8b>, <https://huggingface.co/perplexity-ai/pplx-embed-v1-0.6b>

use super::llama::{bias, block, decoder, decoder_of_hub, llama, uniform};
use super::prelude::*;
use super::qwen::qwen3;

pub(super) fn families() -> Vec<Family> {
    let yi = decoder_of_hub("Yi", plain).replace_block_rules([
        Rule::norm("attention_norm", &["ln1", "input_layernorm"]),
        Rule::norm("feed_forward_norm", &["ln2", "post_attention_layernorm"]),
    ]);
    let yi = yi.default_of("rms_norm_eps", 1e-5);
    let orion = decoder_of_hub("orion", |json| {
        json.only("attention_bias", &[json!(false)])?;
        let mut block = block(json, AttentionBias::NONE)?;
        block.norm = NormConfig::layer_norm(block.d_model(), block.norm.eps);
        uniform(json, block)
    });
    let orion = orion.default_of("rms_norm_eps", 1e-5);
    let baichuan = decoder_of_hub("baichuan", baichuan)
        .replace_block_rules(Rule::fused_attention(
            &["self_attn.W_pack"],
            FusedLayout::Blocks,
        ))
        .head(HeadTask::CausalLm, |json, _| {
            // The second generation has the same type, another vocabulary, and a setting for training.
            let is_second =
                json.at("z_loss_weight").is_some() || json.size(&["vocab_size"])? == 125_696;
            next_token(language_model(json)?.with_unit_rows(is_second))
        });
    let minicpm = decoder("minicpm", minicpm)
        .embeddings(|json, stack| {
            let scale = json.number(&["scale_emb"], 1.0)?;
            Ok(padded_token_embeddings(json, stack)?
                .with_scale(scale)
                .into())
        })
        .head(HeadTask::CausalLm, |json, stack| {
            let base = json.number(&["dim_model_base"], 1.0)?;
            let d_model = stack.blocks[0].d_model() as f64;
            next_token(language_model(json)?.with_scale(base / d_model))
        });
    vec![
        yi,
        orion,
        baichuan,
        minicpm,
        decoder_of_hub("xverse", plain),
        decoder_of_hub("skywork", plain),
        decoder_of_hub("aquila", plain),
        decoder_of_hub("deci", deci),
        both_ways(decoder("llama_bidirec", llama)).like_class("llama"),
        both_ways(decoder("bidirectional_pplx_qwen3", qwen3)).like_class("qwen3"),
    ]
}

/// Returns the table of a class without heads, in which each token attends to all others.
fn both_ways(table: Family) -> Family {
    let mask = json!({"attention": {"visibility": "bidirectional"}});
    table.without_heads().change(BlockChange::new(mask))
}

fn plain(json: &ConfigJson) -> Result<StackConfig> {
    json.only("num_experts", &[json!(0)])?;
    uniform(json, block(json, AttentionBias::NONE)?)
}

/// The smaller size rotates queries and keys. The larger one has linear biases, and no `max_position_embeddings`.
fn baichuan(json: &ConfigJson) -> Result<StackConfig> {
    let key = "max_position_embeddings";
    let rotates = json.optional_size(&[key])?.is_some();
    let d_model = json.size(&["hidden_size"])?;
    if d_model == if rotates { 5120 } else { 4096 } {
        let reason =
            "expected for a width of 4096, which rotates queries and keys, and not for 5120";
        return Err(json.error(&[key], reason));
    }
    let mut stack = plain(json)?;
    if !rotates {
        let alibi = AlibiConfig::new(AlibiSlopes::Appended, 1.0, AlibiRounding::None);
        stack =
            stack.with_each_attention(|_, attention| attention.position = Position::Alibi(alibi));
    }
    Ok(stack)
}

fn minicpm(json: &ConfigJson) -> Result<StackConfig> {
    json.only("num_experts", &[json!(0)])?;
    json.only("sparse_config", &[Value::Null])?;
    let stack = uniform(json, block(json, bias(json)?)?)?;
    let depth = (stack.blocks.len() as f64).sqrt();
    let scale = json.number(&["scale_depth"], 1.0)? / depth;
    Ok(stack.with_each(|_, block| block.residual.multiplier = scale))
}

fn deci(json: &ConfigJson) -> Result<StackConfig> {
    json.only("block_configs", &[Value::Null])?;
    let key = ["num_key_value_heads_per_layer"];
    let Some(of_layers) = json.numbers(&key)? else {
        return llama(json);
    };
    let stack = llama(&json.without("num_key_value_heads"))?;
    let is_count = |number: &f64| number.fract() == 0.0 && (1.0..1e6).contains(number);
    if of_layers.len() != stack.blocks.len() || !of_layers.iter().all(is_count) {
        let reason = format!(
            "expected a number of heads for each of {} layers",
            stack.blocks.len()
        );
        return Err(json.error(&key, reason));
    }
    Ok(stack.with_each_attention(|i, attention| attention.n_kv_heads = of_layers[i] as usize))
}
