//! A model together with its generation options.

use std::sync::Arc;

use super::{CausalDecoder, Choose, Decoder, Generation, GenerationOptions, Sampler, StopStrings};
use crate::config::{EmbeddingsConfig, HeadTask};
use crate::error::{Error, Result, getters};
use crate::model::{Encoded, Model};

/// Continues prompts with a decoder-only model; the [module](super) has an example. It owns its model, or shares the weights
/// of a borrowed one. It can be shared among threads: each generation has its own cache.
#[derive(Clone, Debug)]
pub struct Generator {
    model: Arc<Model>,
    pub(crate) options: GenerationOptions,
    stop_strings: Option<StopStrings>,
}

impl Generator {
    /// Makes a generator with these options. `model` is a [`Model`], an `Arc` of one, or a reference, whose weights the
    /// generator shares.
    ///
    /// # Errors
    /// If the model has no language modeling head.
    pub fn new(model: impl Into<Arc<Model>>, options: GenerationOptions) -> Result<Self> {
        let model = model.into();
        let found = match model.task() {
            Some(HeadTask::CausalLm) => {
                return Ok(Self {
                    model,
                    options,
                    stop_strings: None,
                });
            }
            Some(task) => format!(": its head has the task {task}"),
            None => String::new(),
        };
        Err(Error::InvalidConfig(format!(
            "the model has no language modeling head{found}; open the checkpoint of a causal \
             language model, whose `architectures` in config.json names a `..ForCausalLM` or \
             `..LMHeadModel`, and whose file contains the head's weight unless \
             `tie_word_embeddings` is true"
        )))
    }

    /// Ends sequences at these strings: [`GenerationOptions::stop_strings`], and the texts of the tokenizer's tokens.
    pub fn with_stop_strings(mut self, strings: StopStrings) -> Self {
        self.stop_strings = Some(strings);
        self
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Arc<Model> => &self.model;
        /// Returns the options.
        options(&self) -> &GenerationOptions => &self.options;
    }

    /// Starts to continue prompts with one or more tokens each; the result is an iterator over the new tokens.
    ///
    /// # Errors
    /// If there is no prompt, or one is empty, longer than the model's positions, or contains a token that the model does
    /// not have.
    pub fn start<C: Choose>(
        &self,
        prompts: &[Vec<u32>],
        choose: C,
    ) -> Result<Generation<CausalDecoder, C>> {
        self.start_after(None, prompts, choose)
    }

