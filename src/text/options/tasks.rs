//! Opens models for the tasks of transformers' pipelines, and generators.

use std::path::Path;

use super::Belonging::{Pairs, Scores, Vectors};
use super::{TextOptions, without_effect};
use crate::Checkpoint;
use crate::config::{Activation, HeadTask};
use crate::error::Result;
use crate::text::classifier::Head;
use crate::text::encoder::Encoder;
use crate::text::encoder::folder::Folder;
use crate::text::encoder::reading::{LengthLimit, TextReading};
use crate::text::prompts::Prompts;
use crate::text::scoring::ScoreFunction;
use crate::text::{
    Gliner, MaskFiller, QuestionAnswerer, TextClassifier, TextGenerator, TokenClassifier,
    TruncationStrategy, ZeroShotClassifier,
};

impl TextOptions {
    /// Opens a classifier for labels that the caller names, by a model trained on entailment (natural language inference).
    /// Files of sentence-transformers are not read.
    ///
    /// # Errors
    /// If the checkpoint has no classification head with two labels, `label2id` is malformed, a file is missing or malformed,
    /// the tokenizer belongs to another model, or an option is set that vectors alone have.
    pub fn zero_shot_classifier(self, path: impl AsRef<Path>) -> Result<ZeroShotClassifier> {
        let reading = TextReading {
            limit: LengthLimit::OfTokenizer,
            truncation: TruncationStrategy::OnlyFirst,
            keeps_whole: true,
            ..TextReading::default()
        };
        let task = HeadTask::SequenceClassification;
        let (checkpoint, encoder, notes) = self.for_task(path.as_ref(), task, reading)?;
        let classifier = TextClassifier::new(
            Head::Own(encoder),
            checkpoint.labels()?,
            ScoreFunction::Each(Activation::Identity),
            Prompts::default(),
            notes,
        );
        ZeroShotClassifier::new(classifier, &checkpoint)
    }

    /// Opens a classifier of tokens, which finds entities.
    ///
    /// # Errors
    /// If the checkpoint has no token classification head, `id2label` lacks a label, a file is missing or malformed, the
    /// tokenizer belongs to another model, or an option is set that vectors or pairs alone have.
    pub fn token_classifier(self, path: impl AsRef<Path>) -> Result<TokenClassifier> {
        self.refuse(&[Pairs], "a text without a second one")?;
        Gliner::refuse(path.as_ref())?;
        let reading = TextReading {
            limit: LengthLimit::OfTokenizer,
            ..TextReading::default()
        };
        let task = HeadTask::TokenClassification;
        let (checkpoint, encoder, notes) = self.for_task(path.as_ref(), task, reading)?;
        Ok(TokenClassifier::new(encoder, checkpoint.labels()?, notes))
    }

    /// Opens a GLiNER model, which finds entities of labels that the caller names: a folder with `gliner_config.json`, the weights and
    /// the tokenizer. Without the section `encoder_config`, the encoder's `config.json` is beside it.
    ///
    /// # Errors
    /// If there is no such file, the model is not one with one encoder for labels and texts, a file is missing or malformed, the
    /// tokenizer belongs to another model, or an option is set other than a precision, dtype or device.
    pub fn gliner(self, path: impl AsRef<Path>) -> Result<Gliner> {
        let result = "the entities of a GLiNER model";
        self.refuse(&[Vectors, Scores, Pairs], result)?;
        if self.max_length.is_some() {
            return Err(without_effect("max_length", result));
        }
        Gliner::load(path.as_ref(), &self.checkpoint, &self.form)
    }

    /// Opens a model that answers questions from texts. [`Self::max_length`] is how many tokens a window has, for the question
    /// and a part of the context. By default, it is the tokenizer's limit, but at most 384.
    ///
    /// # Errors
    /// If the checkpoint has no question answering head, the tokenizer's class is written in Python or belongs to another model,
    /// a file is missing or malformed, or an option is set that vectors or other pairs alone have.
    pub fn question_answerer(mut self, path: impl AsRef<Path>) -> Result<QuestionAnswerer> {
        self.refuse(&[Pairs], "answers, whose contexts are divided")?;
        let max_length = self.max_length.take();
        let reading = TextReading {
            limit: LengthLimit::Unlimited,
            ..TextReading::default()
        };
        let task = HeadTask::QuestionAnswering;
        let (_, encoder, notes) = self.for_task(path.as_ref(), task, reading)?;
        QuestionAnswerer::new(encoder, max_length, notes)
    }

    /// Opens a masked language model, which fills gaps.
    ///
    /// # Errors
    /// If the checkpoint has no masked language modeling head, the tokenizer has no mask token or belongs to another model, a
    /// file is missing or malformed, or an option is set that vectors or pairs alone have.
    pub fn mask_filler(self, path: impl AsRef<Path>) -> Result<MaskFiller> {
        self.refuse(&[Pairs], "a text without a second one")?;
        let reading = TextReading {
            limit: LengthLimit::Unlimited,
            ..TextReading::default()
        };
        let task = HeadTask::MaskedLm;
        let (_, encoder, notes) = self.for_task(path.as_ref(), task, reading)?;
        MaskFiller::new(encoder, notes)
    }

    /// Opens a decoder with a language modeling head, from a folder or a GGUF file.
    ///
    /// # Errors
    /// The errors of [`TextGenerator::new`]; also if an option is set that vectors alone have: a pooling, normalization or a
    /// limit on tokens.
    pub fn generator(self, path: impl AsRef<Path>) -> Result<TextGenerator> {
        let result = "generated text";
        self.refuse(&[Vectors, Scores, Pairs], result)?;
        if self.max_length.is_some() {
            return Err(without_effect("max_length", result));
        }
        let checkpoint = self.checkpoint.clone().open(path)?;
        let model = self.loader(&checkpoint).model()?;
        let generator = TextGenerator::new(&checkpoint, model)?;
        Ok(generator.with_notes(self.notes(&checkpoint)))
    }

    /// Opens a model with a head for one of transformers' pipelines, and returns it with its notes.
    fn for_task(
        &self,
        path: &Path,
        task: HeadTask,
        mut reading: TextReading,
    ) -> Result<(Checkpoint, Encoder, Vec<String>)> {
        self.refuse(&[Vectors, Scores], "this task")?;
        self.shorten(&mut reading);
        let folder = Folder::of(path, &self.checkpoint)?;
        let checkpoint = self.checkpoint.clone().whole().open(path)?;
        let encoder = self.with_head(&folder, &checkpoint, reading, task)?;
        let notes = self.notes(&checkpoint);
        Ok((checkpoint, encoder, notes))
    }
}
