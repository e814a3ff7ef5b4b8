//! When generation ends, and which tokens it prefers.

use super::{BeamOptions, Sampling, SpeechStart};
use crate::checkpoint::Checkpoint;
use crate::config::{getters, setters};
use crate::error::Result;

/// The part of transformers' `GenerationConfig` that does not depend on chance: when generation ends, what changes the logits of
/// the next token, and beam search. Each field says which key it is.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct GenerationOptions {
    /// `max_new_tokens`: the most tokens that are put behind a prompt. Before [`Self::max_length`], if both are set; where
    /// neither is, [`Self::NEW_TOKENS`].
    pub max_new_tokens: Option<usize>,
    /// `max_length`: the most tokens of a sequence with its prompt, and the padding of a shorter prompt of a batch.
    pub max_length: Option<usize>,
    /// `min_new_tokens`: no sequence ends before it has so many new tokens. Before [`Self::min_length`], if it is set.
    pub min_new_tokens: Option<usize>,
    /// `min_length`: no sequence ends before it is as long, counted as [`Self::max_length`].
    pub min_length: usize,
    /// `max_time`: generation ends behind the first token that comes later, in seconds.
    pub max_time: Option<f64>,
    /// `eos_token_id`: tokens that end a sequence. They are part of the result.
    pub stop_tokens: Vec<u32>,
    /// `stop_strings`: a sequence ends with the token that completes one of these. They are part of the result.
    pub stop_strings: Vec<String>,
    /// `pad_token_id`: fills the rows of shorter sequences in [`Generation::padded`](super::Generation::padded); by default the
    /// first of the tokens that end a sequence.
    pub pad_token: Option<u32>,
    /// The token in front of the shorter prompts of a batch, which settings that look at a sequence's tokens see there, as
    /// in transformers; by default [`Self::pad_token`].
    pub padding: Option<u32>,
    /// `decoder_start_token_id`: the token that the decoder behind an encoder begins with; by default `bos_token_id`.
    pub decoder_start: Option<u32>,
    /// The further tokens of the prompt of Whisper's decoder: `language`, `task`, `lang_to_id`, `task_to_id`,
    /// `no_timestamps_token_id` and `forced_decoder_ids`.
    pub speech: Option<SpeechStart>,
    /// `suppress_tokens`: tokens that are never chosen.
    pub suppressed: Vec<u32>,
    /// `begin_suppress_tokens`: tokens that are not chosen first.
    pub suppressed_first: Vec<u32>,
    /// `forced_bos_token_id`: the new token behind prompts of one token, if it is not to be chosen.
    pub forced_first: Option<u32>,
    /// `forced_eos_token_id`: the last token of a sequence of the greatest length is one of these.
    pub forced_last: Vec<u32>,
    /// `repetition_penalty`: the logits of tokens that occur are divided by this, or multiplied with it if they are below 0.
    pub repetition_penalty: f64,
    /// `encoder_repetition_penalty`: the same upside down, for tokens of the encoder's input.
    pub encoder_repetition_penalty: f64,
    /// `no_repeat_ngram_size`: no sequence of so many tokens comes twice; 0 allows all.
    pub no_repeat_ngram: usize,
    /// `encoder_no_repeat_ngram_size`: none of so many tokens of the encoder's input comes again; 0 allows all.
    pub encoder_no_repeat_ngram: usize,
    /// `bad_words_ids`: sequences of tokens that do not come.
    pub bad_words: Vec<Vec<u32>>,
    /// `sequence_bias`: sequences of tokens, and what is added to the logit of the last where the others are in front of it.
    pub sequence_bias: Vec<(Vec<u32>, f32)>,
    /// `exponential_decay_length_penalty`: behind so many new tokens, the logits of those that end a sequence rise by powers of
    /// this factor.
    pub length_decay: Option<(usize, f64)>,
    /// `remove_invalid_values`: logits that are not a number become 0, infinite ones finite.
    pub remove_invalid: bool,
    /// `renormalize_logits`: scores are logarithms of probabilities again after all else has changed them.
    pub renormalize: bool,
    /// `num_beams` and what goes with it.
    pub beams: BeamOptions,
    /// `temperature`, `top_k` and the others, for a [`Sampler`](super::Sampler): the checkpoint's, or transformers' defaults.
    pub sampling: Sampling,
    /// [`Self::sampling`], if the checkpoint's authors would draw tokens by it: `do_sample`. Nothing is drawn unless it is
    /// handed to a [`Sampler`](super::Sampler).
    pub recommended: Option<Sampling>,
    /// `max_position_embeddings` of the model, which limits the length where nothing says how long sequences become.
    pub positions: Option<usize>,
    /// Sentences on keys of the checkpoint's file that generation does not follow.
    pub notes: Vec<String>,
}

impl Default for GenerationOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            max_length: None,
            min_new_tokens: None,
            min_length: 0,
            max_time: None,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            pad_token: None,
            padding: None,
            decoder_start: None,
            speech: None,
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            forced_first: None,
            forced_last: Vec::new(),
            repetition_penalty: 1.0,
            encoder_repetition_penalty: 1.0,
            no_repeat_ngram: 0,
            encoder_no_repeat_ngram: 0,
            bad_words: Vec::new(),
            sequence_bias: Vec::new(),
            length_decay: None,
            remove_invalid: false,
            renormalize: false,
            beams: BeamOptions::default(),
            sampling: Sampling::at(1.0).with_top_k(50),
            recommended: None,
            positions: None,
            notes: Vec::new(),
        }
    }
}

impl GenerationOptions {
    /// The most new tokens where nothing says how many, as transformers' `generate` has it.
    pub const NEW_TOKENS: usize = 20;
    /// The most new tokens of a text where nothing says how many, as transformers' `TextGenerationPipeline` has it.
    pub const NEW_TOKENS_OF_TEXT: usize = 256;

    /// The settings in the checkpoint's `generation_config.json`, or in its `config.json` where there is none. A GGUF file says
    /// them itself ([`Beside`](crate::checkpoint::Beside)).
    ///
    /// # Errors
    /// If the file cannot be read, a value in it is not what its key is for, or it asks for a way of generation that the crate
    /// does not have.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        super::config_file::options_of(checkpoint)
    }

    /// The same, with [`Self::NEW_TOKENS_OF_TEXT`] where nothing says how many new tokens there are.
    pub fn of_text(mut self) -> Self {
        if !self.sets_length() {
            self.max_new_tokens = Some(Self::NEW_TOKENS_OF_TEXT);
        }
        self
    }

    getters! {
        /// Whether something says how long sequences become.
        sets_length(&self) -> bool => self.max_new_tokens.is_some() || self.max_length.is_some();
    }

    setters! {
        /// Sets the most tokens that are put behind a prompt.
        with_max_new_tokens(n: usize) => max_new_tokens = Some(n);
        /// Sets how many new tokens a sequence has at least.
        with_min_new_tokens(n: usize) => min_new_tokens = Some(n);
        /// Sets the tokens that end a sequence.
        with_stop_tokens(tokens: Vec<u32>) => stop_tokens = tokens;
        /// Sets what fills the rows of shorter sequences.
        with_pad_token(token: u32) => pad_token = Some(token);
        /// Sets the penalty for tokens that occur.
        with_repetition_penalty(penalty: f64) => repetition_penalty = penalty;
        /// Sets beam search.
        with_beams(beams: BeamOptions) => beams = beams;
    }

    /// Whether logits depend on the tokens that the encoder reads.
    pub(super) fn needs_encoder_tokens(&self) -> bool {
        self.encoder_repetition_penalty != 1.0 || self.encoder_no_repeat_ngram > 0
    }
}
