//! Options for loading a model that reads texts.

use std::path::Path;

use candle_core::{DType, Device};

use super::classifier::Head;
use super::encoder::Encoder;
use super::prompts::Prompts;
use super::scoring::{ScoreFunction, Similarity};
use super::sentence_files::{
    EachToken, Kind, PoolingBody, ResultBody, Roles, RouteFiles, SentenceFiles, TokenFeatures,
    heads, static_files, torch_class,
};
use super::sentences::pipeline::Pipeline;
use super::sentences::static_embedding::{StaticEmbedding, TableUse};
use super::sentences::{Sentences, VectorSource};
use super::tasks::ranker::{Judge, TextRanker};
use super::{
    FunctionToApply, MaskFiller, Pooling, QuestionAnswerer, TextClassifier, TextEmbedder,
    TextGenerator, TokenClassifier, TruncationStrategy, ZeroShotClassifier,
};
use crate::config::{Activation, HeadTask, Precision};
use crate::error::{Error, Result, setters};
use crate::text::encoder::folder::Folder;
use crate::text::encoder::reading::{LengthLimit, TextReading};
use crate::text::sentences::stages::{Feature, ModuleStep, VectorMap};
use crate::{Checkpoint, CheckpointOptions, Loader, Weights};

/// Model types with two stacks for which sentence-transformers only uses the encoder.
const ENCODERS: &[&str] = &[
    "blenderbot",
    "blenderbot-small",
    "longt5",
    "m2m_100",
    "marian",
    "mt5",
    "pegasus",
    "pegasus_x",
    "prophetnet",
    "switch_transformers",
    "t5",
    "t5gemma",
    "umt5",
];

/// Options for opening a [`TextEmbedder`], a classifier, a [`TextRanker`], a [`MaskFiller`] or a [`TextGenerator`]. By default the
/// files determine everything, and the model is packed in f32 for inference on the CPU.
///
/// ```no_run
/// use candle_blocks::text::{Pooling, TextOptions};
/// let embedder = TextOptions::default()
///     .pooling([Pooling::Mean]) // of a plain encoder, whose files name none
///     .normalize(true)
///     .embedder("bert-base-uncased")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TextOptions {
    checkpoint: CheckpointOptions,
    form: WeightForm,
    max_length: Option<usize>,
    truncation: Option<TruncationStrategy>,
    pooling: Vec<Pooling>,
    normalize: Option<bool>,
    truncate_dim: Option<usize>,
    function_to_apply: Option<FunctionToApply>,
}

/// The library whose functions convert logits to scores if a folder without `modules.json` names none.
#[derive(Clone, Copy, PartialEq)]
enum ScoreDefaults {
    /// transformers' text classification.
    Pipeline,
    /// sentence-transformers' `CrossEncoder`.
    CrossEncoder,
}

/// The form of the weights.
#[derive(Clone, Debug)]
pub(crate) enum WeightForm {
    Packed(Precision),
    Plain(DType, Device),
}

impl Default for WeightForm {
    fn default() -> Self {
        Self::Packed(Precision::F32)
    }
}

impl WeightForm {
    /// Returns the type of a model's input.
    #[cfg(feature = "media")]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Packed(_) => DType::F32,
            Self::Plain(dtype, _) => *dtype,
        }
    }

    /// Returns the form for a loader.
    pub fn weights(&self) -> Weights<'_> {
        match self {
            Self::Packed(precision) => Weights::Packed(*precision),
            Self::Plain(dtype, device) => Weights::Dense(*dtype, device),
        }
    }
}

impl TextOptions {
    setters! {
        /// Sets the options for opening the checkpoint.
        checkpoint(options: CheckpointOptions) => checkpoint = options;
        /// Packs the weights for the CPU in this precision.
        precision(precision: Precision) => form = WeightForm::Packed(precision);
        /// Truncates texts to this number of tokens, including special ones. A table of positions limits it, with a note.
        max_length(max_length: usize) => max_length = Some(max_length);
        /// Sets which text of a pair is truncated, overriding the files.
        truncation(truncation: TruncationStrategy) => truncation = Some(truncation);
        /// Sets whether vectors are normalized to length 1, overriding the files.
        normalize(normalize: bool) => normalize = Some(normalize);
        /// Keeps this number of a vector's features, the first, overriding the files: for models that were trained so
        /// (Matryoshka). They are truncated before [`Self::normalize`].
        truncate_dim(truncate_dim: usize) => truncate_dim = Some(truncate_dim);
        /// Sets the function that converts a classifier's logits to scores, overriding the files.
        function_to_apply(function: FunctionToApply) => function_to_apply = Some(function);
    }

