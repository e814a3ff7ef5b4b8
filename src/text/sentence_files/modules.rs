//! Reads `modules.json`: a model's modules, applied one after another.

use std::path::Path;

use serde::Deserialize;

use super::each_token::{self, EachToken};
use super::entry::{Entry, PACKAGE};
use super::router::{self, Roles};
use super::transformer::{self, ModuleOutput, Transformer};
use super::{
    Kind, MODULES, PoolingBody, ResultBody, RouteFiles, TokenFeatures, dense, optional, pooling,
    refused,
};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::read_limited;
use crate::error::{Error, Result};
use crate::text::Pooling;
use crate::text::encoder::reading::TextReading;
use crate::text::sentences::stages::{Feature, ModuleStep};
use crate::text::sentences::static_embedding::TableUse;
use candle_blocks_files::python_json;

/// The size limit; a `modules.json` has some hundred bytes.
const MAX_BYTES: u64 = 1_000_000;

/// An entry in `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

/// Returns the model's routes, one without a `Router`, and the texts that each reads.
///
/// # Errors
/// If the file is malformed, or a module is not supported.
pub(super) fn open(
    directory: &Path,
    kind: &Kind,
    notes: &mut Vec<String>,
) -> Result<(Vec<RouteFiles>, Roles)> {
    let entries = entries(directory)?;
    let Some((first, others)) = entries.split_first() else {
        return Err(no_module(directory));
    };
    let routes = [Kind::SentenceTransformer, Kind::SparseEncoder].contains(kind);
    if !(routes && matches!(first.name(), Ok("Router" | "Asym"))) {
        return Ok((vec![route(&entries, kind, notes)?], Roles::ONE));
    }
    let (mut of_router, roles) = router::open(&first.folder)?;
    let all = of_router.iter_mut().map(|entries| {
        entries.extend_from_slice(others);
        route(entries, kind, notes)
    });
    Ok((all.collect::<Result<_>>()?, roles))
}

/// Returns the folder of the first module, which has the model.
///
/// # Errors
/// If the file is malformed, or names no module.
#[cfg(feature = "media")]
pub(super) fn first_folder(directory: &Path) -> Result<std::path::PathBuf> {
    let first = entries(directory)?.into_iter().next();
    first.map_or_else(|| Err(no_module(directory)), |first| Ok(first.folder))
}

fn no_module(directory: &Path) -> Error {
    refused(
        &directory.join(MODULES),
        "0",
        "missing, expected a Transformer",
    )
}

fn entries(directory: &Path) -> Result<Vec<Entry>> {
    let path = directory.join(MODULES);
    let malformed = |reason: String| Error::MalformedJson {
        path: path.clone(),
        reason,
    };
    let text = read_limited(&path, MAX_BYTES, MODULES)?;
    let modules: Vec<Module> = python_json::parsed(&text).map_err(malformed)?;
    let entries = modules.iter().enumerate().map(|(i, module)| {
        let key = format!("{i}.type");
        Entry::new(directory, &module.path, &module.class, &path, &key)
    });
    entries.collect()
}

