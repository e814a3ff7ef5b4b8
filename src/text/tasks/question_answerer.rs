//! Answers questions from texts: a model with a head for an answer's start and end.

use std::path::Path;

use tokenizers::{EncodeInput, PaddingDirection};

use super::answers::{Answer, AnswerOptions, Answers, Window};
use crate::checkpoint::AppliedAdapter;
use crate::error::{Error, Result, getters};
use crate::model::Model;
use crate::text::encoder::{Encoder, host};
use crate::text::{TextOptions, TokenizedText};
use candle_blocks_tokenizers::{DividedText, TokenWindows};

/// The most tokens in a window by default, and the most that two windows share by default.
const MAX_LENGTH: usize = 384;
const MAX_STRIDE: usize = 128;

/// Answers questions from given texts (extractive question answering), as the question-answering pipeline in transformers 4.57
/// did (<https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/pipelines/question_answering.py>);
/// transformers 5 has none.
///
/// ```no_run
/// use candle_blocks::text::{AnswerOptions, QuestionAnswerer};
/// let answerer = QuestionAnswerer::open("roberta-base-squad2")?;
/// let pair = ("Where does Anna live?", "My name is Anna and I live in Berlin.");
/// let answer = &answerer.answer(&[pair], &AnswerOptions::default())?[0][0];
/// println!("{} {:?} {}", answer.answer, answer.span, answer.score); // Berlin 30..36
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuestionAnswerer {
    encoder: Encoder,
    /// How many tokens a window has.
    max_length: usize,
    context: DividedText,
    notes: Vec<String>,
}

impl QuestionAnswerer {
    /// Opens a checkpoint's directory, packed in f32 for inference on the CPU. [`TextOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`TextOptions::question_answerer`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().question_answerer(directory)
    }

    /// Makes an answerer from a model and its notes; `max_length` tokens at most are in a window.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the tokenizer gives no offsets.
    pub(in crate::text) fn new(
        encoder: Encoder,
        max_length: Option<usize>,
        mut notes: Vec<String>,
    ) -> Result<Self> {
        let tokenizer = &encoder.tokenizer;
        if !tokenizer.has_offsets() {
            return Err(tokenizer.fail(
                "belongs to a class that gives no offsets, without which an answer has no place in its text; use a model with \
                 another tokenizer",
            ));
        }
        let limit = tokenizer.max_length()?.unwrap_or(MAX_LENGTH);
        // As in transformers, where padding on the left belongs to models that read the question last.
        let context = match tokenizer.padding_side()? {
            PaddingDirection::Right => DividedText::Second,
            PaddingDirection::Left => DividedText::First,
        };
        notes.extend(encoder.notes());
        Ok(Self {
            max_length: max_length.unwrap_or(limit.min(MAX_LENGTH)),
            context,
            encoder,
            notes,
        })
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Model => &self.encoder.model;
        /// Returns the adapters that are merged into its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.encoder.adapters;
        /// Returns how many tokens a window has: the question, a part of the context, and special tokens.
        max_length(&self) -> usize => self.max_length;
        /// Returns notes on settings in the files that results do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// Returns the answers to each question in the context beside it, the best first. There may be fewer than
    /// [`AnswerOptions::top_k`]; there is none if the context has no token.
    ///
    /// A context that is too long for the model is divided into windows that overlap.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `top_k` or an answer's length is 0, or the stride is larger than a window;
    /// [`Error::Text`] if a question or a context is empty, a question fills the window, or a text gives a token
    /// that the model does not have, or more than the model has positions.
    pub fn answer<Q: AsRef<str>, C: AsRef<str>>(
        &self,
        questions: &[(Q, C)],
        options: &AnswerOptions,
    ) -> Result<Vec<Vec<Answer>>> {
        let stride = self.stride(options)?;
        let mut windows = Vec::new();
        let mut owners = Vec::new();
        for (index, (question, context)) in questions.iter().enumerate() {
            let of_text = self.windows(index, (question.as_ref(), context.as_ref()), stride)?;
            owners.extend(vec![index; of_text.len()]);
            windows.extend(of_text);
        }
        let tokens = windows.iter().map(|w| TokenizedText::from(&w.encoding));
        let tokens: Vec<TokenizedText> = tokens.collect();
        self.encoder.check_parts(&tokens, &owners)?;
        let mut logits = vec![Vec::new(); windows.len()];
        self.encoder.run(&tokens, |batch, output| {
            let missing = || Error::InvalidConfig("the model gives no logits".to_string());
            let of_batch = output.logits.ok_or_else(missing)?;
            let (_, seq, n_out) = of_batch.dims3()?; // [batch, seq, 2]
            for (row, &window) in host(&of_batch)?.chunks_exact(seq * n_out).zip(batch) {
                logits[window] = row[..tokens[window].ids.len() * n_out].to_vec();
            }
            Ok(())
        })?;
        let each = questions.iter();
        let mut all: Vec<Answers> = each
            .map(|(_, context)| Answers::new(context.as_ref(), options))
            .collect();
        for ((window, logits), &owner) in windows.iter().zip(&logits).zip(&owners) {
            all[owner].add(window, logits);
        }
        Ok(all.into_iter().map(Answers::finish).collect())
    }

    /// Returns how many tokens two windows share.
    fn stride(&self, options: &AnswerOptions) -> Result<usize> {
        for (name, value) in [
            ("top_k", options.top_k),
            ("max_answer_length", options.max_answer_length),
        ] {
            if value == 0 {
                return Err(Error::input(name, "found 0, expected a number above 0"));
            }
        }
        let max_length = self.max_length;
        let stride = options.doc_stride.unwrap_or(MAX_STRIDE.min(max_length / 2));
        match stride > max_length {
            true => {
                let reason = format!(
                    "found {stride}, expected at most {max_length}, the tokens in a window"
                );
                Err(Error::input("doc_stride", reason))
            }
            false => Ok(stride),
        }
    }

    /// Returns the windows over a context.
    fn windows(
        &self,
        index: usize,
        (question, context): (&str, &str),
        stride: usize,
    ) -> Result<Vec<Window>> {
        for (name, text) in [("question", question), ("context", context)] {
            if text.is_empty() {
                let reason = format!("has an empty {name}; leave it out, or give a text");
                return Err(Error::Text { index, reason });
            }
        }
        let (first, second) = match self.context {
            DividedText::Second => (question, context),
            DividedText::First => (context, question),
        };
        let windows = TokenWindows {
            max_length: self.max_length,
            stride,
            divided: self.context,
        };
        let tokenizer = &self.encoder.tokenizer;
        let pair = EncodeInput::Dual(first.into(), second.into());
        let encodings = tokenizer.windows(index, pair, windows)?;
        let no_answer = tokenizer.named_id("cls_token");
        let window = |encoding: tokenizers::Encoding| {
            let sequences = encoding.get_sequence_ids().into_iter();
            let allowed = sequences.zip(encoding.get_ids()).map(|(sequence, id)| {
                match self.context {
                    // Some models begin with a token for no answer.
                    DividedText::Second => sequence == Some(1) || Some(*id) == no_answer,
                    // As in transformers, every token is allowed then.
                    DividedText::First => true,
                }
            });
            Window {
                allowed: allowed.collect(),
                context: usize::from(self.context == DividedText::Second),
                encoding,
            }
        };
        Ok(encodings.into_iter().map(window).collect())
    }
}
