//! The known families: one file each, holding a table and nothing else, and one line here.

use crate::checkpoint::scheme::Family;

mod albert;
mod arcee;
mod bart;
mod bert;
mod biogpt;
mod bloom;
mod clip;
mod cohere;
mod dinov2;
mod distilbert;
mod electra;
mod encoder;
mod encoder_decoder;
mod falcon;
mod gemma;
mod glm;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gptj;
mod granite;
mod hunyuan;
mod llama;
mod mixtral;
mod modernbert;
mod modernbert_decoder;
mod mpnet;
mod mpt;
mod nomic_bert;
mod olmo;
mod opt;
mod patches;
mod persimmon;
mod phi;
mod prelude;
mod qwen;
mod roberta;
mod seed_oss;
mod siglip;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;
mod text_side;
mod torch;
mod tower;
mod vit;
mod whisper;

/// Every known family.
pub(crate) fn all() -> Vec<Family> {
    let mut all = vec![
        albert::family(),
        bert::family(),
        biogpt::family(),
        bloom::family(),
        dinov2::family(),
        distilbert::family(),
        electra::family(),
        falcon::family(),
        gpt2::family(),
        gpt_bigcode::family(),
        gpt_neo::family(),
        gptj::family(),
        hunyuan::family(),
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
        stablelm::family(),
        starcoder2::family(),
        vit::family(),
    ];
    all.extend(
        [
            arcee::families(),
            bart::families(),
            clip::families(),
            cohere::families(),
            gemma::families(),
            glm::families(),
            gpt_neox::families(),
            granite::families(),
            llama::families(),
            mixtral::families(),
            olmo::families(),
            qwen::families(),
            roberta::families(),
            siglip::families(),
            t5::families(),
            text_side::families(),
            torch::families(),
            whisper::families(),
        ]
        .into_iter()
        .flatten(),
    );
    all
}
