//! The known families: each has one file, which contains only a table, and one line here.

use crate::checkpoint::scheme::Family;
use std::sync::LazyLock;

mod afmoe;
mod albert;
mod apertus;
mod arcee;
mod aria;
mod bart;
mod bart_like;
mod bert;
mod bert_generation;
mod bert_like;
mod beside;
mod biogpt;
mod blip;
mod bloom;
mod class_sizes;
mod clip;
mod clip_like;
mod cohere;
mod ctrl;
mod cwm;
mod deberta;
mod deberta_v2;
mod decoder_alone;
mod deepseek;
mod dinov2;
mod dinov3;
mod disentangled;
mod distilbert;
mod dpr;
mod electra;
mod emu3;
mod encoder;
mod encoder_decoder;
mod ernie;
mod ernie4_5;
mod esm;
mod esmc;
mod eurobert;
mod exaone;
mod falcon;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4_moe_lite;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_swa;
mod gte;
mod hunyuan;
mod internlm3;
mod latent;
mod layer_inputs;
mod listed_experts;
mod llama;
mod llama4;
mod megatron_bert;
mod minicpm3;
mod ministral3;
mod mixtral;
mod modernbert;
mod modernbert_decoder;
mod mpnet;
mod mpt;
mod new_names;
mod nomic_bert;
mod olmo;
mod openai_gpt;
mod opt;
mod patches;
mod persimmon;
mod phi;
mod phimoe;
mod prelude;
mod qwen;
mod qwen_axes;
mod qwen_vision;
mod rembert;
mod roberta;
mod roberta_prelayernorm;
mod roformer;
mod rotary_bert;
mod seed_oss;
mod siglip;
mod siglip2;
mod sigmoid_experts;
mod sink_experts;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod t5;
mod t5_feed_forward;
mod text_beside_clip;
mod text_decoders;
mod text_side;
mod token_axes;
mod token_labels;
mod torch;
mod tower;
mod towers_alone;
mod umt5;
mod vit;
mod vit_like;
mod vit_mae;
mod wav2vec2;
mod whisper;
mod width_of_heads;
mod xlm;

pub(super) use self::decoder_alone::is_of_decoder;
pub(super) use self::text_side::{TextSide, families as all, of_type};

/// Declares the files and collects their families.
macro_rules! of_files {
    ($of:ident: $($file:ident)*) => { [$($file::$of()),*] };
}

/// Returns every family with a table of its own. The list is made once, because opening a checkpoint needs it several times.
fn tables() -> &'static [Family] {
    static TABLES: LazyLock<Vec<Family>> = LazyLock::new(made);
    &TABLES
}

fn made() -> Vec<Family> {
    let single = of_files! { family:
        afmoe albert apertus aria bert bert_generation bloom ctrl cwm deberta deberta_v2 dinov2 dinov3 distilbert dpr
        electra emu3 ernie esm esmc eurobert falcon glm4_moe_lite gpt2 gpt_bigcode gpt_neo gpt_oss gptj llama4
        megatron_bert ministral3 modernbert modernbert_decoder mpnet mpt nomic_bert openai_gpt opt persimmon phi
        phimoe qwen_vision rembert roformer rotary_bert seed_oss smollm3 solar_open stablelm starcoder2 vit_mae
    };
    let several = of_files! { families:
        arcee bart bart_like bert_like biogpt blip clip clip_like cohere deepseek ernie4_5 exaone gemma gemma3n gemma4
        glm gpt_neox granite granite_swa gte hunyuan internlm3 llama listed_experts minicpm3 mixtral olmo qwen
        qwen_axes roberta roberta_prelayernorm siglip siglip2 sigmoid_experts sink_experts t5 text_decoders token_axes torch
        text_beside_clip towers_alone umt5 vit vit_like wav2vec2 whisper xlm
    };
    let single = single.into_iter();
    single.chain(several.into_iter().flatten()).collect()
}
