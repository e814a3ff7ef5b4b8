//! The known families: one file each, holding a table and nothing else, and one line here.

use crate::checkpoint::scheme::Family;

mod albert;
mod arcee;
mod bart;
mod bart_like;
mod bert;
mod bert_generation;
mod biogpt;
mod bloom;
mod clip;
mod cohere;
mod deberta;
mod deberta_v2;
mod deepseek;
mod dinov2;
mod disentangled;
mod distilbert;
mod dpr;
mod electra;
mod encoder;
mod encoder_decoder;
mod ernie;
mod ernie4_5;
mod esm;
mod eurobert;
mod exaone;
mod falcon;
mod gemma;
mod glm;
mod glm4_moe_lite;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod hunyuan;
mod llama;
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
mod opt;
mod patches;
mod persimmon;
mod phi;
mod prelude;
mod qwen;
mod rembert;
mod roberta;
mod roberta_prelayernorm;
mod roformer;
mod rotary_bert;
mod seed_oss;
mod siglip;
mod sigmoid_experts;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod text_side;
mod torch;
mod tower;
mod umt5;
mod vit;
mod wav2vec2;
mod whisper;

/// Every known family.
pub(crate) fn all() -> Vec<Family> {
    let mut all = vec![
        albert::family(),
        bert::family(),
        bert_generation::family(),
        bloom::family(),
        dinov2::family(),
        distilbert::family(),
        deberta::family(),
        deberta_v2::family(),
        dpr::family(),
        electra::family(),
        ernie::family(),
        esm::family(),
        eurobert::family(),
        falcon::family(),
        gpt2::family(),
        gpt_bigcode::family(),
        gpt_neo::family(),
        glm4_moe_lite::family(),
        gpt_oss::family(),
        gptj::family(),
        hunyuan::family(),
        megatron_bert::family(),
        ministral3::family(),
        modernbert::family(),
        modernbert_decoder::family(),
        mpnet::family(),
        mpt::family(),
        nomic_bert::family(),
        opt::family(),
        persimmon::family(),
        phi::family(),
        seed_oss::family(),
        smollm3::family(),
        rembert::family(),
        roformer::family(),
        stablelm::family(),
        starcoder2::family(),
    ];
    all.extend(
        [
            arcee::families(),
            bart::families(),
            bart_like::families(),
            biogpt::families(),
            clip::families(),
            cohere::families(),
            deepseek::families(),
            ernie4_5::families(),
            exaone::families(),
            gemma::families(),
            glm::families(),
            gpt_neox::families(),
            granite::families(),
            llama::families(),
            minicpm3::families(),
            mixtral::families(),
            olmo::families(),
            qwen::families(),
            roberta::families(),
            roberta_prelayernorm::families(),
            rotary_bert::families(),
            siglip::families(),
            sigmoid_experts::families(),
            t5::families(),
            text_side::families(),
            torch::families(),
            umt5::families(),
            vit::families(),
            wav2vec2::families(),
            whisper::families(),
        ]
        .into_iter()
        .flatten(),
    );
    all
}
