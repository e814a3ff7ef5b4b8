//! The list of tables.

use std::sync::LazyLock;

use super::text_side::{self, TextSide};
use super::*;
use crate::checkpoint::scheme::Family;

/// Collects the families of files.
macro_rules! of_files {
    ($of:ident: $($file:ident)*) => { [$($file::$of()),*] };
}

/// Returns the families with tables of their own that most files belong to. The list is made once, because opening a checkpoint needs it
/// several times.
pub(super) fn tables() -> &'static [Family] {
    static TABLES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let single = of_files! { family:
            albert apertus deberta deberta_v2 dinov2 dinov3 distilbert electra falcon gpt2 gpt_oss jina_bert ministral3
            modernbert mpnet nomic_bert opt phi smollm3 stablelm
        };
        let several = of_files! { families:
            bart bart_like clip cohere deepseek gemma gemma3n gemma4 glm gpt_neox granite gte llama mixtral olmo phi3 qwen
            roberta siglip siglip2 t5 vit wav2vec2 whisper
        };
        collected(single, several)
    });
    &TABLES
}

/// Returns the other families with tables of their own, which take memory only if no other family has the requested type.
pub(super) fn further() -> &'static [Family] {
    static TABLES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let single = of_files! { family:
            afmoe aria bert_generation bitnet bloom ctrl cwm dpr emu3 ernie esm eurobert glm4_moe_lite gpt_bigcode gpt_neo gptj
            laguna llama4 megatron_bert modernbert_decoder molmo2 mpt muse_glimmer openai_gpt persimmon phimoe qwen_vision rembert roformer
            rotary_bert seed_oss solar_open starcoder2
        };
        let several = of_files! { families:
            arcee bert_like biogpt blip blocks_alone clip_like ernie4_5 esmc exaone fsmt granite_swa hunyuan image_blocks
            internlm3 kosmos listed_experts llama_of_hub minicpm3 picture_blocks picture_towers qwen_axes roberta_prelayernorm
            sigmoid_experts sink_experts t5gemma text_beside_clip text_decoders text_stacks token_axes torch towers_alone
            umt5 vit_like xlm
        };
        collected(single, several)
    });
    &TABLES
}

/// Returns every family with a table of its own.
pub(super) fn every() -> impl Iterator<Item = &'static Family> {
    tables().iter().chain(further())
}

fn collected<const N: usize, const M: usize>(
    single: [Family; N],
    several: [Vec<Family>; M],
) -> Vec<Family> {
    let single = single.into_iter();
    single.chain(several.into_iter().flatten()).collect()
}

/// Returns every known family.
pub(in crate::checkpoint) fn families() -> impl Iterator<Item = &'static Family> {
    every().chain(sides())
}

/// Returns the table of each text side around its default text.
fn sides() -> &'static [Family] {
    static SIDES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let of_text = |side: &TextSide| every().find(|text| text.name == side.text_type);
        let sides = text_side::all().filter_map(|side| Some(side.around(of_text(side)?)));
        sides.collect()
    });
    &SIDES
}

/// Returns the families for `model_type`: several if its model has several stacks. The further tables, and the text sides of larger
/// models, which are copies of other tables, take memory only when one of them is requested.
pub(in crate::checkpoint) fn of_type(model_type: &str) -> Vec<&'static Family> {
    let sides = TextSide::of(model_type).map_or(&[][..], |_| sides());
    let is_named = |family: &&Family| family.model_types.iter().any(|name| name == model_type);
    let found: Vec<_> = tables().iter().chain(sides).filter(is_named).collect();
    match found.is_empty() {
        true => further().iter().filter(is_named).collect(),
        false => found,
    }
}
