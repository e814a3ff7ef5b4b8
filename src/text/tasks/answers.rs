//! Finds answers in logits for their starts and ends, as transformers' question answering did.
//!
//! <https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/pipelines/question_answering.py>

use std::ops::Range;

use tokenizers::Encoding;

use crate::error::setters;

/// The logit of a token that no answer may begin or end with, as in transformers.
const IMPOSSIBLE: f64 = -10_000.0;

/// The answers that [`QuestionAnswerer::answer`](crate::text::QuestionAnswerer::answer) returns. The defaults are those in
/// transformers' question-answering pipeline.
///
/// ```
/// use candle_blocks::text::AnswerOptions;
/// let options = AnswerOptions::default().top_k(3).handle_impossible_answer(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct AnswerOptions {
    pub(super) top_k: usize,
    pub(super) max_answer_length: usize,
    pub(super) doc_stride: Option<usize>,
    handle_impossible_answer: bool,
    align_to_words: bool,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            top_k: 1,
            max_answer_length: 15,
            doc_stride: None,
            handle_impossible_answer: false,
            align_to_words: true,
        }
    }
}

impl AnswerOptions {
    setters! {
        /// Sets how many answers a question has at most: 1 by default.
        top_k(top_k: usize) => top_k = top_k;
        /// Sets how many tokens an answer has at most: 15 by default.
        max_answer_length(n_tokens: usize) => max_answer_length = n_tokens;
        /// Sets how many tokens a window over a long context shares with the one before: by default 128, but at most half the
        /// window.
        doc_stride(n_tokens: usize) => doc_stride = Some(n_tokens);
        /// Sets whether the context may have no answer, for a model that was trained so (SQuAD 2). That answer is empty.
        handle_impossible_answer(may_be: bool) => handle_impossible_answer = may_be;
        /// Sets whether an answer has whole words, which is the default. Texts without spaces between words may need false.
        align_to_words(is_aligned: bool) => align_to_words = is_aligned;
    }

    /// Returns how many spans are read in a window: alignment makes some equal.
    fn spans_of_window(&self) -> usize {
        match self.align_to_words {
            true => self.top_k.saturating_mul(2).saturating_add(10),
            false => self.top_k,
        }
    }
}

/// An answer to a question: a part of the context.
/// [`QuestionAnswerer::answer`](crate::text::QuestionAnswerer::answer) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The start's probability times the end's, among a window's tokens; the sum over spans with the same text. A sum over
    /// windows can be above 1.
    pub score: f64,
    /// The answer's place in the context, in characters (Unicode code points).
    pub span: Range<usize>,
    /// The answer; empty if the context has none.
    pub answer: String,
}

/// A window over a context with its question, as tokens.
pub(super) struct Window {
    pub encoding: Encoding,
    /// The tokens with which an answer may begin or end.
    pub allowed: Vec<bool>,
    /// The sequence that is the context: 0 or 1.
    pub context: usize,
}

impl Window {
    /// Returns the tokens' place in the context: transformers' `get_indices`.
    fn place(&self, first: usize, last: usize, options: &AnswerOptions) -> Range<usize> {
        let word = |token: usize| {
            let (_, word) = self.encoding.token_to_word(token)?;
            self.encoding.word_to_chars(word, self.context)
        };
        if let (true, Some(first), Some(last)) = (options.align_to_words, word(first), word(last)) {
            return first.0..last.1;
        }
        // Some tokenizers know no words.
        let offsets = self.encoding.get_offsets();
        offsets[first].0..offsets[last].1
    }
}

/// The answers to one question, from window to window.
pub(super) struct Answers<'o> {
    context: Vec<char>,
    options: &'o AnswerOptions,
    found: Vec<Answer>,
    /// The lowest probability among windows that there is no answer.
    null_score: f64,
}

impl<'o> Answers<'o> {
    pub fn new(context: &str, options: &'o AnswerOptions) -> Self {
        Self {
            context: context.chars().collect(),
            options,
            found: Vec::new(),
            null_score: f64::INFINITY,
        }
    }

    /// Adds the answers in a window, given a start and an end logit for each token.
    pub fn add(&mut self, window: &Window, logits: &[f32]) {
        let probabilities = |which: usize| {
            let logits = logits.iter().skip(which).step_by(2);
            let logits = logits.zip(&window.allowed).map(|(logit, allowed)| {
                let logit = f64::from(*logit);
                if *allowed { logit } else { IMPOSSIBLE }
            });
            softmax(logits.collect())
        };
        let (mut starts, mut ends) = (probabilities(0), probabilities(1));
        self.null_score = self.null_score.min(f64::from(starts[0] * ends[0]));
        // The first token stands for no answer.
        (starts[0], ends[0]) = (0.0, 0.0);
        for (score, first, last) in best_spans(&starts, &ends, self.options) {
            if window.allowed[first] && window.allowed[last] {
                let place = window.place(first, last, self.options);
                self.add_span(f64::from(score), place);
            }
        }
    }

    /// Adds an answer, or its score to that of the answer with the same text, whatever the case.
    fn add_span(&mut self, score: f64, span: Range<usize>) {
        // A place may end after the context where its tokens are the question's.
        let characters = self.context.iter().take(span.end).skip(span.start);
        let answer: String = characters.collect();
        let lower = answer.to_lowercase();
        let mut known = self.found.iter_mut();
        match known.find(|known| known.answer.to_lowercase() == lower) {
            Some(known) => known.score += score,
            None => self.found.push(Answer {
                score,
                span,
                answer,
            }),
        }
    }

    /// Returns the best answers, the best first, and equal ones by their windows and places.
    pub fn finish(mut self) -> Vec<Answer> {
        if self.options.handle_impossible_answer {
            self.found.push(Answer {
                score: self.null_score,
                span: 0..0,
                answer: String::new(),
            });
        }
        self.found.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.found.truncate(self.options.top_k);
        self.found
    }
}

/// Returns the most probable spans with their first and last tokens, the most probable first, and equal ones by their
/// tokens: transformers' `decode_spans`, without spans that have the probability 0.
fn best_spans(starts: &[f32], ends: &[f32], options: &AnswerOptions) -> Vec<(f32, usize, usize)> {
    let mut spans = Vec::new();
    for (first, start) in starts.iter().enumerate() {
        let last = ends.iter().enumerate().skip(first);
        for (last, end) in last.take(options.max_answer_length) {
            if start * end > 0.0 {
                spans.push((start * end, first, last));
            }
        }
    }
    spans.sort_by(|a, b| b.0.total_cmp(&a.0));
    spans.truncate(options.spans_of_window());
    spans
}

fn softmax(logits: Vec<f64>) -> Vec<f32> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|x| (x - most).exp()).sum();
    let all = logits.iter().map(|x| ((x - most).exp() / total) as f32);
    all.collect()
}
