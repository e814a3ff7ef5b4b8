//! The folder with a model that reads texts.

use std::path::Path;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::write::directory;
use crate::config::{EmbeddingsConfig, HeadTask};
use crate::error::{Error, Result};
use crate::text::sentence_files::{COLBERT, Kind, SentenceFiles};
use crate::{Checkpoint, CheckpointOptions};

/// Returns true for an encoder-decoder whose decoder fills masks: transformers' `AutoModelForMaskedLM`.
fn fills_by_decoder(checkpoint: &Checkpoint) -> Result<bool> {
    let json = checkpoint.config_json()?;
    let model_type = json.map(|json| json.text(&["model_type"])).transpose()?;
    let model_type = model_type.flatten().unwrap_or_default();
    Ok(["bart", "mbart", "mvp"].contains(&model_type.as_str()))
}

/// A folder, and the kind of model to which its sentence-transformers files belong.
#[derive(Debug)]
pub(crate) struct Folder<'p> {
    pub directory: &'p Path,
    /// `None` if there is no `modules.json`, or the files beside the weights are not read.
    pub kind: Option<Kind>,
    /// There is no `modules.json`, and the model is one of model2vec.
    pub is_model2vec: bool,
    reads_beside: bool,
}

impl<'p> Folder<'p> {
    /// Returns the folder at `path`, or the one that contains that file.
    ///
    /// # Errors
    /// If it cannot be read, or is a repository in the Hub's cache, whose models are in subfolders.
    pub fn of(path: &'p Path, options: &CheckpointOptions) -> Result<Self> {
        std::fs::metadata(path).map_err(|cause| Error::io(path, "read", cause))?;
        let directory = match path.is_file() {
            true => directory(path), // the folder with the weights
            false => path,
        };
        let reads_beside = !options.leaves_out_beside(path);
        let kind = match reads_beside {
            true => SentenceFiles::kind(directory)?,
            false => None,
        };
        let is_model2vec =
            reads_beside && kind.is_none() && SentenceFiles::is_model2vec(directory)?;
        if kind.is_none() && !directory.join("config.json").exists() {
            TensorFiles::open(path)?; // returns the error if there is no model
        }
        Ok(Self {
            directory,
            kind,
            is_model2vec,
            reads_beside,
        })
    }

    /// Returns the settings that apply if the sentence-transformers files are not read.
    pub fn without_files(&self) -> SentenceFiles {
        let mut files = SentenceFiles::without(self.directory);
        if !self.reads_beside {
            files.notes.clear(); // the checkpoint reports the keys that it ignores
        }
        files
    }

    /// Returns the path to open: `path` itself, which may be a file, or the folder of the transformer module.
    pub fn model<'m>(&self, path: &'m Path, model: &'m Path) -> &'m Path {
        match model == self.directory {
            true => path,
            false => model,
        }
    }

    /// Refuses a model that reads no texts.
    pub fn check_texts(&self, checkpoint: &Checkpoint) -> Result<()> {
        let reads = match checkpoint.model_config()?.embeddings {
            EmbeddingsConfig::Tokens(_) => return Ok(()),
            EmbeddingsConfig::Patches(_) => "images; use `ImageEmbedder`",
            EmbeddingsConfig::Spectrum(_) => "sound; use `Transcriber`",
        };
        Err(self.error(format!("the model reads no texts but {reads}")))
    }

    /// Returns the error for an embedder without a known pooling.
    pub fn without_pooling(&self, checkpoint: &Checkpoint) -> Error {
        let is_gguf = checkpoint.files().gguf().is_some();
        let (path, why) = match self.kind {
            Some(_) => (self.directory, "modules.json names no Pooling"),
            None if is_gguf => (checkpoint.files().path(), "its pooling_type names none"),
            None => (self.directory, "there is no modules.json"),
        };
        Error::InvalidConfig(format!(
            "{}: {why}, so how the vectors of tokens become one is not known; name a pooling, which for most encoders is \
             \"mean\" or \"cls\" (`TextOptions::pooling`)",
            path.display()
        ))
    }

