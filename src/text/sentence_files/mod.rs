//! Reads sentence-transformers' files: `modules.json` and the files that it names.

mod dense;
mod each_token;
mod entry;
pub(super) mod heads;
mod modules;
mod pooling;
mod router;
mod settings;
pub(super) mod static_files;
pub(super) mod torch_class;
mod transformer;

use std::fmt;
use std::path::{Path, PathBuf};

pub(super) use dense::parameter;
pub(super) use each_token::EachToken;
pub(super) use router::Roles;

use super::Pooling;
use super::prompts::Prompts;
use super::scoring::{ScoreFunction, Similarity};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::is_named;
use crate::error::{Error, Result};
use crate::text::encoder::reading::TextReading;
use crate::text::sentences::stages::{ModuleStep, VectorMap};
use crate::text::sentences::static_embedding::TableUse;

/// The list of a model's modules.
const MODULES: &str = "modules.json";
/// PyLate's class, and the kind of Stanford's checkpoints too, whose settings are in files of their own.
pub(super) const COLBERT: &str = "ColBERT";

/// The class in sentence-transformers that wrote a folder's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Vectors for texts.
    SentenceTransformer,
    /// Vectors over the vocabulary.
    SparseEncoder,
    /// Scores for pairs of texts.
    CrossEncoder,
    /// A vector for each token.
    MultiVectorEncoder,
    /// Another class, such as PyLate's `ColBERT`.
    Other(String),
}

impl Kind {
    fn named(name: &str) -> Self {
        match name {
            "SentenceTransformer" => Self::SentenceTransformer,
            "SparseEncoder" => Self::SparseEncoder,
            "MultiVectorEncoder" => Self::MultiVectorEncoder,
            "CrossEncoder" => Self::CrossEncoder,
            other => Self::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SentenceTransformer => "SentenceTransformer",
            Self::SparseEncoder => "SparseEncoder",
            Self::MultiVectorEncoder => "MultiVectorEncoder",
            Self::CrossEncoder => "CrossEncoder",
            Self::Other(name) => name,
        })
    }
}

/// A model as its `modules.json` describes it.
#[derive(Debug)]
pub(super) struct SentenceFiles {
    /// The computations for different texts, at least one.
    pub routes: Vec<RouteFiles>,
    /// The texts that each route reads.
    pub roles: Roles,
    pub prompts: Prompts,
    /// The function for a cross-encoder's scores, if the files name one.
    pub scoring: Option<ScoreFunction>,
    /// The similarity of two texts.
    pub similarity: Similarity,
    /// Notes on settings in the files that results do not follow.
    pub notes: Vec<String>,
}

/// The computation for some texts; for all texts if there is no `Router`.
#[derive(Debug)]
pub(super) struct RouteFiles {
    /// The folder with the checkpoint and its tokenizer.
    pub model: PathBuf,
    pub reading: TextReading,
    pub body: ResultBody,
}

/// The computation from a text's hidden states to one result.
#[derive(Debug)]
pub(super) enum ResultBody {
    /// A pooling.
    Pooling(PoolingBody),
    /// The model's own pooler, and the modules after it.
    Pooler(Vec<ModuleStep>),
    /// The projection of a text tower (CLIP), and the modules after it.
    Projection(Vec<ModuleStep>),
    /// A table with a vector or a weight for each token, and the modules after it.
    Static(TableUse, Vec<ModuleStep>),
    /// A vector for each token.
    EachToken(EachToken),
    /// The model's own classifier.
    Classifier,
    /// The logit of one next token, optionally minus another's.
    NextToken { yes: u32, no: Option<u32> },
}

/// The model's output that a pooling reads, a vector for each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TokenFeatures {
    /// The hidden states after the last block.
    #[default]
    Hidden,
    /// The logits of a masked language model.
    Logits,
}

/// A pooling, and the modules around it.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolingBody {
    pub reads: TokenFeatures,
    /// Maps on token vectors.
    pub of_tokens: Vec<VectorMap>,
    /// The results of several poolings are concatenated.
    pub poolings: Vec<Pooling>,
    /// A prompt's tokens are not pooled.
    pub skip_prompt: bool,
    /// Maps on the pooled vectors.
    pub steps: Vec<ModuleStep>,
    /// The number of first tokens without a vector, if each token has one.
    pub n_first: usize,
}

impl RouteFiles {
    /// Returns the settings for a folder without sentence-transformers' files.
    fn plain(directory: &Path) -> Self {
        Self {
            model: directory.to_path_buf(),
            reading: TextReading::default(),
            body: ResultBody::Pooling(PoolingBody::default()),
        }
    }
}