    /// Starts like [`Self::start`], and takes the keys and values of the first tokens that the prompt shares with an
    /// `earlier` generation from its cache: the next turn of a chat computes only what is new. The results have the same
    /// bits, except that MPT's position biases may round in another way.
    ///
    /// Everything is computed anew for several prompts, after a beam search, and where the keys and values are not valid
    /// any more: a sliding window has dropped them, or the rotary angles depend on the length.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub fn start_after<C: Choose>(
        &self,
        earlier: Option<Generation<CausalDecoder, C>>,
        prompts: &[Vec<u32>],
        choose: C,
    ) -> Result<Generation<CausalDecoder, C>> {
        self.check_tokens(prompts)?;
        let earlier = earlier.map(Generation::into_decoder);
        let decoder = earlier.filter(|decoder| decoder.can_continue(&self.model));
        let decoder = decoder.unwrap_or_else(|| CausalDecoder::new(self.model.clone()));
        self.begin(decoder, prompts, choose, self.options.clone())
    }

    fn begin<C: Choose>(
        &self,
        decoder: CausalDecoder,
        prompts: &[Vec<u32>],
        choose: C,
        options: GenerationOptions,
    ) -> Result<Generation<CausalDecoder, C>> {
        let stop = self.stop_strings.clone();
        Generation::stopping_at(stop, decoder, prompts, choose, options)
    }

    /// Starts the decoder of a [`Seq2Seq`](crate::model::Seq2Seq) on its encoder's output; this generator's model is that
    /// decoder. `prompts` contain the decoder's initial tokens for each sequence in the batch: usually only the start token
    /// ([`GenerationOptions::decoder_start`]).
    ///
    /// # Errors
    /// If the number of prompts differs from the encoder's batch size; also the errors of [`Self::start`].
    pub fn start_with_encoder<C: Choose>(
        &self,
        encoded: Encoded,
        prompts: &[Vec<u32>],
        choose: C,
    ) -> Result<Generation<CausalDecoder, C>> {
        self.check_tokens(prompts)?;
        let (batch, n) = (encoded.hidden_states.dim(0)?, prompts.len());
        if batch != n {
            let reason = format!("there are {n}, but the encoder's batch has {batch} sequences");
            return Err(Error::input("prompt", reason));
        }
        let decoder = CausalDecoder::new(self.model.clone()).with_encoder_output(encoded);
        let mut options = self.options.clone();
        if options.speech.is_some()
            && let (Some(n), Some(positions)) = (options.max_new_tokens, decoder.max_positions())
        {
            // transformers' Whisper reserves its last position for the last new token.
            let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
            options.max_new_tokens = Some(n.min(positions.saturating_sub(longest)));
        }
        self.begin(decoder, prompts, choose, options)
    }

    /// Checks the tokens; an error gives a token's index in its prompt, not counting padding.
    fn check_tokens(&self, prompts: &[Vec<u32>]) -> Result<()> {
        let EmbeddingsConfig::Tokens(tokens) = &self.model.config().embeddings else {
            return Ok(());
        };
        for (i, prompt) in prompts.iter().enumerate() {
            let at = prompt.iter().position(|&id| id as usize >= tokens.n_tokens);
            if let Some(at) = at {
                return Err(Error::input(
                    "prompt",
                    format!(
                        "number {i} contains token {} at {at}; the model has the tokens 0 to {}",
                        prompt[at],
                        tokens.n_tokens.saturating_sub(1)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns the new tokens for each prompt. If several sequences are returned for each prompt, those for the first prompt
    /// come first.
    ///
    /// # Errors
    /// The errors of [`Self::start`]; also if the model or `choose` fails.
    pub fn generate(&self, prompts: &[Vec<u32>], choose: impl Choose) -> Result<Vec<Vec<u32>>> {
        let mut generation = self.start(prompts, choose)?;
        for step in &mut generation {
            step?;
        }
        Ok(generation.into_tokens())
    }

    /// Returns the decoder's prompt for each sequence in the encoder's output: the token
    /// [`GenerationOptions::decoder_start`], followed by the tokens in [`GenerationOptions::speech`].
    ///
    /// # Errors
    /// If the checkpoint names no first token, or the model cannot compute the languages' logits.
    pub fn beginnings(&self, encoded: &Encoded) -> Result<Vec<Vec<u32>>> {
        let Some(start) = self.options().decoder_start else {
            let reason = "the checkpoint names no decoder_start_token_id; add it to generation_config.json, or give the \
                          decoder_input_ids";
            return Err(Error::InvalidConfig(reason.to_string()));
        };
        let mut begun = vec![vec![start]; encoded.hidden_states.dim(0)?];
        let Some(speech) = &self.options().speech else {
            return Ok(begun);
        };
        if !speech.languages.is_empty() {
            let detected = self.likeliest(&speech.languages, encoded, &begun)?;
            for (begun, detected) in begun.iter_mut().zip(detected) {
                begun.extend(detected);
            }
        }
        for begun in &mut begun {
            begun.extend(&speech.tokens);
        }
        Ok(begun)
    }

    /// Returns the most likely of some tokens after each prompt.
    fn likeliest(
        &self,
        tokens: &[u32],
        encoded: &Encoded,
        prompts: &[Vec<u32>],
    ) -> Result<Vec<Vec<u32>>> {
        let n_tokens = match &self.model().config().embeddings {
            EmbeddingsConfig::Tokens(embeddings) => embeddings.n_tokens as u32,
            _ => 0,
        };
        let options = GenerationOptions {
            suppressed: (0..n_tokens).filter(|id| !tokens.contains(id)).collect(),
            max_new_tokens: Some(1),
            ..GenerationOptions::default()
        };
        let generator = Generator::new(self.model().clone(), options)?;
        let mut generation =
            generator.start_with_encoder(encoded.clone(), prompts, Sampler::greedy())?;
        for step in &mut generation {
            step?;
        }
        Ok(generation.into_tokens())
    }
}
