//! The known families: one file each, holding a table and nothing else, and one line here.

use crate::checkpoint::scheme::Family;

mod albert;
mod bart;
mod bart_like;
mod bert;
mod bert_generation;
mod bloom;
mod clip;
mod cohere;
mod dinov2;
mod distilbert;
mod dpr;
mod electra;
mod encoder;
mod encoder_decoder;
mod ernie;
mod esm;
mod eurobert;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod llama;
mod megatron_bert;
mod mixtral;
mod modernbert;
mod mpnet;
mod mpt;
mod nomic_bert;
mod olmo;
mod opt;
mod patches;
mod phi;
mod prelude;
mod qwen;
mod rembert;
mod roberta;
mod roberta_prelayernorm;
mod roformer;
mod rotary_bert;
mod siglip;
mod stablelm;
mod starcoder2;
mod t5;
mod torch;
mod tower;
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
        cohere::family(),
        dinov2::family(),
        distilbert::family(),
        dpr::family(),
        electra::family(),
        ernie::family(),
        esm::family(),
        eurobert::family(),
        falcon::family(),
        gpt2::family(),
        gpt_bigcode::family(),
        gpt_neo::family(),
        gpt_neox::family(),
        gptj::family(),
        megatron_bert::family(),
        modernbert::family(),
        mpnet::family(),
        mpt::family(),
        nomic_bert::family(),
        opt::family(),
        phi::family(),
        rembert::family(),
        roformer::family(),
        stablelm::family(),
        starcoder2::family(),
    ];
    all.extend(
        [
            bart::families(),
            bart_like::families(),
            clip::families(),
            gemma::families(),
            llama::families(),
            mixtral::families(),
            olmo::families(),
            qwen::families(),
            roberta::families(),
            roberta_prelayernorm::families(),
            rotary_bert::families(),
            siglip::families(),
            t5::families(),
            torch::families(),
            vit::families(),
            wav2vec2::families(),
            whisper::families(),
        ]
        .into_iter()
        .flatten(),
    );
    all
}