/// Returns the computation that modules make one after another.
fn route(entries: &[Entry], kind: &Kind, notes: &mut Vec<String>) -> Result<RouteFiles> {
    let Some((first, others)) = entries.split_first() else {
        let reason =
            "a route of a Router has no module, expected a Transformer or a StaticEmbedding";
        return Err(Error::InvalidConfig(reason.into()));
    };
    let mut task = transformer::task_of("Transformer");
    let mut table = None;
    if first.class.ends_with(".Transformer") && !first.class.starts_with(PACKAGE) {
        notes.push(format!(
            "{}: {:?} is the model's own code, which is not run; sentence-transformers' Transformer replaces it",
            first.file.display(),
            first.class
        ));
    } else {
        let name = first.name()?;
        table = match (name, kind) {
            ("StaticEmbedding", Kind::SentenceTransformer) => Some(TableUse::Mean),
            ("SparseStaticEmbedding", Kind::SparseEncoder) => Some(TableUse::Presence),
            _ => None,
        };
        task = transformer::task_of(name);
    }
    let model = first.folder.clone();
    let (reading, queries, output) = match (task, table) {
        (_, Some(_)) => (
            TextReading::default(),
            TextReading::default(),
            ModuleOutput::Pooled,
        ),
        (Some(task), None) => {
            let Transformer {
                reading,
                queries,
                output,
            } = Transformer::open(&model, kind, task)?;
            (reading, queries, output)
        }
        (None, None) => {
            return Err(first.refused(format!(
                "{:?} is not supported as the first module, only a Transformer, a Router, and a StaticEmbedding in a \
                 SentenceTransformer or a SparseStaticEmbedding in a SparseEncoder",
                first.class
            )));
        }
    };
    let mut walk = Walk::new(output);
    for module in others {
        let is_models = module.folder.components().eq(model.components());
        let added = walk.add(module.name()?, &module.folder, is_models);
        added.map_err(|refusal| match refusal {
            Refusal::Module(reason) => module.refused(format!("{:?} {reason}", module.class)),
            Refusal::Other(error) => error,
        })?;
    }
    let body = walk
        .end(kind, queries)
        .map_err(|reason| refused(&first.file, "type", reason))?;
    let body = match (body, table) {
        (ResultBody::Pooler(steps), Some(table)) => ResultBody::Static(table, steps),
        (body, _) => body,
    };
    Ok(RouteFiles {
        model,
        reading,
        body,
    })
}

/// The reason why a module was not added.
enum Refusal {
    /// The module itself, or its position, is not supported.
    Module(String),
    /// An error in one of its files.
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The modules so far.
struct Walk {
    output: ModuleOutput,
    pooling: PoolingBody,
    yes_no: Option<(u32, Option<u32>)>,
    /// The words that a `MultiVectorMask` skips.
    skipped: Option<[Vec<String>; 2]>,
}

impl Walk {
    fn new(output: ModuleOutput) -> Self {
        let reads = match output {
            ModuleOutput::Words => TokenFeatures::Logits,
            _ => TokenFeatures::Hidden,
        };
        Self {
            output,
            pooling: PoolingBody {
                reads,
                ..PoolingBody::default()
            },
            yes_no: None,
            skipped: None,
        }
    }

    /// Returns whether the model gives a vector for each text.
    fn gives_vectors(&self) -> bool {
        matches!(self.output, ModuleOutput::Pooled | ModuleOutput::Projected)
    }

    /// Returns whether this feature is available to the next module.
    fn has(&self, feature: Feature) -> bool {
        let is_written = |step: &ModuleStep| step.to == feature;
        match feature {
            Feature::Tokens => {
                matches!(self.output, ModuleOutput::Tokens | ModuleOutput::Words)
            }
            Feature::Vectors => self.gives_vectors() || !self.pooling.poolings.is_empty(),
            Feature::Scores => {
                self.output == ModuleOutput::Scores
                    || self.yes_no.is_some()
                    || self.pooling.steps.iter().any(is_written)
            }
        }
    }

    /// Adds the module with this name whose files are in `folder`, which may be the model's.
    fn add(
        &mut self,
        name: &str,
        folder: &Path,
        is_models: bool,
    ) -> std::result::Result<(), Refusal> {
        let refuse = |reason: &str| Err(Refusal::Module(reason.to_string()));
        let config = || match is_models {
            true => Err(Refusal::Module(
                "has no folder of its own, and therefore no config.json".into(),
            )),
            false => Ok(ConfigJson::open(&folder.join("config.json"))?),
        };
        match name {
            "Pooling" | "SpladePooling" if !self.has(Feature::Tokens) => {
                return refuse(
                    "has no token_embeddings to read: the Transformer does not return them",
                );
            }
            "Pooling" | "SpladePooling" if !self.pooling.poolings.is_empty() => {
                return refuse("is a second one, which is not supported");
            }
            "Pooling" => {
                (self.pooling.poolings, self.pooling.skip_prompt) = pooling::open(&config()?)?;
            }
            "SpladePooling" => {
                let (pooling, map) = pooling::splade(&config()?)?;
                match pooling {
                    Pooling::Max => self.pooling.steps.push(ModuleStep::of_vectors(map)),
                    _ => self.pooling.of_tokens.push(map),
                }
                self.pooling.poolings.push(pooling);
            }
            "Dense" => self.step(dense::open(folder, &config()?)?)?,
            "LayerNorm" => self.step(ModuleStep::of_vectors(dense::layer_norm(
                folder,
                &config()?,
            )?))?,
            "Normalize" => {
                let json = match is_models {
                    true => None,
                    false => optional(&folder.join("config.json"))?,
                };
                let step = dense::normalize(json.as_ref())?;
                if self.has(step.from) {
                    self.step(step)?; // without its input, it does nothing
                }
            }
            "Dropout" => {}
            "MultiVectorMask" if self.skipped.is_none() => {
                self.skipped = Some(each_token::mask(&config()?)?);
            }
            "LogitScore" if self.output == ModuleOutput::NextToken => {
                let json = config()?;
                json.only("module_input_name", &["causal_logits".into()])?;
                let token = |key| json.optional_size(&[key]);
                let yes = json.size(&["true_token_id"])? as u32;
                let no = token("false_token_id")?.map(|id| id as u32);
                super::finished(&json, &[])?;
                self.yes_no = Some((yes, no));
            }
            _ => {
                return refuse(
                    "is not supported; supported are a Transformer, a Pooling or SpladePooling, Dense, \
                     LayerNorm, Normalize, Dropout and one MultiVectorMask, and a cross-encoder's LogitScore",
                );
            }
        }
        Ok(())
    }