    /// Loads the weights unpacked, in this dtype and on this device.
    pub fn device(mut self, dtype: DType, device: &Device) -> Self {
        self.form = WeightForm::Plain(dtype, device.clone());
        self
    }

    /// Sets the pooling, overriding the files; the results of several are concatenated.
    pub fn pooling(mut self, pooling: impl IntoIterator<Item = Pooling>) -> Self {
        self.pooling = pooling.into_iter().collect();
        self
    }

    /// Opens an embedder: a directory with `modules.json`, or a plain encoder with the pooling set by the caller. For T5 and
    /// other models with two stacks whose encoder sentence-transformers uses, opens the encoder. Static embeddings
    /// (sentence-transformers, model2vec) have no model, but a table with a vector for each token.
    ///
    /// # Errors
    /// If there is no `modules.json` and no pooling is set, a file is missing or malformed, a module, pooling, activation or
    /// key is unknown, or the tokenizer belongs to another model.
    pub fn embedder(self, path: impl AsRef<Path>) -> Result<TextEmbedder> {
        let path = path.as_ref();
        let folder = Folder::of(path, &self.checkpoint)?;
        if folder.is_model2vec {
            let table = static_files::model2vec(folder.directory, self.max_length)?;
            let pipeline = self.static_pipeline(table.0, table.1)?;
            let files = SentenceFiles::without(folder.directory);
            return Ok(TextEmbedder::new(
                vec![pipeline],
                Roles::ONE,
                files.similarity,
                files.prompts,
                files.notes,
            ));
        }
        let mut files = match &folder.kind {
            Some(other @ (Kind::CrossEncoder | Kind::Other(_))) => {
                return Err(folder.of_another_kind(other));
            }
            Some(kind) => SentenceFiles::open(folder.directory, kind)?,
            None => folder.without_files(),
        };
        files.notes.extend(folder.unread_head());
        let similarity = match self.pooling[..] {
            [Pooling::Lexical] => Similarity::Dot,
            [Pooling::EachToken] => Similarity::MeanMaxSim,
            _ => files.similarity,
        };
        let mut roles = files.roles;
        let mut pipelines = Vec::new();
        for route in std::mem::take(&mut files.routes) {
            let made = self.pipelines(path, &folder, route, &mut files.notes)?;
            if made.len() == 2 {
                roles = Roles::EACH_TOKEN;
            }
            pipelines.extend(made);
        }
        Ok(TextEmbedder::new(
            pipelines,
            roles,
            similarity,
            files.prompts,
            files.notes,
        ))
    }

