//! RecurrentGemma (Griffin): real-gated linear recurrent units, and attention in a window in every third layer.
//!
//! transformers' `RecurrentGemmaDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/recurrent_gemma/modeling_recurrent_gemma.py>

use half::bf16;

use super::gemma::scaled_token_embeddings;
use super::llama::{decoder, uniform, unrotated_block};
use super::prelude::*;

const RECURRENT: &str = "recurrent";
const ATTENTION: &str = "attention";

pub(super) fn family() -> Family {
    let linear = |role: &str, name: &str| {
        Rule::linear(
            &format!("attention.lru.{role}"),
            &[&format!("temporal_block.{name}")],
        )
    };
    let gate = |role: &str, name: &str| {
        let role = format!("attention.lru.{role}.{{e}}");
        let name = |part: &str| format!("temporal_block.rg_lru.{name}_{part}");
        let rule = Rule::named(&role, &[&name("weight")], &[&name("bias")]);
        rule.in_out().stacked()
    };
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    decoder("recurrent_gemma", recurrent_gemma)
        .replace_block_rules([
            Rule::norm("attention_norm", &["temporal_pre_norm"]),
            Rule::norm("feed_forward_norm", &["channel_pre_norm"]),
        ])
        .replace_block_rules(projections("attention", "temporal_block", names))
        .replace_block_rules(gated("feed_forward", "mlp_block"))
        .block_rules([
            linear("value", "linear_x"),
            linear("value_convolution", "conv_1d"),
            linear("gate", "linear_y"),
            linear("output", "linear_out"),
            gate("input_gate", "input_gate"),
            gate("recurrence_gate", "recurrent_gate"),
            Rule::named(
                "attention.lru.rate",
                &["temporal_block.rg_lru.recurrent_param"],
                &[],
            ),
        ])
        .replace_stack_rules([Rule::norm("final_norm", &["final_norm"])])
        .embeddings(|json, stack| {
            let embeddings = scaled_token_embeddings(json, stack)?;
            // The class keeps the factor in bf16, whatever the type of the weights is.
            let scale = f64::from(bf16::from_f32(embeddings.scale as f32));
            Ok(embeddings.with_scale(scale).into())
        })
        .without_heads()
        .head(HeadTask::CausalLm, |json, _| {
            let keys = ["logits_soft_cap"];
            let cap = json.positive(json.number(&keys, 30.0)?, &keys)?;
            next_token(language_model(json)?.with_soft_cap(Some(cap)))
        })
        .initialization(initialization)
}

fn recurrent_gemma(json: &ConfigJson) -> Result<StackConfig> {
    let width = json.size(&["intermediate_size"])? / 2;
    let bias = AttentionBias::new(json.flag(&["attention_bias"], false)?, true);
    let mut block = unrotated_block(&json.with("intermediate_size", width), bias)?;
    block.norm.weight = NormWeight::OnePlus;
    block.feed_forward.activation =
        json.activation(&["hidden_activation"], Activation::GeluTanh)?;
    block.feed_forward = block.feed_forward.with_bias(true);
    let (d_model, n_heads) = (block.norm.d_model, block.attention()?.n_heads);
    let lru = RgLruConfig::new(d_model, json.width_or(&["lru_width"], d_model)?, n_heads)
        .with_taps(json.size_or(&["conv1d_width"], 4)?)
        .with_activation(block.feed_forward.activation);
    let window = json.size_or(&["attention_window_size"], 2048)?;
    let attention = block.attention_mut()?;
    attention.window = Some(window);
    attention.position = Position::Rotary(json.partial_rotary(attention.head_dim, 0.5, 10000.0)?);
    let kinds = json.texts(&["block_types"])?;
    let kinds =
        kinds.unwrap_or_else(|| [RECURRENT, RECURRENT, ATTENTION].map(String::from).to_vec());
    if let Some(unknown) = kinds
        .iter()
        .find(|kind| ![RECURRENT, ATTENTION].contains(&&kind[..]))
    {
        let reason = format!("{unknown:?} is not supported, only {RECURRENT:?} and {ATTENTION:?}");
        return Err(json.error(&["block_types"], reason));
    }
    if kinds.is_empty() {
        return Err(json.error(&["block_types"], "it lists no layers".to_string()));
    }
    Ok(uniform(json, block)?.with_each(|i, block| {
        if kinds[i % kinds.len()] == RECURRENT {
            block.mixer = lru.into();
        }
    }))
}

/// transformers' `RecurrentGemmaPreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let d_model = json.size(&["hidden_size"])?;
    let width = json.width_or(&["lru_width"], d_model)?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let variance = json.number(&["w_init_variance_scale"], 0.01)?;
    let last = 2.0 / json.n_blocks(&["num_hidden_layers"])? as f64;
    let last = json.number(&["final_w_init_variance_scale"], last)?;
    let normal = |variance: f64, n: usize| Distribution::Normal {
        deviation: (variance / n as f64).sqrt(),
    };
    let taps = json.size_or(&["conv1d_width"], 4)?;
    let of_model = normal(1.0, d_model);
    let of_gates = normal(variance, width / n_heads.max(1));
    let all = Initialization::normal((variance / taps as f64).sqrt());
    let all = ["query", "key", "value", "lru.value", "lru.gate"]
        .iter()
        .fold(all, |all, role| {
            all.with(&format!("*attention.{role}.weight"), of_model)
        });
    Ok(all
        .with("*attention.output.weight", normal(last, d_model))
        .with("*lru.output.weight", normal(last, width))
        .with("*lru.input_gate.*.weight", of_gates)
        .with("*lru.recurrence_gate.*.weight", of_gates)
        .with(
            "*lru.rate.weight",
            Distribution::BeforeDecay {
                low: 0.9,
                high: 0.999,
            },
        ))
}
