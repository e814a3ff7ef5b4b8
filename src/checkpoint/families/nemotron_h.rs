//! Nemotron-H and Nemotron 3: each layer is Mamba-2, attention without positions, or a feed-forward or experts without gates.
//!
//! transformers' `NemotronHBlock`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/nemotron_h/modeling_nemotron_h.py>

use super::layer_types::{FULL, LINEAR};
use super::mamba_mixer::{drawn, of_heads, renamed, rules};
use super::prelude::*;
use super::sigmoid_experts::{correction, with_experts};

pub(super) fn family() -> Family {
    let of_experts = |part: &str| {
        let role = format!("feed_forward.experts.{{e}}.{part}");
        let stacked = format!("mixer.experts.{part}_proj");
        [
            Rule::linear(&role, &[&format!("mixer.experts.{{e}}.{part}_proj")]),
            Rule::named(&role, &[&stacked], &[]).stacked(),
        ]
    };
    let family = Family::new("nemotron_h", &["nemotron_h"], nemotron_h)
        .prefixes(&["backbone.", "model.", ""])
        .block("layers.{i}.")
        .block_rules([
            Rule::norm("attention_norm", &["norm"]),
            Rule::norm("feed_forward_norm", &["norm"]),
            Rule::linear("feed_forward.up", &["mixer.up_proj"]),
            Rule::linear("feed_forward.down", &["mixer.down_proj"]),
            Rule::linear("feed_forward.router", &["mixer.gate"]),
            Rule::linear("feed_forward.latent_down", &["mixer.fc1_latent_proj"]),
            Rule::linear("feed_forward.latent_up", &["mixer.fc2_latent_proj"]),
            correction("mixer.gate.e_score_correction_bias"),
        ])
        .block_rules(projections(
            "attention",
            "mixer",
            ["q_proj", "k_proj", "v_proj", "o_proj"],
        ))
        .block_rules(gated("feed_forward.shared", "mixer.shared_experts"))
        .block_rules(of_experts("up"))
        .block_rules(of_experts("down"))
        .block_rules(rules("mixer"))
        .stack_rules([Rule::norm("final_norm", &["norm_f"])])
        .decoder_embeddings_and_heads("embeddings", "classifier")
        .ignored(&["mtp.*"])
        .initialization(initialization)
        .renamed("layer_types", "layers_block_type")
        .renamed("mamba_n_heads", "mamba_num_heads")
        .renamed("mamba_d_head", "mamba_head_dim")
        .renamed("mamba_d_state", "ssm_state_size");
    renamed(family)
}

const FEED_FORWARD: &str = "mlp";
const EXPERTS: &str = "moe";

fn nemotron_h(json: &ConfigJson) -> Result<StackConfig> {
    let kinds = kinds(json)?;
    json.only("mamba_hidden_act", &["silu".into(), "swish".into()])?;
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let attention = attention_of(json, d_model, json.size(&["num_attention_heads"])?)?
        .with_kv_heads(json.size_or(&["num_key_value_heads"], 8)?)
        .causal()
        .with_bias(AttentionBias::NONE)
        .with_dropout(json.number(&["attention_dropout"], 0.0)?);
    // The largest step, and the key time_step_limit, are not read by the class.
    let mamba = of_heads(&json.without("time_step_limit"), norm, heads(json)?)?
        .with_min_step(json.number(&["time_step_min"], 1e-3)?);
    let dense = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_form(FeedForwardForm::Plain)
        .with_activation(json.activation(&["mlp_hidden_act"], Activation::Relu2)?)
        .with_bias(json.flag(&["mlp_bias"], false)?);
    let fed = BlockConfig::of_feed_forward(dense, norm);
    let stack = StackConfig::uniform(fed, kinds.len(), Some(norm));
    let stack = stack.with_each(|i, block| match kinds[i] {
        LINEAR => *block = BlockConfig::of_mixer(mamba, norm),
        FULL => *block = BlockConfig::of_mixer(attention.clone(), norm),
        _ => {}
    });
    if !kinds.contains(&EXPERTS) {
        return Ok(stack);
    }
    json.only("mlp_bias", &[false.into()])?; // shared experts would have biases, and experts none
    let d_ff = json.size_or(&["moe_shared_expert_intermediate_size"], 7688)?;
    let shared = SharedExpertConfig::new(d_ff, false);
    let latent_width = json.optional_size(&["moe_latent_size"])?;
    let json = &json.with("n_shared_experts", 1); // of its own width
    let stack = with_experts(json, stack, true, |i| Ok(kinds[i] == EXPERTS))?;
    let branch = latent_width.map(|width| ExpertBranch::Latent { width });
    Ok(stack.with_each(|_, block| {
        if let Some(experts) = &mut block.feed_forward.experts {
            (experts.shared, experts.branch) = (Some(shared), branch.unwrap_or_default());
        }
    }))
}

/// Returns each layer's type, which older files give by a letter each.
fn kinds(json: &ConfigJson) -> Result<Vec<&'static str>> {
    let letters = json.text(&["hybrid_override_pattern"])?;
    let types = match (json.texts(&["layer_types"])?, letters) {
        (Some(types), _) => types,
        (None, Some(letters)) => {
            let kind = |letter| match letter {
                'M' => Ok(LINEAR.to_string()),
                '*' => Ok(FULL.to_string()),
                '-' => Ok(FEED_FORWARD.to_string()),
                'E' => Ok(EXPERTS.to_string()),
                _ => {
                    let reason = format!("{letter:?} is not supported, only M, *, - and E");
                    Err(json.error(&["hybrid_override_pattern"], reason))
                }
            };
            letters.chars().map(kind).collect::<Result<_>>()?
        }
        (None, None) => [LINEAR, EXPERTS, FULL, FEED_FORWARD]
            .map(String::from)
            .to_vec(),
    };
    if types.is_empty() {
        return Err(json.error(&["layer_types"], "it lists no layers".to_string()));
    }
    let kind = |of| if of == "mamba" { LINEAR } else { of };
    let types: Vec<&str> = types.iter().map(String::as_str).map(kind).collect();
    let known = [LINEAR, FULL, FEED_FORWARD, EXPERTS];
    json.with("layer_types", json!(types))
        .layer_types(types.len(), &known, |_| LINEAR)
}

/// transformers' `NemotronHPreTrainedModel._init_weights`.
fn initialization(json: &ConfigJson) -> Result<Initialization> {
    let deviation = initializer_range::deviation(json, 0.02)?;
    let [n_heads, width] = heads(json)?;
    let drawn = drawn(
        json,
        Initialization::normal(deviation),
        n_heads * width * kinds(json)?.len(),
    )?;
    Ok(match json.flag(&["rescale_prenorm_residual"], true)? {
        true => drawn,
        false => drawn.with("*mamba.output.weight", Distribution::Normal { deviation }),
    })
}

/// Returns the number of Mamba-2's heads, and their width.
fn heads(json: &ConfigJson) -> Result<[usize; 2]> {
    let n_heads = json.width_or(&["mamba_n_heads"], 128)?;
    Ok([n_heads, json.width_or(&["mamba_d_head"], 64)?])
}