    /// Makes a route's pipeline; for a model with a vector for each token, one for queries and one for documents.
    fn pipelines(
        &self,
        path: &Path,
        folder: &Folder,
        route: RouteFiles,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Pipeline>> {
        let RouteFiles {
            model,
            mut reading,
            body,
        } = route;
        if let ResultBody::Static(usage, steps) = body {
            let mut embedding = match usage {
                TableUse::Mean => static_files::open(&model)?,
                TableUse::Presence => static_files::sparse(&model)?,
            };
            if self.max_length.is_some() {
                embedding.truncate(self.max_length)?;
            }
            return Ok(vec![self.static_pipeline(embedding, steps)?]);
        }
        self.shorten(&mut reading);
        let options = self.checkpoint.clone().encoder_of(ENCODERS);
        let checkpoint = options.open(folder.model(path, &model))?;
        notes.extend(self.notes(&checkpoint));
        if let ResultBody::EachToken(each) = body {
            let both = self.each_token(each, reading, &checkpoint)?;
            return Ok(both.map(|one| Pipeline::Model(Box::new(one))).into());
        }
        let (source, mut steps) = self.source(folder, body, &checkpoint)?;
        let is_pooled = !matches!(&source, VectorSource::Pooling(body)
            if body.reads == TokenFeatures::Logits || body.poolings.iter().any(|kind| Pooling::OF_HEADS.contains(kind)));
        if self.truncate_dim.is_some() && !is_pooled {
            let reason = "goes with a model that has one vector of its hidden states for each text; leave it out";
            return Err(Error::input("truncate_dim", reason));
        }
        if let (Some(_), VectorSource::Pooling(body)) = (self.normalize, &source)
            && body.poolings == [Pooling::EachToken]
        {
            let reason = "vectors of tokens always have length 1; leave it out";
            return Err(Error::input("normalize", reason));
        }
        self.end_vectors(&mut steps)?;
        let model = match &source {
            VectorSource::Pooling(pooling) if pooling.reads == TokenFeatures::Hidden => {
                self.loader(&checkpoint).base_model()
            }
            _ => self.loader(&checkpoint).model(),
        }?;
        let encoder = Encoder::new(model, &checkpoint, reading)?;
        let sentences = Sentences::new(encoder, source, steps, Feature::Vectors)?;
        Ok(vec![Pipeline::Model(Box::new(sentences))])
    }

    /// Makes a table's pipeline, which needs no model.
    fn static_pipeline(
        &self,
        embedding: StaticEmbedding,
        mut steps: Vec<ModuleStep>,
    ) -> Result<Pipeline> {
        let is_default = match &self.form {
            WeightForm::Packed(precision) => *precision == Precision::F32,
            WeightForm::Plain(dtype, device) => *dtype == DType::F32 && device.is_cpu(),
        };
        let set = [
            ("pooling", !self.pooling.is_empty()),
            ("precision or device", !is_default),
            ("checkpoint", !self.checkpoint.is_default()),
        ];
        if let Some((name, _)) = set.into_iter().find(|(_, is_set)| *is_set) {
            return Err(without_effect(
                name,
                "a static embedding, which has no model",
            ));
        }
        if self.truncate_dim.is_some() && embedding.usage == TableUse::Presence {
            return Err(without_effect(
                "truncate_dim",
                "vectors over the vocabulary",
            ));
        }
        self.end_vectors(&mut steps)?;
        Pipeline::of_table(embedding, steps)
    }

    /// Overrides how the files truncate and normalize vectors.
    fn end_vectors(&self, steps: &mut Vec<ModuleStep>) -> Result<()> {
        if let Some(truncate_dim) = self.truncate_dim {
            if truncate_dim == 0 {
                let reason = "found 0, expected a number of features above 0";
                return Err(Error::input("truncate_dim", reason));
            }
            steps.retain(|step| !matches!(step.stage, VectorMap::Truncate(_)));
            steps.push(ModuleStep::of_vectors(VectorMap::Truncate(truncate_dim)));
        }
        if let Some(normalize) = self.normalize {
            steps.retain(|step| !matches!(step.stage, VectorMap::Normalize));
            steps.extend(normalize.then_some(ModuleStep::of_vectors(VectorMap::Normalize)));
        }
        Ok(())
    }

    /// Opens a ranker: a cross-encoder, which is a classifier with one label, or an embedder. Without a `modules.json`, a
    /// pooling set by the caller selects the embedder, and otherwise the checkpoint's head selects one.
    ///
    /// # Errors
    /// If a classifier has another number of labels, an option is set that the other kind alone has, or as in
    /// [`Self::classifier`] and [`Self::embedder`].
    pub fn ranker(self, path: impl AsRef<Path>) -> Result<TextRanker> {
        let path = path.as_ref();
        let folder = Folder::of(path, &self.checkpoint)?;
        let reads_pairs = match &folder.kind {
            Some(kind) => *kind == Kind::CrossEncoder,
            None if folder.is_model2vec || !self.pooling.is_empty() => false,
            None => {
                let checkpoint = self.checkpoint.clone().whole().open(path)?;
                let head = checkpoint.model_config()?.head.as_ref();
                let task = head.map(|head| head.task).or(checkpoint.missing_head()?);
                task == Some(HeadTask::SequenceClassification)
            }
        };
        if !reads_pairs {
            self.refuse_of_scores("similarities")?;
            self.refuse_of_pairs("similarities")?;
            return Ok(TextRanker::new(Judge::Vectors(Box::new(
                self.embedder(path)?,
            ))));
        }
        let classifier = self.classifier_as(path, ScoreDefaults::CrossEncoder)?;
        let n_labels = classifier.labels().len();
        if n_labels != 1 {
            return Err(Error::InvalidConfig(format!(
                "{}: the model has {n_labels} labels, and a ranking needs one score; use a cross-encoder with one, or an \
                 embedding model (`TextClassifier` gives the scores of all labels)",
                path.display()
            )));
        }
        Ok(TextRanker::new(Judge::Pairs(Box::new(classifier))))
    }

    /// Opens a classifier or a cross-encoder.
    ///
    /// # Errors
    /// If the checkpoint has no classification head and `modules.json` names no modules that compute scores, a file is
    /// missing or malformed, a module or key is unknown, the tokenizer belongs to another model, or an option is set that
    /// vectors alone have.
    pub fn classifier(self, path: impl AsRef<Path>) -> Result<TextClassifier> {
        self.classifier_as(path.as_ref(), ScoreDefaults::Pipeline)
    }

    fn classifier_as(self, path: &Path, defaults: ScoreDefaults) -> Result<TextClassifier> {
        self.refuse_of_vectors("scores")?;
        let folder = Folder::of(path, &self.checkpoint)?;
        let is_cross_encoder = folder.kind == Some(Kind::CrossEncoder);
        let mut files = match is_cross_encoder {
            true => SentenceFiles::open(folder.directory, &Kind::CrossEncoder)?,
            false => folder.without_files(),
        };
        let mut route = files.first_route(folder.directory);
        self.shorten(&mut route.reading);
        let checkpoint = self
            .checkpoint
            .clone()
            .whole()
            .open(folder.model(path, &route.model))?;
        files.notes.extend(self.notes(&checkpoint));
        let reading = route.reading;
        let (head, labels) = match route.body {
            ResultBody::Pooling(mut pooling) if is_cross_encoder => {
                let steps = std::mem::take(&mut pooling.steps);
                let model = self.loader(&checkpoint).base_model()?;
                let encoder = Encoder::new(model, &checkpoint, reading)?;
                let source = VectorSource::Pooling(pooling);
                modules(encoder, source, steps)?
            }
            ResultBody::Pooler(steps) => {
                let encoder =
                    Encoder::new(self.loader(&checkpoint).model()?, &checkpoint, reading)?;
                modules(encoder, VectorSource::Pooler, steps)?
            }
            ResultBody::NextToken { yes, no } => {
                let encoder =
                    Encoder::new(self.loader(&checkpoint).model()?, &checkpoint, reading)?;
                let n_tokens = encoder.n_tokens()?;
                if let Some(id) = [Some(yes), no]
                    .into_iter()
                    .flatten()
                    .find(|&id| id as usize >= n_tokens)
                {
                    return Err(Error::InvalidConfig(format!(
                        "the LogitScore that modules.json names reads token {id}, but the model \
                         has {n_tokens} token embeddings"
                    )));
                }
                (Head::NextToken { encoder, yes, no }, vec![label(0)])
            }
            ResultBody::Classifier
            | ResultBody::Pooling(_)
            | ResultBody::Static(..)
            | ResultBody::EachToken(_) => {
                let task = HeadTask::SequenceClassification;
                let encoder = self.with_head(&folder, &checkpoint, reading, task)?;
                (Head::Own(encoder), checkpoint.labels()?)
            }
        };
        let json = checkpoint.config_json()?;
        let named = match (files.scoring, &json) {
            _ if self.function_to_apply.is_some() => self.function_to_apply.map(Into::into),
            (None, Some(json)) => torch_class::of_cross_encoder(json)?,
            (scoring, _) => scoring,
        };
        let scoring = match named {
            Some(scoring) => scoring,
            None if is_cross_encoder || defaults == ScoreDefaults::CrossEncoder => {
                ScoreFunction::Each(match labels.len() {
                    1 => Activation::Sigmoid,
                    _ => Activation::Identity,
                })
            }
            None => ScoreFunction::of_pipeline(json.as_ref(), labels.len())?,
        };
        Ok(TextClassifier::new(
            head,
            labels,
            scoring,
            files.prompts,
            files.notes,
        ))
    }

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
        self.refuse_of_pairs("a text without a second one")?;
        let reading = TextReading {
            limit: LengthLimit::OfTokenizer,
            ..TextReading::default()
        };
        let task = HeadTask::TokenClassification;
        let (checkpoint, encoder, notes) = self.for_task(path.as_ref(), task, reading)?;
        Ok(TokenClassifier::new(encoder, checkpoint.labels()?, notes))
    }

