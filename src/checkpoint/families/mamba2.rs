//! Mamba-2, whose layers are mixers alone.
//!
//! transformers' `Mamba2Block`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mamba2/modeling_mamba2.py>

use super::mamba::alone;
use super::mamba_mixer::{drawn, mixer, rules};
use super::prelude::*;

pub(super) fn family() -> Family {
    alone("mamba2", mamba2)
        .block_rules(rules("mixer"))
        .initialization(drawn_alone)
        .renamed("mamba_n_heads", "num_heads")
        .renamed("mamba_d_head", "head_dim")
}

fn mamba2(json: &ConfigJson) -> Result<StackConfig> {
    json.only("hidden_act", &["silu".into(), "swish".into()])?;
    let d_model = json.size(&["hidden_size"])?;
    let norm = NormConfig::rms_norm(d_model, json.number(&["layer_norm_epsilon"], 1e-5)?);
    let block = BlockConfig::of_mixer(mixer(json, norm)?, norm);
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, Some(norm)))
}

/// transformers' `Mamba2PreTrainedModel._init_weights`.
fn drawn_alone(json: &ConfigJson) -> Result<Initialization> {
    let taps = json.width_or(&["mamba_d_conv"], 4)?;
    let all = Initialization::normal(initializer_range::deviation(json, 0.1)?).with(
        "*_convolution.weight",
        Distribution::Uniform {
            bound: 1.0 / (taps as f64).sqrt(),
        },
    );
    let width = json.size_or(&["mamba_expand"], 2)? * json.size(&["hidden_size"])?;
    let layers = match json.flag(&["rescale_prenorm_residual"], false)? {
        true => json.n_blocks(&["num_hidden_layers"])?,
        false => 1,
    };
    drawn(json, all, width * layers)
}
