//! Nomic BERT: post-norm encoder with rotary embeddings and a gated feed-forward.
//!
//! transformers' `NomicBertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/nomic_bert/modeling_nomic_bert.py>; its files on the Hub have
//! GPT-2's keys.

use super::encoder::{first_through_tanh, pooled, word, word_rules};
use super::nomic_experts::{expert_rules, gate, plain, with_experts};
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("nomic_bert", &["nomic_bert"], config)
        .prefixes(&["bert.", "nomic_bert.", ""]) // on the Hub, and as transformers saves its own model
        .block("encoder.layers.{i}.")
        .block_rules([
            Rule::linear("attention.output", &["attn.out_proj"]),
            Rule::norm("attention_norm", &["norm1"]),
            Rule::linear("feed_forward.up", &["mlp.fc11", "mlp.fc1"]),
            Rule::linear("feed_forward.gate", &["mlp.fc12"]),
            Rule::linear("feed_forward.down", &["mlp.fc2"]),
            Rule::norm("feed_forward_norm", &["norm2"]),
        ])
        .block_rules(Rule::fused_attention(&["attn.Wqkv"], FusedLayout::Blocks))
        .block_rules(expert_rules())
        .end_rules(word_rules([
            "cls.predictions.transform.dense",
            "cls.predictions.transform.layer_norm",
            "cls.predictions",
        ]))
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings.word_embeddings"]),
            Rule::linear("embeddings.type", &["embeddings.token_type_embeddings"]),
            Rule::norm("embeddings.norm", &["emb_ln"]),
            Rule::linear("pooler.transform", &["pooler.dense"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("token_classification.output", &["classifier"]),
        ])
        .embeddings(embeddings)
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, |json, stack| {
            let block = &stack.blocks[0];
            word(json, stack, block.d_model(), block.feed_forward.activation)
        })
        .head(HeadTask::SequenceClassification, |json, _| {
            pooled(json, classifier_dropout(json)?)
        })
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, classifier_dropout(json)?)
        })
        .new_names(|json| {
            let is_tied = json.flag(&["tie_word_embeddings"], true)?;
            Ok(match (plain(json)?, is_tied) {
                (Some(_), true) => &["*.mlp.fc1.*", "cls.predictions.bias"],
                (Some(_), false) => &["*.mlp.fc1.*"],
                (None, true) => &["nomic_bert.encoder.*", "cls.predictions.bias"],
                (None, false) => &["nomic_bert.encoder.*"],
            })
        })
        .outside(&["embeddings.*", "emb_ln.*", "pooler.*", "cls.*"])
        .outside(&["classifier.*"])
}

fn dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["hidden_dropout_prob", "resid_pdrop"], 0.0)
}

fn classifier_dropout(json: &ConfigJson) -> Result<f64> {
    json.number(&["classifier_dropout"], dropout(json)?)
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?
        .with_types(json.size_or(&["type_vocab_size"], 2)?)
        .with_norm(stack.blocks[0].norm)
        .with_dropout(dropout(json)?);
    Ok(embeddings.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    for key in ["prenorm", "parallel_block", "use_rms_norm", "causal"] {
        json.only(key, &[json!(false)])?;
    }
    for key in ["rotary_scaling_factor", "rotary_emb_scale_base"] {
        json.only(key, &[json!(null)])?;
    }
    let d_model = json.size(&["hidden_size", "n_embd"])?;
    let n_heads = json.size(&["num_attention_heads", "n_head"])?;
    let attention = attention_of(json, d_model, n_heads)?;
    let parameters = json.rotary_section()?;
    let json = &match json.optional_number(&["rotary_emb_base"])? {
        Some(theta) => json.with_default("rope_theta", theta), // the key of Nomic's own code
        None => json.clone(),
    };
    let pairing = match json.flag(&["rotary_emb_interleaved"], false)? {
        true => RotaryPairing::Interleaved,
        false => RotaryPairing::Halves,
    };
    let share = json.number(&["rotary_emb_fraction"], 1.0)?;
    let rotary_dim = (attention.head_dim as f64 * share) as usize;
    let rotary = json.rotary_of(parameters.as_ref(), rotary_dim, 1000.0)?;
    let has_bias = json.flag(&["qkv_proj_bias"], false)?;
    let attention = attention
        .with_position(Position::Rotary(rotary.with_pairing(pairing)))
        .with_bias(AttentionBias::new(has_bias, has_bias))
        .with_dropout(json.number(&["attention_probs_dropout_prob", "attn_pdrop"], 0.0)?);
    let (form, activation) = match plain(json)? {
        Some(activation) => (FeedForwardForm::Plain, activation),
        None => (FeedForwardForm::Gated, gate(json)?),
    };
    let d_ff = json.size(&["intermediate_size", "n_inner"])?;
    let mut feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(d_ff)
        .with_form(form)
        .with_activation(activation)
        .with_bias(json.flag(&["mlp_fc1_bias"], false)?);
    feed_forward.down_bias = json.flag(&["mlp_fc2_bias"], feed_forward.up_bias)?;
    let eps = json.number(&["layer_norm_eps", "layer_norm_epsilon"], 1e-12)?;
    let norm = NormConfig::layer_norm(d_model, eps);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post)
        .with_residual_dropout(dropout(json)?);
    let n_blocks = json.n_blocks(&["num_hidden_layers", "n_layer"])?;
    with_experts(json, StackConfig::uniform(block, n_blocks, None))
}