    /// Opens a model that answers questions from texts. [`Self::max_length`] is how many tokens a window has, for the question
    /// and a part of the context. By default, it is the tokenizer's limit, but at most 384.
    ///
    /// # Errors
    /// If the checkpoint has no question answering head, the tokenizer's class is written in Python or belongs to another model,
    /// a file is missing or malformed, or an option is set that vectors or other pairs alone have.
    pub fn question_answerer(mut self, path: impl AsRef<Path>) -> Result<QuestionAnswerer> {
        self.refuse_of_pairs("answers, whose contexts are divided")?;
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
        self.refuse_of_pairs("a text without a second one")?;
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
        self.refuse_of_vectors(result)?;
        self.refuse_of_scores(result)?;
        self.refuse_of_pairs(result)?;
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
        self.refuse_of_vectors("this task")?;
        self.refuse_of_scores("this task")?;
        self.shorten(&mut reading);
        let folder = Folder::of(path, &self.checkpoint)?;
        let checkpoint = self.checkpoint.clone().whole().open(path)?;
        let encoder = self.with_head(&folder, &checkpoint, reading, task)?;
        let notes = self.notes(&checkpoint);
        Ok((checkpoint, encoder, notes))
    }

    /// Returns the model with its own head for a task.
    fn with_head(
        &self,
        folder: &Folder,
        checkpoint: &Checkpoint,
        reading: TextReading,
        task: HeadTask,
    ) -> Result<Encoder> {
        folder.check_head(checkpoint, task)?;
        match checkpoint.second_stack()? {
            // BART's head is the decoder's.
            Some(_) => {
                let whole = self.loader(checkpoint).seq2seq()?;
                Encoder::with_decoder(whole, checkpoint, reading)
            }
            None => Encoder::new(self.loader(checkpoint).model()?, checkpoint, reading),
        }
    }

