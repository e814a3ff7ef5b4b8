//! The options of `generate` and `chat` that replace keys in generation_config.json.

use anyhow::{Result, bail};
use candle_blocks::generate::{Choose, EarlyStopping, GenerationOptions, Sampler, Sampling};

use crate::output;

/// Options that each replace one key in the checkpoint's generation_config.json.
#[derive(clap::Args)]
#[command(next_help_heading = "Settings (each replaces the model's own)")]
pub struct SettingArgs {
    /// The maximum number of new tokens. [default: 256 for text, 20 for token ids]
    #[arg(long, short = 'n', value_name = "N")]
    max_new_tokens: Option<usize>,
    /// The minimum number of new tokens.
    #[arg(long, value_name = "N")]
    min_new_tokens: Option<usize>,
    /// The repetition penalty: divides the logits of tokens that occur already.
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f64>,
    /// Generate no sequence of N tokens twice; 0 allows repetition.
    #[arg(long, value_name = "N")]
    no_repeat_ngram_size: Option<usize>,
    /// Search with N beams for the most likely text, which is printed at the end.
    #[arg(long, value_name = "N")]
    num_beams: Option<usize>,
    /// Divide a beam's score by this power of its length.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    length_penalty: Option<f64>,
    /// When beam search ends: as soon as N sequences have ended (true), when no better one is possible (never), or when a better
    /// one is unlikely (false).
    #[arg(long, value_name = "WHEN", value_parser = ["true", "false", "never"])]
    early_stopping: Option<String>,
    /// Return the N best sequences for each prompt, with --num-beams.
    #[arg(long, value_name = "N")]
    num_return_sequences: Option<usize>,
    /// Sample tokens, with the settings below or the checkpoint's, instead of taking the most likely ones.
    #[arg(long)]
    sample: bool,
    /// Sample with this temperature; 0 is greedy.
    #[arg(long, short, value_name = "T")]
    temperature: Option<f64>,
    /// Sample from the K most likely tokens; 0 samples from all. [default: 50]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities add up to P.
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Sample from tokens that are at least P times as likely as the most likely one.
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// The seed for sampling: the same seed gives the same tokens again. Without it, a seed is drawn; the last line on standard
    /// error names it.
    #[arg(long, short, value_name = "S")]
    seed: Option<u64>,
    /// A stop string: the token that completes it is the last, also where it is a special token or begins in the prompt, as with
    /// transformers' stop_strings. Several options are several strings.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SettingArgs {
    /// Returns the checkpoint's settings with these replacements, and the sampler.
    pub fn over(&self, mut options: GenerationOptions) -> Result<(GenerationOptions, Sampler)> {
        if self.stop.iter().any(String::is_empty) {
            bail!("--stop is empty; give at least one character");
        }
        if !self.stop.is_empty() {
            options.stop_strings.clone_from(&self.stop);
        }
        if self.max_new_tokens == Some(0) {
            bail!("--max-new-tokens is 0; give at least 1");
        }
        options.max_new_tokens = self.max_new_tokens.or(options.max_new_tokens);
        options.min_new_tokens = self.min_new_tokens.or(options.min_new_tokens);
        let penalty = self.repetition_penalty;
        options.repetition_penalty = penalty.unwrap_or(options.repetition_penalty);
        if options.repetition_penalty.is_nan() || options.repetition_penalty <= 0.0 {
            bail!(
                "--repetition-penalty is {}; expected a number above 0",
                options.repetition_penalty
            );
        }
        let ngram = self.no_repeat_ngram_size;
        options.no_repeat_ngram = ngram.unwrap_or(options.no_repeat_ngram);
        let beams = &mut options.beams;
        if let Some(n) = self.num_beams {
            beams.beams = n;
            // The file's number may be of more beams.
            beams.returned = beams.returned.min(n);
        }
        beams.length_penalty = self.length_penalty.unwrap_or(beams.length_penalty);
        beams.returned = self.num_return_sequences.unwrap_or(beams.returned);
        if let Some(when) = &self.early_stopping {
            beams.early_stopping = match when.as_str() {
                "true" => EarlyStopping::Always,
                "never" => EarlyStopping::Never,
                _ => EarlyStopping::Likely,
            };
        }
        let sampler = self.sampler(&options)?;
        let n = options.beams.beams;
        if n > 1 && sampler.draws() {
            bail!(
                "num_beams is {n} and tokens are sampled: beam sampling is not supported; give --num-beams 1, or leave out \
                 --sample, --seed and the settings of sampling"
            );
        }
        for note in &options.notes {
            output::warn(format_args!("note: {note}"));
        }
        Ok((options, sampler))
    }

    /// Returns the seed that was drawn because none is given, if the sampler needs one.
    pub fn drawn_seed(&self, sampler: &Sampler) -> Option<u64> {
        let seed = sampler.sampling().seed;
        seed.filter(|_| self.seed.is_none() && sampler.draws())
    }

    fn sampler(&self, options: &GenerationOptions) -> Result<Sampler> {
        let numbers = [self.temperature, self.top_p, self.min_p];
        let is_set = numbers.iter().any(Option::is_some) || self.top_k.is_some();
        if !self.sample && !is_set && self.seed.is_none() {
            if let Some(recommended) = &options.recommended {
                output::warn(format_args!(
                    "note: generation_config.json, or general.sampling of a GGUF file, says do_sample, {}; decoding is greedy, and --sample samples with these settings",
                    shown(recommended)
                ));
            }
            return Ok(Sampler::greedy());
        }
        let mut sampling = options.sampling;
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        if let Some(k) = self.top_k {
            sampling.top_k = Some(k).filter(|&k| k > 0);
        }
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.seed = self.seed.or(sampling.seed);
        Ok(Sampler::new(sampling)?)
    }
}

/// Formats the settings that are present.
fn shown(sampling: &Sampling) -> String {
    let numbers = [
        ("top_h", sampling.top_h),
        ("top_k", sampling.top_k.map(|k| k as f64)),
        ("top_p", sampling.top_p),
        ("min_p", sampling.min_p),
        ("typical_p", sampling.typical_p),
        ("epsilon_cutoff", sampling.epsilon_cutoff),
        ("eta_cutoff", sampling.eta_cutoff),
    ];
    let set = numbers
        .iter()
        .filter_map(|(name, value)| Some(format!(", {name} {}", (*value)?)));
    let temperature = format!("temperature {}", sampling.temperature);
    temperature + &set.collect::<String>()
}
