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
            afmoe albert apertus bert_generation bloom cwm deberta deberta_v2 dinov2 dinov3 distilbert dpr electra ernie
            esm eurobert falcon glm4_moe_lite gpt2 gpt_bigcode gpt_neo gpt_oss gptj jina_bert llama4 megatron_bert ministral3 modernbert
            modernbert_decoder mpnet mpt nomic_bert opt persimmon phi phimoe qwen_vision rembert roformer rotary_bert seed_oss
            smollm3 solar_open stablelm starcoder2
        };
        let several = of_files! { families:
            arcee bart bart_like biogpt clip cohere deepseek ernie4_5 exaone gemma gemma3n gemma4 glm gpt_neox granite
            granite_swa gte hunyuan internlm3 llama minicpm3 mixtral olmo phi3 qwen roberta roberta_prelayernorm siglip siglip2
            sigmoid_experts t5 torch umt5 vit wav2vec2 whisper
        };
        collected(single, several)
    });
    &TABLES
}

/// Returns the other families with tables of their own, which take memory only if no other family has the requested type.
pub(super) fn further() -> &'static [Family] {
    static TABLES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let single = of_files! { family: aria ctrl emu3 molmo2 openai_gpt };
        let several = of_files! { families:
            bert_like blip blocks_alone clip_like esmc fsmt image_blocks listed_experts llama_of_hub picture_blocks
            picture_towers qwen_axes sink_experts text_beside_clip text_decoders text_stacks t5gemma token_axes towers_alone
            vit_like xlm
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
        let sides = text_side::all().filter_map(|side| Some(side.around(of_text(&side)?)));
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
