//! Options for generation: when it ends, and which tokens it prefers.

use super::{BeamOptions, Sampling, SpeechStart, TimestampRules};
use crate::error::{getters, setters};

/// The deterministic part of transformers' `GenerationConfig`: when generation ends, changes to the next token's logits, and
/// beam search. Each field names its key. Pass it to [`Generator::new`](crate::generate::Generator::new).
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct GenerationOptions {
    /// `max_new_tokens`: the maximum number of new tokens. It overrides [`Self::max_length`]; if neither is set,
    /// [`Self::NEW_TOKENS`] applies.
    pub max_new_tokens: Option<usize>,
    /// `max_length`: the maximum length of a sequence including its prompt, and including the padding of a shorter prompt in
    /// a batch.
    pub max_length: Option<usize>,
    /// `min_new_tokens`: the minimum number of new tokens before a sequence may end. It overrides [`Self::min_length`].
    pub min_new_tokens: Option<usize>,
    /// `min_length`: the minimum length before a sequence may end, counted as in [`Self::max_length`].
    pub min_length: usize,
    /// `max_time`: generation ends after the first token that takes longer than this, in seconds.
    pub max_time: Option<f64>,
    /// `eos_token_id`: tokens that end a sequence. They are part of the result.
    pub stop_tokens: Vec<u32>,
    /// `stop_strings`: a sequence ends with the token that completes one of these. They are part of the result.
    pub stop_strings: Vec<String>,
    /// `pad_token_id`: the padding for shorter sequences in [`Generation::padded`](super::Generation::padded); by default
    /// the first stop token.
    pub pad_token: Option<u32>,
    /// The padding before shorter prompts in a batch; by default [`Self::pad_token`]. As in transformers, settings that
    /// depend on a sequence's tokens also see this padding.
    pub padding: Option<u32>,
    /// `decoder_start_token_id`: the first token of an encoder-decoder's decoder; by default `bos_token_id`.
    pub decoder_start: Option<u32>,
    /// Additional tokens in the prompt of Whisper's decoder: `language`, `task`, `lang_to_id`, `task_to_id`,
    /// `no_timestamps_token_id` and `forced_decoder_ids`.
    pub speech: Option<SpeechStart>,
    /// `return_timestamps` of a speech model: the rules for timestamps in its transcripts.
    pub timestamps: Option<TimestampRules>,
    /// `suppress_tokens`: tokens that are never selected.
    pub suppressed: Vec<u32>,
    /// `begin_suppress_tokens`: tokens that are not selected first.
    pub suppressed_first: Vec<u32>,
    /// `forced_bos_token_id`: the forced first new token after prompts with one token.
    pub forced_first: Option<u32>,
    /// `forced_eos_token_id`: the last token of a sequence with maximum length is one of these.
    pub forced_last: Vec<u32>,
    /// `repetition_penalty`: positive logits of tokens that occur are divided by this, negative ones multiplied.
    pub repetition_penalty: f64,
    /// `encoder_repetition_penalty`: the inverse penalty, for tokens in the encoder's input.
    pub encoder_repetition_penalty: f64,
    /// `no_repeat_ngram_size`: n-grams of this size are not repeated; 0 allows all.
    pub no_repeat_ngram: usize,
    /// `encoder_no_repeat_ngram_size`: n-grams of this size in the encoder's input are not repeated; 0 allows all.
    pub encoder_no_repeat_ngram: usize,
    /// `bad_words_ids`: token sequences that are not generated.
    pub bad_words: Vec<Vec<u32>>,
    /// `sequence_bias`: token sequences, and a bias on the last token's logit after the others.
    pub sequence_bias: Vec<(Vec<u32>, f32)>,
    /// `exponential_decay_length_penalty`: after this number of new tokens, the logits of stop tokens increase by powers of
    /// this factor.
    pub length_decay: Option<(usize, f64)>,
    /// `remove_invalid_values`: NaN logits become 0, infinite ones finite.
    pub remove_invalid: bool,
    /// `renormalize_logits`: scores are normalized to log-probabilities after all other changes.
    pub renormalize: bool,
    /// `num_beams` and related keys.
    pub beams: BeamOptions,
    /// `temperature`, `top_k` and the others, for a [`Sampler`](super::Sampler): the checkpoint's, or transformers'
    /// defaults.
    pub sampling: Sampling,
    /// [`Self::sampling`], if the checkpoint's authors recommend sampling: `do_sample`. It has no effect unless passed to a
    /// [`Sampler`](super::Sampler).
    pub recommended: Option<Sampling>,
    /// The model's `max_position_embeddings`, which limits the length if no other option does.
    pub positions: Option<usize>,
    /// The context length: the number of tokens, the prompt's included, for which the model was made, by its files. Generation
    /// does not end there ([`Generation::beyond_context`](super::Generation::beyond_context)).
    pub context_length: Option<usize>,
    /// Notes on keys in the checkpoint's file that generation does not follow.
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
            timestamps: None,
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
            context_length: None,
            notes: Vec::new(),
        }
    }
}

impl GenerationOptions {
    /// The default for the maximum number of new tokens, as in transformers' `generate`.
    pub const NEW_TOKENS: usize = 20;
    /// The default for the maximum number of new tokens in text generation, as in transformers' `TextGenerationPipeline`.
    pub const NEW_TOKENS_OF_TEXT: usize = 256;

    /// Returns the options with [`Self::NEW_TOKENS_OF_TEXT`] as the maximum number of new tokens, if no length is set.
    pub fn of_text(mut self) -> Self {
        if !self.sets_length() {
            self.max_new_tokens = Some(Self::NEW_TOKENS_OF_TEXT);
        }
        self
    }

    getters! {
        /// Returns whether an option limits the length.
        sets_length(&self) -> bool => self.max_new_tokens.is_some() || self.max_length.is_some();
    }

    setters! {
        /// Sets the maximum number of new tokens.
        with_max_new_tokens(n: usize) => max_new_tokens = Some(n);
        /// Sets the minimum number of new tokens.
        with_min_new_tokens(n: usize) => min_new_tokens = Some(n);
        /// Sets the tokens that end a sequence.
        with_stop_tokens(tokens: Vec<u32>) => stop_tokens = tokens;
        /// Sets the padding for shorter sequences in the result.
        with_pad_token(token: u32) => pad_token = Some(token);
        /// Sets the penalty for tokens that occur.
        with_repetition_penalty(penalty: f64) => repetition_penalty = penalty;
        /// Sets beam search.
        with_beams(beams: BeamOptions) => beams = beams;
    }

    /// Returns whether logits depend on the encoder's input tokens.
    pub(super) fn needs_encoder_tokens(&self) -> bool {
        self.encoder_repetition_penalty != 1.0 || self.encoder_no_repeat_ngram > 0
    }
}