    /// Refuses options that vectors alone have.
    fn refuse_of_vectors(&self, result: &str) -> Result<()> {
        let set = [
            ("pooling", !self.pooling.is_empty()),
            ("normalize", self.normalize.is_some()),
            ("truncate_dim", self.truncate_dim.is_some()),
        ];
        let mut set = set.into_iter().filter(|(_, is_set)| *is_set);
        set.next()
            .map_or(Ok(()), |(name, _)| Err(without_effect(name, result)))
    }

    /// Refuses an option that scores of the model's own labels alone have.
    fn refuse_of_scores(&self, result: &str) -> Result<()> {
        match self.function_to_apply {
            Some(_) => Err(without_effect("function_to_apply", result)),
            None => Ok(()),
        }
    }

    /// Refuses an option that pairs alone have.
    fn refuse_of_pairs(&self, result: &str) -> Result<()> {
        match self.truncation {
            Some(_) => Err(without_effect("truncation", result)),
            None => Ok(()),
        }
    }

    /// Returns the pipelines of queries and of documents to a vector for each token.
    fn each_token(
        &self,
        mut each: EachToken,
        documents: TextReading,
        checkpoint: &Checkpoint,
    ) -> Result<[Sentences; 2]> {
        let is_set = [self.normalize.is_some(), self.truncate_dim.is_some()];
        if !self.pooling.is_empty() || is_set.contains(&true) {
            let reason = "the model's files give a vector for each token; leave it out";
            return Err(Error::input("pooling, normalize or truncate_dim", reason));
        }
        let expansion = each.queries.expansion.as_ref();
        if !expansion.is_some_and(|added| added.truncates) {
            self.shorten(&mut each.queries);
        }
        let model = self.loader(checkpoint).base_model()?;
        let pipeline = |reading, skipped: &[String]| {
            let encoder = Encoder::new(model.clone(), checkpoint, reading)?;
            let source = VectorSource::Pooling(each.body.clone());
            let sentences = Sentences::new(encoder, source, Vec::new(), Feature::Vectors)?;
            Ok::<_, Error>(sentences.skipping(skipped))
        };
        Ok([
            pipeline(each.queries, &each.skipped[0])?,
            pipeline(documents, &each.skipped[1])?,
        ])
    }