    fn step(&mut self, step: ModuleStep) -> std::result::Result<(), Refusal> {
        let is_pooled = self.has(Feature::Vectors);
        match (step.from, step.to) {
            (from, _) if !self.has(from) => Err(Refusal::Module(format!(
                "reads {from}, which no earlier module returns"
            ))),
            (Feature::Tokens, Feature::Tokens) if !is_pooled => {
                self.pooling.of_tokens.push(step.stage);
                Ok(())
            }
            (from, to) if from == Feature::Tokens || to == Feature::Tokens => Err(Refusal::Module(
                format!("converts \"{from}\" to \"{to}\", which is not supported here"),
            )),
            (Feature::Scores, _) if !self.has(Feature::Tokens) && !self.gives_vectors() => Err(
                Refusal::Module("after a classifier is not supported".into()),
            ),
            _ => {
                self.pooling.steps.push(step);
                Ok(())
            }
        }
    }

    /// Returns the computation that all modules make together.
    fn end(mut self, kind: &Kind, queries: TextReading) -> std::result::Result<ResultBody, String> {
        let result = match kind {
            Kind::CrossEncoder => Feature::Scores,
            Kind::MultiVectorEncoder => Feature::Tokens,
            _ => Feature::Vectors,
        };
        if !self.has(result) {
            return Err(match (kind, self.output) {
                (Kind::CrossEncoder, _) => {
                    "no module returns scores; a Transformer for sequence-classification, a Dense \
                     whose module_output_name is \"scores\" or a LogitScore would".into()
                }
                (_, ModuleOutput::Tokens | ModuleOutput::Words) => {
                    "no module is a Pooling, so the pooling is unknown; add one, or set one (`TextOptions::pooling`)".into()
                }
                _ => "no module returns sentence_embedding".to_string(),
            });
        }
        if result == Feature::Tokens {
            if self.has(Feature::Vectors) {
                return Err("a MultiVectorEncoder pools no vectors; remove the Pooling".into());
            }
            if self.skipped.is_none() && queries.expansion.is_some() {
                return Err(
                    "query_expansion needs a MultiVectorMask, which no module is; add one".into(),
                );
            }
            self.pooling.poolings.push(Pooling::EachToken);
            return Ok(ResultBody::EachToken(EachToken {
                body: self.pooling,
                queries,
                skipped: self.skipped.unwrap_or_default(),
            }));
        }
        if self.skipped.is_some() {
            return Err("a MultiVectorMask belongs to a MultiVectorEncoder; remove it".into());
        }
        Ok(match (self.output, self.yes_no) {
            (ModuleOutput::Scores, _) => ResultBody::Classifier,
            (_, Some((yes, no))) => ResultBody::NextToken { yes, no },
            (ModuleOutput::Pooled, _) => ResultBody::Pooler(self.pooling.steps),
            (ModuleOutput::Projected, _) => ResultBody::Projection(self.pooling.steps),
            _ => ResultBody::Pooling(self.pooling),
        })
    }
}