/// Returns the folder with the model: that of the first module, if sentence-transformers' files lie in a folder without a
/// `config.json`.
///
/// # Errors
/// If `modules.json` is malformed, or names no module.
#[cfg(feature = "media")]
pub(crate) fn model_folder(path: &Path) -> Result<PathBuf> {
    match is_named(&path.join(MODULES)) && !path.join("config.json").exists() {
        true => modules::first_folder(path),
        false => Ok(path.to_path_buf()),
    }
}

impl SentenceFiles {
    /// Returns the first route; a cross-encoder has no other.
    pub fn first_route(&mut self, directory: &Path) -> RouteFiles {
        match self.routes.is_empty() {
            true => RouteFiles::plain(directory),
            false => self.routes.swap_remove(0),
        }
    }

    /// Returns whether a folder without `modules.json` has a model2vec model.
    ///
    /// # Errors
    /// If `config.json` is malformed.
    pub fn is_model2vec(directory: &Path) -> Result<bool> {
        static_files::is_model2vec(directory)
    }

    /// Returns the kind of model in a folder; `None` if there is no `modules.json`.
    ///
    /// # Errors
    /// If a file is malformed.
    pub fn kind(directory: &Path) -> Result<Option<Kind>> {
        match is_named(&directory.join(MODULES)) {
            true => settings::kind(directory).map(Some),
            false => {
                let json = optional(&directory.join("config.json"))?;
                let classes = json
                    .map(|json| json.texts(&["architectures"]))
                    .transpose()?;
                let mut classes = classes.flatten().into_iter().flatten();
                let is_stanfords = classes.any(|class| class == "HF_ColBERT");
                Ok(is_stanfords.then(|| Kind::named(COLBERT)))
            }
        }
    }

    /// Reads the files for a model of this kind.
    ///
    /// # Errors
    /// If a file is malformed, or names a module, a key or a value that is not supported.
    pub fn open(directory: &Path, kind: &Kind) -> Result<Self> {
        let settings = settings::Settings::open(directory, kind)?;
        let mut notes = Vec::new();
        let (mut routes, roles) = modules::open(directory, kind, &mut notes)?;
        for route in &mut routes {
            if let Some(last) = &settings.last_step
                && let ResultBody::Pooling(PoolingBody { steps, .. })
                | ResultBody::Pooler(steps)
                | ResultBody::Projection(steps)
                | ResultBody::Static(_, steps) = &mut route.body
            {
                steps.push(ModuleStep::of_vectors(last.clone()));
            }
        }
        Ok(Self {
            routes,
            roles,
            prompts: settings.prompts,
            scoring: settings.scoring,
            similarity: settings.similarity,
            notes,
        })
    }

    /// Returns the settings that apply if the files are not read: a folder without `modules.json`, or with another kind of
    /// model.
    pub fn without(directory: &Path) -> Self {
        let is_there = |name: &&str| directory.join(name).exists();
        let unread = [settings::FILE, transformer::FILES[0]]
            .into_iter()
            .filter(is_there);
        let note = match directory.join(MODULES).exists() {
            true => {
                "is not used: its \"model_type\", by default SentenceTransformer, is not CrossEncoder"
            }
            false => {
                "is not used: there is no modules.json beside it, without which sentence-transformers does not read it"
            }
        };
        let notes = unread.map(|name| format!("{}: {note}", directory.join(name).display()));
        Self {
            routes: vec![RouteFiles::plain(directory)],
            roles: Roles::ONE,
            prompts: Prompts::default(),
            scoring: None,
            similarity: Similarity::default(),
            notes: notes.collect(),
        }
    }
}

/// Reads an optional file.
fn optional(path: &Path) -> Result<Option<ConfigJson>> {
    ConfigJson::open_named(path)
}

/// Refuses keys that were not read and are not known to change nothing.
fn finished(json: &ConfigJson, harmless: &[&str]) -> Result<()> {
    match json.unread(harmless).first() {
        None => Ok(()),
        Some(key) => {
            let reason = "is not supported: its effect is unknown; remove it if it changes nothing";
            Err(json.error(&[key], reason))
        }
    }
}

/// Returns the error for an entry in `modules.json`.
fn refused(path: &Path, key: &str, reason: impl Into<String>) -> Error {
    Error::ConfigKey {
        path: path.to_path_buf(),
        key: key.to_string(),
        reason: reason.into(),
    }
}