    /// Returns the pooling, the caller's or that of the files, and the modules after it.
    fn source(
        &self,
        folder: &Folder,
        body: ResultBody,
        checkpoint: &Checkpoint,
    ) -> Result<(VectorSource, Vec<ModuleStep>)> {
        let mut pooling = match body {
            ResultBody::Pooling(pooling) => pooling,
            ResultBody::Pooler(steps) if self.pooling.is_empty() => {
                return Ok((VectorSource::Pooler, steps));
            }
            _ => PoolingBody::default(),
        };
        if let Some(&kind) = self
            .pooling
            .iter()
            .find(|kind| Pooling::OF_HEADS.contains(kind))
        {
            let [_] = self.pooling[..] else {
                let reason = format!("{kind} goes with no other; name it alone");
                return Err(Error::input("pooling", reason));
            };
            let body = heads::open(checkpoint.files().directory(), kind)?;
            return Ok((VectorSource::Pooling(body), Vec::new()));
        }
        if !self.pooling.is_empty() {
            if pooling.reads == TokenFeatures::Logits {
                let reason = "the model's files pool logits; leave it out, which follows them";
                return Err(Error::input("pooling", reason));
            }
            pooling.poolings = self.pooling.clone();
        } else if let (true, Some(name)) = (pooling.poolings.is_empty(), checkpoint.own_pooling()?)
        {
            pooling.poolings.push(name.parse()?);
        }
        if pooling.poolings.is_empty() {
            return Err(folder.without_pooling(checkpoint));
        }
        let steps = std::mem::take(&mut pooling.steps);
        Ok((VectorSource::Pooling(pooling), steps))
    }

    /// Overrides the files' limit on tokens, and how texts are truncated.
    fn shorten(&self, reading: &mut TextReading) {
        reading.limit = self.max_length.map_or(reading.limit, LengthLimit::Asked);
        reading.truncation = self.truncation.unwrap_or(reading.truncation);
    }

    /// Notes on matrices that are not packed as they are stored, if they should be.
    fn notes(&self, checkpoint: &Checkpoint) -> Vec<String> {
        let WeightForm::Packed(Precision::AsStored) = self.form else {
            return Vec::new();
        };
        let path = checkpoint.files().path().display();
        let types = checkpoint.report().not_as_stored.into_iter();
        types.map(|of_type| format!("{path}: {of_type}")).collect()
    }

    fn loader<'c>(&self, checkpoint: &'c Checkpoint) -> Loader<'c> {
        checkpoint.load(self.form.weights())
    }
}

/// Returns the error for an option that has no effect on a result.
fn without_effect(option: &str, result: &str) -> Error {
    let reason = format!("has no effect on {result}; leave it out");
    Error::input(option, reason)
}

/// Returns a cross-encoder's modules and labels.
fn modules(
    encoder: Encoder,
    source: VectorSource,
    steps: Vec<ModuleStep>,
) -> Result<(Head, Vec<String>)> {
    let sentences = Sentences::new(encoder, source, steps, Feature::Scores)?;
    let labels = (0..sentences.width()).map(label).collect();
    Ok((Head::Modules(Box::new(sentences)), labels))
}

/// Returns the name for a label that has none.
fn label(i: usize) -> String {
    format!("LABEL_{i}")
}
