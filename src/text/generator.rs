//! Generates text from text.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::{ChatTemplate, Conversation, Tokenizer};
use crate::checkpoint::Checkpoint;
use crate::error::{Result, getters, setters};
use crate::generate::{CausalDecoder, Choose, Finish, Generation, GenerationOptions, Generator};
use crate::model::Model;
use candle_blocks_tokenizers::TextPieces;

/// Continues texts with a decoder-only model. It owns its model and tokenizer, and can be shared among threads.
///
/// ```no_run
/// use candle_blocks::Precision;
/// use candle_blocks::generate::{Sampler, Sampling};
/// use candle_blocks::text::{Message, TextGenerator, TextOptions};
/// let options = TextOptions::default().precision(Precision::Bf16);
/// let generator = options.generator("Qwen2.5-0.5B-Instruct")?.with_stop_strings(&["\n\n"]);
/// let story = generator.generate("Once upon a time", Sampler::greedy())?;
///
/// let prompt = generator.chat(&[Message::user("Why is the sky blue?")])?;
/// for piece in generator.start(&prompt, Sampler::new(Sampling::at(0.7).with_top_p(0.8))?)? {
///     print!("{}", piece?);
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextGenerator {
    generator: Generator,
    tokenizer: Arc<Tokenizer>,
    /// The chat template, once a conversation has used it.
    template: OnceLock<Arc<ChatTemplate>>,
    /// The caller's stop strings, which replace those of the options.
    stop_strings: Option<Vec<String>>,
    /// `prefix` in `config.json`, which transformers' `TextGenerationPipeline` puts before a text.
    prefix: String,
    notes: Vec<String>,
}

/// A prompt as tokens. Pass it to [`TextGenerator::start`](crate::text::TextGenerator::start).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens.
    pub ids: Vec<u32>,
}

