//! MiniCPM3 and Youtu: Llama's blocks with multi-head latent attention. MiniCPM3 has factors on embeddings, residuals and
//! logits.
//!
//! transformers' `MiniCPM3Model`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/minicpm3/modeling_minicpm3.py>,
//! and `YoutuModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/youtu/modeling_youtu.py>

use super::latent::{USUAL, latent_block, latent_decoder};
use super::llama::{uniform, with_mlp_bias};
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    vec![
        latent_decoder("youtu", youtu).initialization(of_youtu),
        latent_decoder("minicpm3", minicpm3)
            .embeddings(|json, stack| {
                let scale = json.number(&["scale_emb"], 12.0)?;
                Ok(padded_token_embeddings(json, stack)?
                    .with_scale(scale)
                    .into())
            })
            .head(HeadTask::CausalLm, |json, stack| {
                let d_model = stack.blocks[0].d_model();
                let base = json.switchable_size("dim_model_base", 256)?;
                let scale = base.unwrap_or(d_model) as f64 / d_model as f64;
                next_token(language_model(json)?.with_scale(scale))
            }),
    ]
}

fn youtu(json: &ConfigJson) -> Result<StackConfig> {
    uniform(json, latent_block(json, USUAL, None)?)
}

fn of_youtu(json: &ConfigJson) -> Result<Initialization> {
    let usual = 2.0 / (5.0 * json.size(&["hidden_size"])? as f64).sqrt();
    let deviation = initializer_range::deviation(json, usual)?;
    let embeddings = Distribution::Normal {
        deviation: json.number(&["embedding_initializer_range"], 2.0 * deviation)?,
    };
    Ok(Initialization::normal(deviation).with("embeddings.word.weight", embeddings))
}

fn minicpm3(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let n_heads = json.size(&["num_attention_heads"])?;
    let sizes = [768, 256, 64, 32, d_model / n_heads.max(1)];
    let block = with_mlp_bias(
        json,
        latent_block(json, sizes, Some(RotaryPairing::Halves))?,
    )?;
    let stack = uniform(json, block)?;
    let depth = (stack.blocks.len() as f64).sqrt();
    let scale = json.switchable_number("scale_depth", 1.4)?.unwrap_or(depth);
    Ok(stack.with_each(|_, block| block.residual.multiplier = scale / depth))
}
