//! A model and when its generation ends.

use super::{CausalDecoder, Choose, Decoder, Generation, GenerationOptions, StopStrings};
use crate::config::{EmbeddingsConfig, Task, getters};
use crate::error::{Error, Result};
use crate::model::{Encoded, Model};

/// Continues prompts with a decoder-only model; the [module](super) has an example. It can be shared among threads: each generation
/// has a cache of its own.
#[derive(Clone, Debug)]
pub struct Generator<'m> {
    model: &'m Model,
    options: GenerationOptions,
    stop_strings: Option<StopStrings>,
}

impl<'m> Generator<'m> {
    /// A generator that ends as `options` say.
    ///
    /// # Errors
    /// If the model has no head for the next token.
    pub fn new(model: &'m Model, options: GenerationOptions) -> Result<Self> {
        let found = match model.task() {
            Some(Task::CausalLm) => {
                return Ok(Self {
                    model,
                    options,
                    stop_strings: None,
                });
            }
            Some(task) => format!("its head is for {task}"),
            None => "it has no head".to_string(),
        };
        Err(Error::InvalidConfig(format!(
            "the model predicts no next token: {found}; open the checkpoint of a causal language model, whose \
             `architectures` in config.json names a `..ForCausalLM` or `..LMHeadModel`, and whose file holds the head's \
             weight unless `tie_word_embeddings` is true"
        )))
    }

    /// Ends sequences at these strings: [`GenerationOptions::stop_strings`], and the texts of the tokenizer's tokens.
    pub fn with_stop_strings(mut self, strings: StopStrings) -> Self {
        self.stop_strings = Some(strings);
        self
    }

    getters! {
        /// The model.
        model(&self) -> &'m Model => self.model;
        /// When its generation ends.
        options(&self) -> &GenerationOptions => &self.options;
    }

    /// Begins to continue prompts, each of one token or more; the result is an iterator over the new tokens.
    ///
    /// # Errors
    /// If there is no prompt, or one is empty, longer than the model's positions, or holds a token that the model lacks.
    pub fn start<C: Choose>(
        &self,
        prompts: &[Vec<u32>],
        choose: C,
    ) -> Result<Generation<CausalDecoder<'m>, C>> {
        self.check_tokens(prompts)?;
        let options = self.options.clone();
        self.begin(CausalDecoder::new(self.model), prompts, choose, options)
    }

    fn begin<C: Choose>(
        &self,
        decoder: CausalDecoder<'m>,
        prompts: &[Vec<u32>],
        choose: C,
        options: GenerationOptions,
    ) -> Result<Generation<CausalDecoder<'m>, C>> {
        let stop = self.stop_strings.clone();
        Generation::stopping_at(stop, decoder, prompts, choose, options)
    }

    /// Begins to say what the decoder of a [`Seq2Seq`](crate::model::Seq2Seq) makes of its encoder's output; the model of this
    /// generator is that decoder. `prompts` are what it has said already, for each sequence of the batch: the token that it begins
    /// with ([`GenerationOptions::decoder_start`]), unless it is made to say more.
    ///
    /// # Errors
    /// If there are not as many prompts as the encoder has read sequences, or as for [`Self::start`].
    pub fn start_behind<C: Choose>(
        &self,
        encoded: Encoded,
        prompts: &[Vec<u32>],
        choose: C,
    ) -> Result<Generation<CausalDecoder<'m>, C>> {
        self.check_tokens(prompts)?;
        let (batch, n) = (encoded.hidden_states.dim(0)?, prompts.len());
        if batch != n {
            let reason = format!("there are {n}, but the encoder has read {batch} sequences");
            return Err(Error::input("prompt", reason));
        }
        let decoder = CausalDecoder::new(self.model).attending_to(encoded);
        let mut options = self.options.clone();
        if options.speech.is_some()
            && let (Some(n), Some(positions)) = (options.max_new_tokens, decoder.max_positions())
        {
            // transformers' Whisper leaves its last position to the last new token.
            let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
            options.max_new_tokens = Some(n.min(positions.saturating_sub(longest)));
        }
        self.begin(decoder, prompts, choose, options)
    }

    /// Here a token's place is that in its prompt, and not one among padding.
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
                        "number {i} holds token {} at {at}; the model has the tokens 0 to {}",
                        prompt[at],
                        tokens.n_tokens.saturating_sub(1)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The new tokens behind each prompt; where several sequences of each are returned, those of the first prompt come first.
    ///
    /// # Errors
    /// As for [`Self::start`], or if the model or `choose` fails.
    pub fn generate(&self, prompts: &[Vec<u32>], choose: impl Choose) -> Result<Vec<Vec<u32>>> {
        let mut generation = self.start(prompts, choose)?;
        for step in &mut generation {
            step?;
        }
        Ok(generation.into_tokens())
    }
}