impl TextGenerator {
    /// Opens a folder or a GGUF file, packed in f32 for inference on the CPU. [`TextOptions`](super::TextOptions) has more
    /// options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::generator`](super::TextOptions::generator).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        super::TextOptions::default().generator(path)
    }

    /// Makes a generator of a model that is loaded already, with the checkpoint's tokenizer and `generation_config.json`.
    /// `model` is a [`Model`], an `Arc` of one, or a reference, whose weights the generator shares.
    ///
    /// # Errors
    /// If there is no tokenizer, it has more tokens than the model, or the model has no language modeling head.
    pub fn new(checkpoint: &Checkpoint, model: impl Into<Arc<Model>>) -> Result<Self> {
        let model = model.into();
        let tokenizer = Tokenizer::of(checkpoint)?;
        if let crate::config::EmbeddingsConfig::Tokens(tokens) = &model.config().embeddings {
            tokenizer.check_vocabulary(tokens.n_tokens)?;
        }
        let options = GenerationOptions::of(checkpoint)?.of_text();
        let generator = Generator::new(model, options)?;
        let prefix = match checkpoint.config_json()? {
            Some(json) => json.text(&["prefix"])?,
            None => None,
        };
        Ok(Self {
            generator,
            notes: tokenizer.notes(),
            tokenizer: Arc::new(tokenizer),
            template: OnceLock::new(),
            stop_strings: None,
            prefix: prefix.unwrap_or_default(),
        })
    }

    /// Puts notes before the tokenizer's.
    pub(super) fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes.splice(0..0, notes);
        self
    }

    setters! {
        /// Sets the generation options.
        with_options(options: GenerationOptions) => generator.options = options;
    }

    /// Sets stop strings, which replace [`GenerationOptions::stop_strings`]: transformers' `stop_strings`. A text ends with the
    /// token that completes one of them. The string stays in the text, with what that token has after it. Special tokens count,
    /// though they are not in the text, and a string may begin in the prompt.
    pub fn with_stop_strings(mut self, strings: &[&str]) -> Self {
        let strings = strings.iter().map(|string| string.to_string());
        self.stop_strings = Some(strings.collect());
        self
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Arc<Model> => self.generator.model();
        /// Returns the tokenizer.
        tokenizer(&self) -> &Tokenizer => &self.tokenizer;
        /// Returns the generation options.
        options(&self) -> &GenerationOptions => self.generator.options();
        /// Returns notes on settings in the files that nothing follows, and on matrices that are not packed as they are stored.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Tokenizes a text as a prompt, with the `prefix` in `config.json` and the special tokens that the tokenizer puts
    /// before a text.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn prompt(&self, text: &str) -> Result<Prompt> {
        let ids = self
            .tokenizer
            .encode(&format!("{}{text}", self.prefix))?
            .ids;
        Ok(Prompt { ids })
    }

    /// Tokenizes a conversation as a prompt for the next answer, with the model's own [`ChatTemplate`].
    ///
    /// # Errors
    /// If the checkpoint has no template, or the template refuses the messages.
    pub fn chat(&self, messages: &[super::Message]) -> Result<Prompt> {
        self.chat_with(&Conversation::new(&messages))
    }

    /// Tokenizes a conversation with tools, documents or more variables as a prompt, with the model's own [`ChatTemplate`].
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::text`]; also if the checkpoint has no template.
    pub fn chat_with(&self, conversation: &Conversation) -> Result<Prompt> {
        let template = match self.template.get() {
            Some(template) => template,
            None => {
                let read = Arc::new(ChatTemplate::of(&self.tokenizer)?);
                self.template.get_or_init(|| read)
            }
        };
        let text = template.text(conversation)?;
        // The template writes the special tokens.
        let ids = self.tokenizer.encode_written(&text)?.ids;
        Ok(Prompt { ids })
    }

    /// Starts to continue a prompt; the result is an iterator over pieces of text with whole characters.
    ///
    /// # Errors
    /// The errors of [`Generator::start`].
    pub fn start<C: Choose>(&self, prompt: &Prompt, choose: C) -> Result<TextGeneration<C>> {
        self.start_after(None, prompt, choose)
    }

    /// Starts like [`Self::start`], and takes the keys and values of the tokens that the prompt shares with an `earlier`
    /// generation from its cache ([`Generator::start_after`]): the next turn of a chat computes only what is new.
    ///
    /// ```no_run
    /// use candle_blocks::generate::Sampler;
    /// use candle_blocks::text::{Message, TextGenerator};
    /// let generator = TextGenerator::open("Qwen2.5-0.5B-Instruct")?;
    /// let (mut messages, mut earlier) = (Vec::new(), None);
    /// for question in ["Why is the sky blue?", "And at night?"] {
    ///     messages.push(Message::user(question));
    ///     let mut turn = generator.start_after(earlier, &generator.chat(&messages)?, Sampler::greedy())?;
    ///     let answer = turn.by_ref().collect::<Result<String, _>>()?;
    ///     messages.push(Message::assistant(answer));
    ///     earlier = Some(turn);
    /// }
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Generator::start`].
    pub fn start_after<C: Choose>(
        &self,
        earlier: Option<TextGeneration<C>>,
        prompt: &Prompt,
        choose: C,
    ) -> Result<TextGeneration<C>> {
        let mut generator = self.generator.clone();
        if let Some(strings) = &self.stop_strings {
            generator.options.stop_strings.clone_from(strings);
        }
        if !generator.options.stop_strings.is_empty() {
            let tokenizer = self.tokenizer.clone();
            let stop = tokenizer.ending_at(&generator.options.stop_strings)?;
            generator = generator.with_stop_strings(stop);
        }
        Ok(TextGeneration {
            tokenizer: self.tokenizer.clone(),
            generation: generator.start_after(
                earlier.map(|earlier| earlier.generation),
                std::slice::from_ref(&prompt.ids),
                choose,
            )?,
            pieces: TextPieces::after(&self.tokenizer, &prompt.ids)?,
            n_read: 0,
            is_done: false,
        })
    }

    /// Returns a text's continuation.
    ///
    /// # Errors
    /// The errors of [`Self::prompt`] and [`Self::start`].
    pub fn generate(&self, text: &str, choose: impl Choose) -> Result<String> {
        self.start(&self.prompt(text)?, choose)?.collect()
    }
}

/// Text generation in progress: an iterator with a piece of text for each token. A piece is empty if the token completes no
/// character. With beam search, all text comes at the end. You can stop at any piece.
/// [`TextGenerator::start`](crate::text::TextGenerator::start) returns it.
#[derive(Debug)]
pub struct TextGeneration<C> {
    tokenizer: Arc<Tokenizer>,
    generation: Generation<CausalDecoder, C>,
    pieces: TextPieces,
    /// The number of tokens that were converted to text.
    n_read: usize,
    is_done: bool,
}

impl<C: Choose> TextGeneration<C> {
    /// Returns the new tokens so far.
    pub fn tokens(&self) -> &[u32] {
        self.generation.tokens(0)
    }

    /// Returns why the text has ended; `None` if it has not.
    pub fn finish(&self) -> Option<Finish> {
        self.generation.finish(0)
    }

    /// Returns the tokens in progress, for all sequences if beam search returns several.
    pub fn generation(&self) -> &Generation<CausalDecoder, C> {
        &self.generation
    }

    /// Returns the text that the next token completes; `None` after the last token.
    fn step(&mut self) -> Result<Option<String>> {
        if self.is_done {
            return Ok(None);
        }
        let is_over = self.generation.next().transpose()?.is_none();
        let mut text = String::new();
        for &token in &self.generation.tokens(0)[self.n_read..] {
            text += &self.pieces.push(&self.tokenizer, token)?;
        }
        self.n_read = self.generation.tokens(0).len();
        if is_over {
            self.is_done = true;
            text += &self.pieces.finish(&self.tokenizer)?;
        }
        Ok(Some(text))
    }
}

impl<C: Choose> Iterator for TextGeneration<C> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        self.is_done |= step.is_err();
        step.transpose()
    }
}
