//! wav2vec 2.0, HuBERT, WavLM and data2vec with a CTC head, from samples to text.

use std::sync::Arc;

use candle_blocks_media::sound::WaveformSettings;
use candle_core::{D, DType, Device, Module, Tensor};

use super::ctc_vocabulary::CtcVocabulary;
use super::outer_tensors::OuterTensors;
use super::waveform_encoder::WaveformEncoder;
use super::windows::Windows;
use super::{SpeechOptions, TimestampKind, Transcript, processor_config};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::layers::{Linear, Stack};

/// The model types with a CTC head.
const TYPES: [&str; 4] = ["wav2vec2", "hubert", "data2vec-audio", "wavlm"];

/// transformers' class with a CTC head, without the family's name.
const CLASS: &str = "ForCTC";

/// A model with a CTC head, its vocabulary and settings.
#[derive(Clone, Debug)]
pub(super) struct Ctc {
    settings: WaveformSettings,
    encoder: Arc<WaveformEncoder>,
    stack: Arc<Stack>,
    head: Linear,
    vocabulary: CtcVocabulary,
    kind: TimestampKind,
    windows: Option<Windows>,
    /// The blocks' type and device.
    dtype: DType,
    device: Device,
}

impl Ctc {
    /// Returns whether a checkpoint has such a model.
    pub fn fits(checkpoint: &Checkpoint) -> Result<bool> {
        let Some(json) = checkpoint.config_json()? else {
            return Ok(false);
        };
        let of_type = json.text(&["model_type"])?;
        let is_known = of_type.is_some_and(|name| TYPES.contains(&name.as_str()));
        let classes = json.texts(&["architectures"])?.unwrap_or_default();
        Ok(is_known && classes.iter().any(|class| class.ends_with(CLASS)))
    }

    /// Returns the language whose adapter is requested, for a model that has adapters.
    pub fn language<'o>(
        checkpoint: &Checkpoint,
        options: &'o SpeechOptions,
    ) -> Result<Option<&'o str>> {
        let json = checkpoint.config_json()?;
        let width = json.map(|json| json.optional_size(&["adapter_attn_dim"]));
        let has_adapters = width.transpose()?.flatten().is_some();
        let requested = options.request.language_alone();
        Ok(requested.filter(|_| has_adapters))
    }

    /// Opens a model with the adapter for `language`, which [`Self::language`] returns.
    pub fn open(
        checkpoint: &Checkpoint,
        language: Option<&str>,
        options: &SpeechOptions,
    ) -> Result<Self> {
        let refused = |reason: &str| Err(Error::input("speech options", reason));
        if options.timestamps == TimestampKind::Segment {
            return refused(
                "a model with a CTC head has no segments; ask for times of words (`TimestampKind::Word`), or none",
            );
        }
        let is_plain = options.request == Default::default() || language.is_some();
        if !is_plain || options.beams.is_some() {
            return refused(
                "a model with a CTC head has no languages, tasks and beams; leave them out",
            );
        }
        if options.decoding != Default::default() {
            return refused(
                "a model with a CTC head has no temperatures, thresholds and prompts; leave them out",
            );
        }
        let Some(json) = checkpoint.config_json()? else {
            return refused("the checkpoint has no config.json");
        };
        let folder = checkpoint.files().directory();
        let settings = processor_config::waveform(&processor_config::open(folder)?)?;
        let tensors = OuterTensors::of(checkpoint, "feature_projection.projection.weight");
        let encoder = WaveformEncoder::open(&tensors, &json)?;
        let (n_tokens, d_model) = (json.size(&["vocab_size"])?, json.size(&["hidden_size"])?);
        let of_head =
            |name: &str, shape: &[usize]| tensors.read_whole(&[format!("lm_head.{name}")], shape);
        let (dtype, device) = options.computation();
        let head = Linear::from_parts(
            of_head("weight", &[n_tokens, d_model])?,
            Some(of_head("bias", &[n_tokens])?),
        )?;
        let step = encoder.samples_per_position();
        Ok(Self {
            windows: Windows::of(&options.windows, settings.rate, step)?,
            settings,
            encoder: Arc::new(encoder),
            stack: Arc::new(options.loader(checkpoint).stack()?),
            head,
            vocabulary: CtcVocabulary::open(folder, language)?,
            kind: options.timestamps,
            dtype,
            device,
        })
    }

    pub fn rate(&self) -> u32 {
        self.settings.rate
    }

    pub fn transcribe(&self, samples: &[f32]) -> Result<Transcript> {
        let least = self.encoder.least_samples();
        if samples.len() < least {
            let reason = format!("has {} samples, expected at least {least}", samples.len());
            return Err(Error::input("audio", reason));
        }
        let ids = match self.windows {
            None => self.most_likely(samples)?,
            Some(windows) => {
                let mut ids = Vec::new();
                // A shorter one has no position.
                let windows = windows.in_clip(samples.len());
                for window in windows.filter(|window| window.samples.len() >= least) {
                    let all = self.most_likely(&samples[window.samples])?;
                    let end = window.kept.end.min(all.len());
                    ids.extend_from_slice(all.get(window.kept.start..end).unwrap_or_default());
                }
                ids
            }
        };
        let step = (self.encoder.samples_per_position(), self.settings.rate);
        self.vocabulary.transcript(&ids, self.kind, step)
    }

    /// Returns the most likely token at each position.
    fn most_likely(&self, samples: &[f32]) -> Result<Vec<u32>> {
        let input = self.settings.input(samples);
        let input = Tensor::new(&input[..], &Device::Cpu)?;
        let hidden = self.encoder.forward(&input)?; // [1, seq, d_model]
        let hidden = hidden.to_device(&self.device)?.to_dtype(self.dtype)?;
        let hidden = self.stack.forward(&hidden)?;
        let hidden = hidden.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let logits = self.head.forward(&hidden)?;
        Ok(logits.argmax(D::Minus1)?.squeeze(0)?.to_vec1()?)
    }
}
