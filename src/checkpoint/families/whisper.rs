//! Whisper: audio encoder and decoder with BART's names, pre-norm. Voxtral, MOSS Transcribe Diarize, Qwen2-Audio and Audio Flamingo 3
//! have such encoders.
//!
//! transformers' `WhisperDecoderLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/modeling_whisper.py>

use super::bart::{config, stack};
use super::encoder_decoder::start_token;
use super::prelude::*;

pub(super) fn families() -> Vec<Family> {
    let own = [
        encoder("whisper"),
        stack("whisper", StackPart::Decoder, |json| {
            Ok(side(json, "decoder")?.into_decoder())
        })
        .embeddings(|json, stack| {
            let n_positions = json.size_or(&["max_target_positions"], 448)?;
            // transformers ignores `scale_embedding`.
            let embeddings = padded_token_embeddings(json, stack)?.with_positions(n_positions);
            Ok(embeddings
                .with_dropout(json.number(&["dropout"], 0.0)?)
                .into())
        })
        .end_rules([Rule::linear("causal_lm.output", &["proj_out"])])
        .new_names(|_| Ok(&["*embed_tokens.*"]))
        .head(HeadTask::CausalLm, causal_lm)
        .joined(StackPart::Encoder, |json| start_token(json, 50257)),
    ];
    own.into_iter().chain(others()).collect()
}

/// The table for an audio encoder.
fn encoder(name: &str) -> Family {
    stack(name, StackPart::Encoder, |json| side(json, "encoder"))
        .end_rules([
            Rule::linear("embeddings.convolution_1", &["conv1"]),
            Rule::linear("embeddings.convolution_2", &["conv2"]),
        ])
        .embeddings(spectrum)
        .initialization(|json| {
            Ok(initializer_range::normal(json)?
                .with("embeddings.position.weight", Distribution::Sinusoids))
        })
}

const BIAS: AttentionBias = AttentionBias {
    key: false,
    ..AttentionBias::ALL
};

fn side(json: &ConfigJson, side: &str) -> Result<StackConfig> {
    config(json, side, BIAS, NormPlacement::Pre)
}

fn spectrum(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    Ok(EmbeddingsConfig::Spectrum(SpectrumEmbeddingsConfig {
        n_mels: json.size_or(&["num_mel_bins"], 80)?,
        d_model: stack.blocks[0].d_model(),
        n_positions: json.size_or(&["max_source_positions"], 1500)?,
        dropout: json.number(&["dropout"], 0.0)?,
    }))
}

/// The tables for encoders with Whisper's blocks, of models whose other parts are not loaded. Qwen2-Audio and Audio Flamingo 3 average
/// pairs of positions after the blocks, which alone are loaded.
fn others() -> [Family; 4] {
    let named = |name: &str| {
        let table = encoder(name).prefixes(&["model.audio_tower.", "audio_tower.", ""]);
        Family {
            part: None,
            ..table
        }
    };
    let renamed = |name: &str| {
        named(name)
            .renamed("encoder_ffn_dim", "intermediate_size")
            .renamed("encoder_layerdrop", "layerdrop")
    };
    let blocks = |mut table: Family| {
        table.embeddings = None;
        table.stack_rules.clear();
        table
            .outside(&["layer_norm.*"])
            .set(json!({"final_norm": null}))
    };
    [
        renamed("voxtral_encoder"),
        renamed("moss_transcribe_diarize_audio"),
        blocks(named("qwen2_audio_encoder")),
        blocks(renamed("audioflamingo3_encoder")),
    ]
}
