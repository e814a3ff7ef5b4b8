//! GLM-4 MoE Lite: DeepSeek-V3's blocks; a list selects the layers with experts.
//!
//! transformers' `Glm4MoeLiteDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/glm4_moe_lite/modeling_glm4_moe_lite.py>

use super::deepseek::corrected;
use super::latent::latent_block;
use super::listed_experts::sparse_layers;
use super::llama::uniform;
use super::prelude::*;
use super::sigmoid_experts::with_experts;

pub(super) fn family() -> Family {
    corrected("glm4_moe_lite", glm4_moe_lite)
}

fn glm4_moe_lite(json: &ConfigJson) -> Result<StackConfig> {
    let mut block = latent_block(json, [768, 512, 192, 64, 256], None)?;
    if let Position::Rotary(rotary) = &mut block.attention_mut()?.position {
        // Partial rotary embeddings are not possible here, and refused.
        rotary.dim = json.partial_rotary(rotary.dim, 1.0, 10000.0)?.dim;
    }
    let stack = uniform(json, block)?;
    let is_sparse = sparse_layers(json, stack.blocks.len(), |i| i > 0)?;
    with_experts(json, stack, true, |i| Ok(is_sparse[i]))
}
