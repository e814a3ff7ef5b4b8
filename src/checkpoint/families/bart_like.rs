//! Encoder-decoders with BART's names: mBART, PLBART, MVP, both Blenderbots, Marian, Pegasus and M2M100.
//!
//! transformers' `MBartDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/mbart/modeling_mbart.py>; the others
//! are in folders beside it.

use super::bart::{Sides, config, pair};
use super::encoder_decoder::*;
use super::prelude::*;

const PRE: Sides = [
    |json| side(json, "encoder", NormPlacement::Pre),
    |json| Ok(side(json, "decoder", NormPlacement::Pre)?.into_decoder()),
];
const POST: Sides = [
    |json| side(json, "encoder", NormPlacement::Post),
    |json| Ok(side(json, "decoder", NormPlacement::Post)?.into_decoder()),
];

fn side(json: &ConfigJson, side: &str, placement: NormPlacement) -> Result<StackConfig> {
    json.only("use_prompt", &[json!(false)])?; // MVP's
    config(json, side, AttentionBias::ALL, placement)
}

pub(super) fn families() -> Vec<Family> {
    let rows_after_two = |json: &ConfigJson, stack: &StackConfig| {
        only_shared(json)?;
        learned_after_two(json, stack)
    };
    let from_two = |json: &ConfigJson| start_token(json, 2);
    let [encoder, decoder] = pair("m2m_100", PRE, sines_except_padding, from_two);
    let m2m_100 = [encoder, decoder.head(HeadTask::CausalLm, causal_lm)]
        .map(|side| side.ignored(SINES).class_sizes(&["pad_token_id"]));
    let plbart = pair("plbart", POST, rows_after_two, from_the_text);
    let marian = pair("marian", POST, sines, |json| start_token(json, 58100));
    let marian = marian.map(|side| side.ignored(SINES));
    let pegasus = pair("pegasus", PRE, sines, |json| start_token(json, 0));
    let pegasus = pegasus.map(|side| side.ignored(SINES));
    let blenderbot = pair("blenderbot", PRE, learned, |json| start_token(json, 1));
    let small = |json: &ConfigJson| start_token(json, 1);
    let [encoder, decoder] = pair("blenderbot-small", POST, learned_and_normed, small);
    let decoder = decoder.embeddings(|json, stack| {
        let embeddings = small_token_embeddings(json, stack)?;
        Ok(embeddings.with_scale(1.0).with_norm_of_words(true).into()) // embeddings are never scaled
    });
    [
        classifying(pair("mbart", PRE, rows_after_two, from_the_text)),
        classifying(pair("mvp", POST, rows_after_two, from_two)),
        classifying(plbart),
        marian.into(),
        pegasus.into(),
        m2m_100.into(),
        blenderbot.into(),
        [encoder, decoder].into(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A computed position table, which older files contain.
pub(super) const SINES: &[&str] = &["*embed_positions.weight*"];

/// Returns no default start token: the decoder starts with the text's last token, a language code.
fn from_the_text(_: &ConfigJson) -> Result<TwoStackKind> {
    Ok(TwoStackKind::EncoderDecoder { start_token: None })
}

/// Returns token embeddings with learned positions.
fn learned(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let n_positions = json.size_or(&["max_position_embeddings"], 128)?;
    only_shared(json)?;
    Ok(scaled_token_embeddings(json, stack)?
        .with_positions(n_positions)
        .into())
}

fn small_token_embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<TokenEmbeddingsConfig> {
    let n_positions = json.size_or(&["max_position_embeddings"], 512)?;
    only_shared(json)?;
    let embeddings = scaled_token_embeddings(json, stack)?.with_positions(n_positions);
    Ok(embeddings.with_norm(stack.blocks[0].norm))
}

fn learned_and_normed(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    Ok(small_token_embeddings(json, stack)?.into())
}

fn sines(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    // Otherwise each stack has its own embeddings.
    json.only("share_encoder_decoder_embeddings", &[json!(true)])?;
    let positions = PositionTableConfig {
        n_rows: json.size_or(&["max_position_embeddings"], 1024)?,
        vectors: PositionVectors::Sines(LastFrequency::Before),
        ..ALL_POSITIONS
    };
    only_shared(json)?;
    let embeddings = scaled_token_embeddings(json, stack)?;
    Ok(embeddings.with_position_table(positions).into())
}

pub(super) fn sines_except_padding(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<EmbeddingsConfig> {
    only_shared(json)?;
    own_sines_except_padding(json, stack)
}

/// Returns the same for a stack with token embeddings of its own.
pub(super) fn own_sines_except_padding(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<EmbeddingsConfig> {
    let positions = PositionTableConfig {
        n_rows: json.size_or(&["max_position_embeddings"], 1024)? + 2,
        vectors: PositionVectors::Sines(LastFrequency::Reached),
        ..positions_except(json.size(&["pad_token_id"])?)
    };
    let embeddings = scaled_token_embeddings(json, stack)?;
    Ok(embeddings.with_position_table(positions).into())
}
