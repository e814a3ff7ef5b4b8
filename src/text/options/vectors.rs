//! Opens models that give vectors.

use std::path::Path;

use candle_core::DType;

use super::{TextOptions, WeightForm, without_effect};
use crate::Checkpoint;
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::text::encoder::Encoder;
use crate::text::encoder::folder::Folder;
use crate::text::encoder::reading::TextReading;
use crate::text::scoring::Similarity;
use crate::text::sentence_files::{
    EachToken, Kind, PoolingBody, ResultBody, Roles, RouteFiles, SentenceFiles, TokenFeatures,
    heads, static_files,
};
use crate::text::sentences::pipeline::Pipeline;
use crate::text::sentences::stages::{Feature, ModuleStep, VectorMap};
use crate::text::sentences::static_embedding::{StaticEmbedding, TableUse};
use crate::text::sentences::{Sentences, VectorSource};
use crate::text::{Pooling, TextEmbedder};

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

impl TextOptions {
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
        let options = match &body {
            ResultBody::Projection(_) => self.checkpoint.clone().whole(),
            _ => self.checkpoint.clone().encoder_of(ENCODERS),
        };
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
            VectorSource::Projection if checkpoint.second_stack()?.is_some() => {
                let towers = self.loader(&checkpoint).two_towers()?;
                Ok(towers.text().clone())
            }
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
        folder.check_texts(checkpoint)?;
        let mut pooling = match body {
            ResultBody::Pooling(pooling) => pooling,
            ResultBody::Pooler(steps) if self.pooling.is_empty() => {
                return Ok((VectorSource::Pooler, steps));
            }
            ResultBody::Projection(steps) if self.pooling.is_empty() => {
                return Ok((VectorSource::Projection, steps));
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
}
