//! Whisper from samples to text: spectrogram windows, generation, and all windows' tokens.
//!
//! The windows follow each other as in transformers' `WhisperGenerationMixin.generate`, the sequential algorithm from section 3.8 in
//! the paper (Radford et al. 2022): <https://arxiv.org/abs/2212.04356>

use std::sync::Arc;

use candle_blocks_media::sound::{LogMel, Spectrogram};
use candle_core::{Device, Tensor};

use super::alignment::Alignment;
use super::chunks::{Splitting, TimestampTokens, TokenChunk, decoded, rounded, split};
use super::context::Context;
use super::fallback::Fallback;
use super::segments::{INPUT_STRIDE, kept};
use super::words::words;
use super::{Chunk, SpeechOptions, TimestampKind, Transcript, processor_config};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::config::EmbeddingsConfig;
use crate::error::{Error, Result};
use crate::generate::{BeamOptions, GenerationOptions, Generator, max_positions};
use crate::model::{Encoded, ModelInput, Seq2Seq};
use crate::text::Tokenizer;

/// The seconds from one frame to the next by which transformers moves a window's times, whatever the settings are.
const SECONDS_PER_FRAME: f64 = 0.01;

/// A Whisper model with its tokenizer and settings.
#[derive(Clone, Debug)]
pub(super) struct Whisper {
    model: Arc<Seq2Seq>,
    tokenizer: Arc<Tokenizer>,
    log_mel: LogMel,
    /// How many frames the encoder reads at once.
    window: usize,
    device: Device,
    kind: TimestampKind,
    plain: Generator,
    /// The generator that writes timestamps, or why the model has none.
    timed: std::result::Result<Generator, String>,
    fallback: Fallback,
    context: Context,
    /// For word times.
    alignment: Option<Alignment>,
}

/// A clip's tokens.
struct Spoken {
    tokens: Vec<u32>,
    /// With [`TimestampKind::Word`], each token's time.
    times: Vec<f64>,
}

impl Whisper {
    pub fn open(checkpoint: &Checkpoint, options: &SpeechOptions) -> Result<Self> {
        if options.windows != Default::default() {
            return Err(Error::input(
                "chunk_length_s",
                "Whisper reads windows of its own length; leave it and stride_length_s out",
            ));
        }
        let plain = GenerationOptions::of_speech(checkpoint, &options.request)?;
        let timed = options.request.clone().with_timestamps();
        let timed = GenerationOptions::of_speech(checkpoint, &timed);
        let folder = checkpoint.files().directory();
        let json = processor_config::open(folder)?;
        let log_mel = LogMel::new(processor_config::log_mel(&json)?)?;
        let tokenizer = Tokenizer::of(checkpoint)?;
        let model = options.loader(checkpoint).seq2seq()?;
        let EmbeddingsConfig::Spectrum(spectrum) = &model.encoder().config().embeddings else {
            let reason = "the model's encoder reads no spectrogram; expected a Whisper checkpoint";
            return Err(Error::InvalidConfig(reason.to_string()));
        };
        if spectrum.n_mels != log_mel.settings().n_mels {
            let reason = format!(
                "found {}, but the model reads {} bands (num_mel_bins in config.json); use the file that was published with the weights",
                log_mel.settings().n_mels,
                spectrum.n_mels
            );
            return Err(json.error(&["feature_size"], reason));
        }
        let window = INPUT_STRIDE * spectrum.n_positions;
        if let EmbeddingsConfig::Tokens(tokens) = &model.decoder().config().embeddings {
            tokenizer.check_vocabulary(tokens.n_tokens)?;
        }
        let alignment = match options.timestamps {
            TimestampKind::Word => Some(Alignment::open(checkpoint, model.decoder())?),
            TimestampKind::None | TimestampKind::Segment => None,
        };
        let path = folder.join("generation_config.json");
        let settings = ConfigJson::open_named(&path)?
            .unwrap_or_else(|| ConfigJson::given(&path, serde_json::json!({})));
        let (n_tokens, positions) = match &model.decoder().config().embeddings {
            EmbeddingsConfig::Tokens(tokens) => (
                tokens.n_tokens,
                max_positions(model.decoder()).unwrap_or(usize::MAX),
            ),
            _ => (0, usize::MAX),
        };
        let suppressed = (&tokenizer, plain.suppressed.as_slice());
        let context = Context::new(&settings, &options.decoding, suppressed, positions)?;
        let fallback = Fallback::new(&settings, &options.decoding, n_tokens)?;
        let decoder = Arc::new(model.decoder().clone());
        let generator = |mut generation: GenerationOptions| {
            if let Some(beams) = options.beams {
                generation.beams = BeamOptions {
                    beams,
                    ..generation.beams
                };
            }
            Generator::new(decoder.clone(), generation)
        };
        Ok(Self {
            plain: generator(plain)?,
            timed: match timed {
                Err(_) if options.timestamps != TimestampKind::None => {
                    return Err(timed.unwrap_err());
                }
                timed => timed
                    .and_then(&generator)
                    .map_err(|error| error.to_string()),
            },
            device: model.encoder().device().clone(),
            model: Arc::new(model),
            tokenizer: Arc::new(tokenizer),
            log_mel,
            window,
            kind: options.timestamps,
            fallback,
            context,
            alignment,
        })
    }

    pub fn notes(&self) -> Vec<String> {
        let notes = self.plain.options().notes.iter().cloned();
        notes.chain(self.tokenizer.notes()).collect()
    }

    pub fn rate(&self) -> u32 {
        self.log_mel.settings().rate
    }

