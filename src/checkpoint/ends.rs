//! What surrounds the blocks of a checkpoint: which embeddings, pooler and head its files have.

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::{Missing, Place, Request, candidates, recorded};
use crate::checkpoint::scheme::Family;
use crate::checkpoint::source::Source;
use crate::config::{HeadConfig, ModelConfig, StackConfig, Task};
use crate::error::{Error, Result};
use crate::layers::ModelEnds;

/// What follows `model_type`'s name in the name of transformers' class, and what the head of that class is for.
const CLASSES: &[(&str, Task)] = &[
    ("ForCausalLM", Task::CausalLm),
    ("ForConditionalGeneration", Task::CausalLm),
    ("LMHeadModel", Task::CausalLm),
    ("DoubleHeadsModel", Task::CausalLm),
    ("ForMaskedLM", Task::MaskedLm),
    ("ElectraForPreTraining", Task::ReplacedTokens),
    ("ForPreTraining", Task::MaskedLm),
    ("ForSequenceClassification", Task::SequenceClassification),
    ("ForTokenClassification", Task::TokenClassification),
    ("ForQuestionAnswering", Task::QuestionAnswering),
    ("ForImageClassification", Task::ImageClassification),
    ("WithProjection", Task::Projection),
    ("CLIPModel", Task::Projection),
];

/// The embeddings, pooler and head of a checkpoint, and where their parameters are stored.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub sources: Vec<Source>,
    pub missing: Vec<Missing>,
    /// The whole model, if there are embeddings.
    pub model: Option<ModelConfig>,
}

impl Ends {
    /// Those that the configuration describes and the files hold: a pooler or a head of which no tensor is there is left
    /// out.
    ///
    /// # Errors
    /// If the family does not say what surrounds its blocks, `config.json` lacks a key, or there are no embeddings.
    pub fn new(
        family: &Family,
        json: &ConfigJson,
        stack: &StackConfig,
        files: &TensorFiles,
        prefix: &str,
    ) -> Result<Self> {
        let Some(read) = family.embeddings else {
            let reason = format!(
                "what surrounds the blocks of {} is not known; run the blocks on hidden_states",
                family.name
            );
            return Err(Error::InvalidConfig(reason));
        };
        let json = &family.keys.seen(json)?;
        let mut model = ModelConfig::new(read(json, stack)?, stack.clone());
        let mut ends = Self::default();
        if !ends.add(&model, "embeddings", family, files, prefix)? {
            let reason = format!(
                "{} holds blocks, but no embeddings; run the blocks on hidden_states",
                files.path().display()
            );
            return Err(Error::InvalidConfig(reason));
        }
        if let Some(read) = family.pooler {
            let with_pooler = model.clone().with_pooler(read(json, stack)?);
            if ends.add(&with_pooler, "pooler", family, files, prefix)? {
                model = with_pooler;
            }
        }
        let tasks = tasks(json)?;
        for &(task, read) in &family.heads {
            if tasks.as_ref().is_some_and(|task_of| *task_of != Some(task)) {
                continue;
            }
            let readout = read(json, stack)?;
            let with_head = model.clone().with_head(HeadConfig { task, readout });
            if ends.add(&with_head, &task.to_string(), family, files, prefix)? {
                model = with_head;
                break;
            }
        }
        ends.model = Some(model);
        Ok(ends)
    }

    /// Adds the parameters of one part, if the files hold any of them, or it has none of its own.
    fn add(
        &mut self,
        model: &ModelConfig,
        part: &str,
        family: &Family,
        files: &TensorFiles,
        prefix: &str,
    ) -> Result<bool> {
        let is_of_part = |role: &str| role.split('.').next() == Some(part);
        let (mut sources, mut missing) = (Vec::new(), Vec::new());
        for (role, shape) in recorded(|vb| ModelEnds::new(model, vb).map(drop))? {
            if !is_of_part(&role) {
                continue;
            }
            let request = Request {
                role: &role,
                shape: &shape,
                place: Place::Ends,
            };
            let candidates = candidates(family, &model.stack, prefix, &request)?;
            let found = candidates.iter().find(|s| files.contains(&s.name));
            match found {
                Some(source) => sources.push(source.clone()),
                None => missing.push(Missing {
                    role,
                    tried: candidates.into_iter().map(|s| s.name).collect(),
                }),
            }
        }
        let is_there = missing.is_empty() || !sources.is_empty();
        if is_there {
            self.sources.extend(sources);
            self.missing.extend(missing);
        }
        Ok(is_there)
    }
}

/// What the head of the class in `architectures` is for, which may be none; `None` where the file names no class.
fn tasks(json: &ConfigJson) -> Result<Option<Option<Task>>> {
    let Some(classes) = json.texts(&["architectures"])? else {
        return Ok(None);
    };
    let task = |class: &String| {
        let known = CLASSES.iter().find(|(end, _)| class.ends_with(end));
        known.map(|(_, task)| *task)
    };
    Ok(Some(classes.iter().find_map(task)))
}
