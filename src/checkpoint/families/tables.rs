//! The list of tables.

use std::sync::LazyLock;

use super::*;
use crate::checkpoint::scheme::Family;

/// Collects the families of files.
macro_rules! of_files {
    ($of:ident: $($file:ident)*) => { [$($file::$of()),*] };
}

/// Returns every family with a table of its own. The list is made once, because opening a checkpoint needs it several times.
pub(super) fn tables() -> &'static [Family] {
    static TABLES: LazyLock<Vec<Family>> = LazyLock::new(made);
    &TABLES
}

fn made() -> Vec<Family> {
    let single = of_files! { family:
        afmoe albert apertus aria bert bert_generation bloom ctrl cwm deberta deberta_v2 dinov2 dinov3 distilbert dpr
        electra emu3 ernie esm eurobert falcon glm4_moe_lite gpt2 gpt_bigcode gpt_neo gpt_oss gptj llama4
        megatron_bert ministral3 modernbert modernbert_decoder mpnet mpt nomic_bert openai_gpt opt persimmon phi
        phimoe qwen_vision rembert roformer rotary_bert seed_oss smollm3 solar_open stablelm starcoder2
    };
    let several = of_files! { families:
        arcee bart bart_like bert_like biogpt blip blocks_alone clip clip_like cohere deepseek ernie4_5 esmc exaone gemma gemma3n gemma4
        glm gpt_neox granite granite_swa gte hunyuan image_blocks internlm3 llama listed_experts minicpm3 mixtral olmo qwen
        qwen_axes roberta roberta_prelayernorm siglip siglip2 sigmoid_experts sink_experts t5 text_decoders token_axes torch
        text_beside_clip towers_alone umt5 vit vit_like wav2vec2 whisper xlm
    };
    let single = single.into_iter();
    single.chain(several.into_iter().flatten()).collect()
}
