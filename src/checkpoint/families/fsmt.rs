//! FSMT (fairseq's translation models): BART's blocks, sinusoidal positions, and a vocabulary for each stack. Without a mask or a cache,
//! transformers also hides padding tokens in the decoder's input.
//!
//! transformers' `FSMTModel`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/fsmt/modeling_fsmt.py>

use super::bart::{Sides, config, pair};
use super::bart_like::{SINES, own_sines_except_padding};
use super::encoder_decoder::*;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let sides: Sides = [
        |json| side(json, "encoder"),
        |json| Ok(side(json, "decoder")?.into_decoder()),
    ];
    let start = |json: &ConfigJson| start_token(json, 2);
    let [encoder, decoder] = pair("fsmt", sides, embeddings, start);
    let decoder = decoder
        .replace_end_rules([Rule::linear("causal_lm.output", &["output_projection"])])
        .head(HeadTask::CausalLm, causal_lm)
        .outside(&["output_projection.*"]);
    [
        encoder.renamed("vocab_size", "src_vocab_size"),
        decoder.renamed("vocab_size", "tgt_vocab_size"),
    ]
    .map(|side| {
        side.ignored(SINES)
            .class_sizes(&["pad_token_id", "vocab_size"])
    })
    .into()
}

fn side(json: &ConfigJson, side: &str) -> Result<StackConfig> {
    json.only("is_causal", &[json!(true)])?; // the decoder has a mask of its own
    config(json, side, AttentionBias::ALL, NormPlacement::Post)
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    json.only("tie_word_embeddings", &[json!(false)])?; // both stacks would have one vocabulary
    own_sines_except_padding(json, stack)
}