    /// Returns the error for an embedder whose files belong to another kind of model.
    pub fn of_another_kind(&self, kind: &Kind) -> Error {
        let cure = match kind {
            Kind::CrossEncoder => "which gives scores for pairs; use `TextClassifier`",
            Kind::Other(name) if name == COLBERT => {
                let reason = "is a ColBERT in the files of PyLate or of Stanford, which are not read; convert it with `python -c 'import sys; \
                     from sentence_transformers import MultiVectorEncoder as M; M(sys.argv[1]).save_pretrained(sys.argv[2])' FOLDER NEW`";
                return self.error(reason.into());
            }
            _ => {
                "which is not supported; a SentenceTransformer, a SparseEncoder, a MultiVectorEncoder or a CrossEncoder is"
            }
        };
        self.error(format!(
            "config_sentence_transformers.json sets \"model_type\": \"{kind}\", {cure}"
        ))
    }

    /// Returns a note on a classifier beside an embedder, which scikit-learn wrote: SetFit's.
    pub fn unread_head(&self) -> Option<String> {
        let head = self.directory.join("model_head.pkl");
        head.exists().then(|| {
            format!(
                "{} is not read: the result is the vectors on which SetFit's classifier was trained, not its labels; apply it to \
                 them with scikit-learn",
                head.display()
            )
        })
    }

    /// Refuses a checkpoint without a head for a task.
    ///
    /// # Errors
    /// If it has none.
    pub fn check_head(&self, checkpoint: &Checkpoint, task: HeadTask) -> Result<()> {
        let head = checkpoint.model_config()?.head.as_ref();
        let has_head = match (task, head) {
            (HeadTask::MaskedLm, Some(head)) if head.task == HeadTask::CausalLm => {
                fills_by_decoder(checkpoint)?
            }
            (_, head) => head.is_some_and(|head| head.task == task),
        };
        if has_head {
            return Ok(());
        }
        let found = match head {
            Some(head) => format!("its head has the task {}", head.task),
            None => "it has no head".to_string(),
        };
        let path = checkpoint.files().path().display();
        let (lacks, class) = match task {
            HeadTask::TokenClassification => ("gives tokens no labels", "ForTokenClassification"),
            HeadTask::MaskedLm => ("fills no masks", "ForMaskedLM"),
            HeadTask::QuestionAnswering => ("answers no questions", "ForQuestionAnswering"),
            _ => ("gives texts no labels", "ForSequenceClassification"),
        };
        if checkpoint.missing_head()? == Some(task) {
            return Err(Error::InvalidConfig(format!(
                "{path} {lacks}: config.json names a class with that head, but the files lack \
                 the head's weights; train them (`train::Fresh::copy_from`), or use a checkpoint that has them"
            )));
        }
        let class = format!(
            "use a checkpoint whose `architectures` in config.json names a class that ends with {class}"
        );
        let of_head = head.and_then(|head| match head.task {
            HeadTask::SequenceClassification => Some("`TextClassifier` gives texts its labels"),
            HeadTask::TokenClassification => Some("`TokenClassifier` gives tokens its labels"),
            HeadTask::MaskedLm => Some("`MaskFiller` fills masks"),
            HeadTask::QuestionAnswering => Some("`QuestionAnswerer` answers questions"),
            _ => None,
        });
        let cure = match (&self.kind, of_head) {
            _ if checkpoint.own_pooling().is_err() => {
                "its pooling_type ranks pairs, which is not supported in GGUF files of this architecture: use the \
                 model's own safetensors"
                    .to_string()
            }
            (Some(kind), _) if *kind != Kind::CrossEncoder => format!(
                "modules.json belongs to a {kind} (\"model_type\" in \
                 config_sentence_transformers.json): use `TextEmbedder` for vectors, or \
                 {class}"
            ),
            (_, Some(other)) => format!("{other}; for this task, {class}"),
            _ => class,
        };
        Err(Error::InvalidConfig(format!(
            "{path} {lacks}: {found}; {cure}"
        )))
    }

    fn error(&self, reason: String) -> Error {
        Error::InvalidConfig(format!("{}: {reason}", self.directory.display()))
    }
}