    pub fn transcribe(&self, samples: &[f32]) -> Result<Transcript> {
        let spectrogram = self.log_mel.spectrogram(samples)?;
        let n_frames = samples.len().div_ceil(self.log_mel.settings().hop);
        let Spoken { tokens, times } = self.spoken(&spectrogram, n_frames)?;
        let meaning = TimestampTokens {
            first: self.first_timestamp(),
            precision: self.log_mel.settings().chunk_seconds as f64
                / (self.window / INPUT_STRIDE) as f64,
        };
        let splitting = match self.kind {
            TimestampKind::None => Splitting::Languages,
            TimestampKind::Segment | TimestampKind::Word => Splitting::Timestamps,
        };
        let segments = split(&self.tokenizer, &tokens, meaning, splitting);
        let transcript = decoded(&self.tokenizer, &tokens, &segments)?;
        let chunks = match self.kind {
            TimestampKind::None => Vec::new(),
            TimestampKind::Segment => return Ok(transcript),
            TimestampKind::Word => self.words(&tokens, &times, &segments)?,
        };
        Ok(Transcript {
            chunks,
            ..transcript
        })
    }

    /// Returns all segments' words. A word begins when the token before it does.
    fn words(&self, tokens: &[u32], times: &[f64], segments: &[TokenChunk]) -> Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        let config = self.tokenizer.config();
        let of_files = config
            .map(|json| json.text(&["language"]))
            .transpose()?
            .flatten();
        let begin = |i: usize| i.checked_sub(1).map_or(0.0, |before| times[before]);
        for segment in segments {
            let ids: Vec<u32> = segment.tokens.iter().map(|&i| tokens[i]).collect();
            let language = segment
                .language
                .or(of_files.as_deref())
                .unwrap_or("english");
            for word in words(&self.tokenizer, &ids, language)? {
                let place = |i: Option<&usize>| i.map(|&i| segment.tokens[i]);
                let from = place(word.tokens.first()).map(|i| rounded(begin(i)));
                let to = place(word.tokens.last()).map(|i| rounded(times[i]));
                chunks.push(Chunk {
                    text: word.text,
                    timestamp: (from, to),
                });
            }
        }
        Ok(chunks)
    }

    /// Returns the token for 0 seconds. A model may write timestamps even if they are not requested, and transformers then follows
    /// them, too.
    fn first_timestamp(&self) -> u32 {
        let rules = self
            .timed
            .as_ref()
            .ok()
            .and_then(|timed| timed.options().timestamps);
        rules.map_or(u32::MAX, |rules| rules.first())
    }

    /// Generates all windows' tokens. The clip ends at frame `n_heard`, after which there may be silence.
    fn spoken(&self, spectrogram: &Spectrogram, n_heard: usize) -> Result<Spoken> {
        let is_long = spectrogram.n_frames > self.window;
        let generator = match (is_long, self.kind) {
            (false, TimestampKind::None) => &self.plain,
            _ => self.timed.as_ref().map_err(|reason| {
                let reason = format!(
                    "the clip is longer than the model's window, and its parts are found by timestamps: {reason}"
                );
                Error::InvalidConfig(reason)
            })?,
        };
        let (mut tokens, mut times) = (Vec::new(), Vec::new());
        let (mut at, mut beginning) = (0, None);
        let (mut history, mut has_sampled) = (self.context.begin(), false);
        while at < spectrogram.n_frames {
            let n_frames = self.window.min(spectrogram.n_frames - at);
            let encoded = self.encoded(spectrogram, at, n_frames)?;
            let own = match &beginning {
                Some(own) => own,
                // A clip has its first window's language.
                None => beginning.insert(generator.beginnings(&encoded)?.swap_remove(0)),
            };
            let earlier = history.before();
            let prompt = [&earlier[..], own].concat();
            let window = (prompt.as_slice(), earlier.len());
            let (new, temperature) =
                (self.fallback).decode(generator, &encoded, window, &mut has_sampled)?;
            history.end_window(temperature);
            let Some(mut new) = new else {
                at += n_frames;
                continue;
            };
            let mut all_times = Vec::new();
            if let Some(alignment) = &self.alignment {
                let heard = n_heard.min(spectrogram.n_frames) as isize - at as isize;
                let prompt = (prompt.as_slice(), new.as_slice());
                let of_new = alignment.times(generator.model(), &encoded, prompt, heard)?;
                // transformers adds in f32.
                let offset = (at as f64 * SECONDS_PER_FRAME) as f32;
                all_times = of_new
                    .iter()
                    .map(|&time| f64::from(time as f32 + offset))
                    .collect();
            }
            new.pop_if(|last| generator.options().stop_tokens.contains(last));
            let kept = kept(&new, self.first_timestamp(), n_frames);
            times.extend_from_slice(all_times.get(kept.tokens()).unwrap_or_default());
            for segment in &kept.segments {
                history.add(&new[segment.clone()], self.first_timestamp());
            }
            tokens.extend_from_slice(&new[kept.tokens()]);
            at += kept.n_frames;
        }
        Ok(Spoken { tokens, times })
    }

    /// Runs the encoder on a window that begins at a frame; frames beyond `n_frames` are zero, as in transformers.
    fn encoded(&self, spectrogram: &Spectrogram, at: usize, n_frames: usize) -> Result<Encoded> {
        let mut values = Vec::with_capacity(spectrogram.n_mels * self.window);
        for band in spectrogram.values.chunks_exact(spectrogram.n_frames.max(1)) {
            values.extend_from_slice(&band[at..at + n_frames]);
            values.resize(values.len() + self.window - n_frames, 0.0);
        }
        let shape = (1, spectrogram.n_mels, self.window);
        let features = Tensor::from_vec(values, shape, &self.device)?;
        Ok(self.model.encode(&ModelInput::spectrum(&features))?)
    }
}
