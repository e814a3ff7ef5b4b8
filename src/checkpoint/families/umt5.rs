//! UMT5: T5 with a position bias in each block. Pop2Piano: T5 whose encoder also reads a spectrogram.
//!
//! transformers' `UMT5Block`: <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/umt5/modeling_umt5.py>

use super::prelude::*;
use super::t5;

pub(super) fn families() -> Vec<Family> {
    let relative_bias = "layer.0.SelfAttention.relative_attention_bias";
    let table = |table: Family| {
        let table = table
            .named("umt5")
            .block_rules([Rule::linear("relative_bias", &[relative_bias])]);
        match table.part {
            Some(StackPart::Encoder) => table.read_by(encoder),
            _ => table
                .read_by(decoder)
                .head(HeadTask::CausalLm, |json, stack| {
                    // transformers ties the embeddings in any case.
                    let is_tied = json.flag(&["tie_word_embeddings"], true)?;
                    t5::next_token(&json.with_default("scale_decoder_outputs", is_tied), stack)
                }),
        }
    };
    let piano = |table: Family| {
        let table = table
            .named("pop2piano")
            .replace_end_rules([Rule::linear("causal_lm.output", &["lm_head"])])
            .default_of("scale_decoder_outputs", true)
            .outside(&["mel_conditioner.*"]);
        match table.part {
            Some(StackPart::Encoder) => table,
            _ => table.head(HeadTask::CausalLm, |json, stack| {
                // transformers never ties this layer.
                t5::next_token(&json.with("tie_word_embeddings", false), stack)
            }),
        }
    };
    let own = t5::families().into_iter().map(table);
    own.chain(t5::families().into_iter().map(piano)).collect()
}

fn encoder(json: &ConfigJson) -> Result<StackConfig> {
    t5::encoder(json).map(of_each_block)
}

fn decoder(json: &ConfigJson) -> Result<StackConfig> {
    t5::decoder(json).map(of_each_block)
}

fn of_each_block(stack: StackConfig) -> StackConfig {
    stack.with_relative_bias_span(RelativeBiasSpan::Block)
}
