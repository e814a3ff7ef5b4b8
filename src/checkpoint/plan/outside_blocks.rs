//! Embeddings, pooler and head: the parts outside the blocks that a checkpoint's files contain.

use candle_nn::VarBuilder;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::source::{StoredParameter, WORD_EMBEDDINGS};
use crate::checkpoint::plan::tied::{Copies, add_copies};
use crate::checkpoint::plan::{Missing, Request, candidates, recorded};
use crate::checkpoint::scheme::{Family, ModelPlace, Rule, matches};
use crate::config::{
    AttentionConfig, HeadConfig, HeadTask, ModelConfig, OutputWeight, ReadoutConfig, StackConfig,
    TokenSelection,
};
use crate::error::{Error, Result, listed};
use crate::layers::EmbeddingsAndHead;

/// The suffix of a transformers class name after the model's name, and the task of that class's head.
const CLASSES: &[(&str, HeadTask)] = &[
    ("WithLMHeadModel", HeadTask::MaskedLm),
    ("ForCausalLM", HeadTask::CausalLm),
    ("ForCausalImageModeling", HeadTask::CausalLm),
    ("ForConditionalGeneration", HeadTask::CausalLm),
    ("LMHeadModel", HeadTask::CausalLm),
    ("BertGenerationDecoder", HeadTask::CausalLm),
    ("MarianMTModel", HeadTask::CausalLm),
    ("Pix2StructTextModel", HeadTask::CausalLm),
    ("EncoderDecoderModel", HeadTask::CausalLm),
    ("DoubleHeadsModel", HeadTask::CausalLm),
    ("NemotronH_Omni_Reasoning_V3", HeadTask::CausalLm),
    ("ChatGLMModel", HeadTask::CausalLm), // named in the files of ChatGLMForConditionalGeneration
    ("ForMaskedLM", HeadTask::MaskedLm),
    ("ElectraForPreTraining", HeadTask::ReplacedTokens),
    ("ForPreTraining", HeadTask::MaskedLm),
    (
        "ForSequenceClassification",
        HeadTask::SequenceClassification,
    ),
    ("ForTokenClassification", HeadTask::TokenClassification),
    ("ForQuestionAnswering", HeadTask::QuestionAnswering),
    ("ForNextSentencePrediction", HeadTask::NextSentence),
    ("ForMultipleChoice", HeadTask::MultipleChoice),
    ("ForImageClassification", HeadTask::ImageClassification),
    (
        "ForImageClassificationWithTeacher",
        HeadTask::ImageClassification,
    ),
    ("WithProjection", HeadTask::Projection),
    ("CLIPModel", HeadTask::Projection),
    ("MetaClip2Model", HeadTask::Projection),
    ("CLIPSegModel", HeadTask::Projection),
    ("OwlViTModel", HeadTask::Projection),
    ("Owlv2Model", HeadTask::Projection),
    ("ForImageSegmentation", HeadTask::Projection),
    ("ForObjectDetection", HeadTask::Projection),
];

/// Classes among them with a further head, which is not loaded.
const BELOW: [&str; 2] = ["ForImageSegmentation", "ForObjectDetection"];

/// A checkpoint's embeddings, pooler and head, and where their parameters are.
#[derive(Debug, Default)]
pub(crate) struct OutsideBlocks {
    pub sources: Vec<StoredParameter>,
    pub missing: Vec<Missing>,
    /// Head and token embeddings differ in the files, although `config.json` ties them.
    pub unties: bool,
    /// The whole model, if there are embeddings.
    pub model: Option<ModelConfig>,
}

impl OutsideBlocks {
    /// Finds the embeddings, pooler and head that the configuration describes and the files contain. A pooler or head
    /// without any tensor in the files is left out.
    ///
    /// # Errors
    /// If the family does not define embeddings and heads, `config.json` lacks a key, or there are no embeddings.
    pub fn new(
        family: &Family,
        json: &ConfigJson,
        stack: &StackConfig,
        files: &TensorFiles,
        prefix: &str,
    ) -> Result<Self> {
        let json = &family.keys.seen(json)?;
        let mut model = with_embeddings(family, json, stack)?;
        let mut ends = Self::default();
        let places = StoredOutsideBlocks {
            family,
            stack,
            files,
            prefix,
            names: (family.new_names)(json)?,
        };
        let with_embeddings = &with_tied_embeddings(family, json, stack)?;
        let places_of_embeddings = places.of(with_embeddings);
        if let Some(missing) = ends.add(&model, "embeddings", places_of_embeddings)? {
            let tried = missing.into_iter().flat_map(|missing| missing.tried);
            let reason = format!(
                "{} contains blocks, but no embeddings{}; run the blocks on hidden_states, or name the embeddings in a \
                 family's end_rules",
                files.path().display(),
                listed("looked for", &tried.collect::<Vec<_>>())
            );
            return Err(Error::InvalidConfig(reason));
        }
        ends.check_embeddings(json, places)?;
        if let Some(read) = family.pooler {
            let with_pooler = model.clone().with_pooler(read(json, stack)?);
            if ends.add(&with_pooler, "pooler", places)?.is_none() {
                model = with_pooler;
            }
        }
        let tasks = tasks(json)?;
        for &(task, read) in &family.heads {
            if tasks.as_ref().is_some_and(|task_of| *task_of != Some(task)) {
                continue;
            }
            let mut readout = read(json, stack)?;
            if let Some(output) = &mut readout.output
                && output.weight == OutputWeight::Words
            {
                let stored = places.stored(&format!("{task}.output.weight"))?;
                let embeddings = ends.sources.iter_mut().find(|s| s.role == WORD_EMBEDDINGS);
                let found = match embeddings {
                    Some(embeddings) => {
                        add_copies(embeddings, stored.iter().map(String::as_str), files)?
                    }
                    None => Copies::Equal,
                };
                // transformers unties weights that differ, even if `config.json` ties them.
                if let Copies::Differing = found {
                    output.weight = OutputWeight::Own;
                    ends.unties = true;
                }
            }
            let with_head = model.clone().with_head(HeadConfig { task, readout });
            if ends.add(&with_head, &task.to_string(), places)?.is_none() {
                model = with_head;
                break;
            }
        }
        ends.model = Some(model);
        Ok(ends)
    }

    /// Checks that token embeddings which `config.json` ties are equal.
    ///
    /// # Errors
    /// If one differs: transformers would use several embeddings, and the family has only one.
    fn check_embeddings(&self, json: &ConfigJson, places: StoredOutsideBlocks) -> Result<()> {
        let embeddings = self
            .sources
            .iter()
            .find(|source| source.role == WORD_EMBEDDINGS);
        // T5's stacks share theirs even if the head has its own weight.
        let are_shared = places.names.iter().any(|name| name.ends_with("shared.*"));
        let is_tied = json.flag(&["tie_word_embeddings"], true)? || are_shared;
        let (Some(embeddings), true) = (embeddings, is_tied) else {
            return Ok(());
        };
        let stored = places.stored(WORD_EMBEDDINGS)?;
        match stored
            .iter()
            .find(|name| embeddings.names().all(|known| known != *name))
        {
            None => Ok(()),
            Some(other) => Err(Error::input(
                other,
                format!(
                    "it differs from {}, to which config.json ties it; keep one of both in the files",
                    embeddings.name
                ),
            )),
        }
    }

    /// Adds the parameters of one part, if the files contain any of them or the part has no parameters of its own.
    /// Otherwise, returns the missing parameters.
    fn add(
        &mut self,
        model: &ModelConfig,
        part: &str,
        places: StoredOutsideBlocks,
    ) -> Result<Option<Vec<Missing>>> {
        let build = |vb: VarBuilder| EmbeddingsAndHead::new(model, vb).map(drop);
        let (sources, missing) = places.of_part(part, attention_of_pooler(model), build)?;
        if !missing.is_empty() && sources.is_empty() {
            return Ok(Some(missing));
        }
        self.sources.extend(sources);
        self.missing.extend(missing);
        Ok(None)
    }
}

/// The places in files where a family's table looks for parameters outside the blocks.
#[derive(Clone, Copy)]
pub(crate) struct StoredOutsideBlocks<'a> {
    pub family: &'a Family,
    pub stack: &'a StackConfig,
    pub files: &'a TensorFiles,
    pub prefix: &'a str,
    /// Patterns for the names that come first, where a role has several.
    pub names: &'a [&'a str],
}

impl<'a> StoredOutsideBlocks<'a> {
    /// Returns another table's places.
    fn of(self, family: &'a Family) -> Self {
        Self { family, ..self }
    }

    /// Returns locations for the parameters that `build` requests and whose role begins with `part`. `attention` contains the
    /// parameters in a pooler.
    pub fn of_part(
        self,
        part: &str,
        attention: Option<&AttentionConfig>,
        build: impl FnOnce(VarBuilder) -> candle_core::Result<()>,
    ) -> Result<(Vec<StoredParameter>, Vec<Missing>)> {
        let (mut sources, mut missing) = (Vec::new(), Vec::new());
        let is_of_part = |role: &str| role.split('.').next() == Some(part);
        for (role, shape) in recorded(build)? {
            if !is_of_part(&role) {
                continue;
            }
            let mut candidates = self.candidates(&role, &shape, attention)?;
            sort_by_names(&mut candidates, self.names);
            let mut stored = candidates.iter().filter(|s| self.files.contains(&s.name));
            match stored.next().cloned() {
                Some(mut source) => {
                    let others = stored.map(|other| other.name.as_str());
                    add_copies(&mut source, others, self.files)?;
                    sources.push(source);
                }
                None => missing.push(Missing {
                    role,
                    tried: candidates.into_iter().map(|s| s.name).collect(),
                }),
            }
        }
        Ok((sources, missing))
    }

    /// Returns the names under which the files contain a parameter.
    fn stored(self, role: &str) -> Result<Vec<String>> {
        let candidates = self.candidates(role, &[], None)?.into_iter();
        let names = candidates.map(|source| source.name);
        Ok(names.filter(|name| self.files.contains(name)).collect())
    }

    fn candidates(
        self,
        role: &str,
        shape: &[usize],
        attention: Option<&AttentionConfig>,
    ) -> Result<Vec<StoredParameter>> {
        let request = Request {
            role,
            shape,
            place: ModelPlace::OutsideBlocks,
            attention,
        };
        candidates(self.family, self.stack, self.prefix, &request)
    }
}

/// Moves locations whose names match a pattern to the front.
pub(crate) fn sort_by_names(candidates: &mut [StoredParameter], names: &[&str]) {
    candidates.sort_by_key(|source| !names.iter().any(|name| matches(name, &source.name)));
}

/// Returns a pooler's attention configuration, if it has attention.
pub(crate) fn attention_of_pooler(model: &ModelConfig) -> Option<&AttentionConfig> {
    match &model.pooler.as_ref()?.reads {
        TokenSelection::Attended(pool) => Some(&pool.attention),
        _ => None,
    }
}

/// Returns the model that `config.json` describes, before any files exist. It has the head of the class in `architectures`.
/// It has a pooler if that head needs one, if the pooler has no parameters, if another model reads its output (windows of
/// patches), or if its output is compared with another model's.
///
/// # Errors
/// If the family does not define embeddings and heads, or `config.json` lacks a key.
pub(crate) fn described(
    family: &Family,
    json: &ConfigJson,
    stack: &StackConfig,
    is_compared: bool,
) -> Result<ModelConfig> {
    let json = &family.keys.seen(json)?;
    let mut model = with_embeddings(family, json, stack)?;
    let named = task_of(json)?;
    let head = family.heads.iter().find(|(task, _)| Some(*task) == named);
    let head = head.map(|&(task, read)| {
        let readout = read(json, stack)?;
        Ok::<_, Error>(HeadConfig { task, readout })
    });
    model.head = head.transpose()?;
    if let Some(read) = family.pooler {
        let with_pooler = model.clone().with_pooler(read(json, stack)?);
        let is_read =
            matches!(&model.head, Some(head) if head.readout.reads == TokenSelection::Pooled);
        let is_result = matches!(&with_pooler.pooler, Some(p) if matches!(p.reads, TokenSelection::Windows { .. }));
        if is_read
            || is_result
            || is_compared
            || parameters(&with_pooler)?.len() == parameters(&model)?.len()
        {
            model = with_pooler;
        }
    }
    model.validate()?;
    Ok(model)
}

/// Returns the model without pooler and head.
fn with_embeddings(family: &Family, json: &ConfigJson, stack: &StackConfig) -> Result<ModelConfig> {
    let Some(read) = family.embeddings else {
        let reason = format!(
            "the embeddings and heads of {} are not defined; run the blocks on hidden_states",
            family.name
        );
        return Err(Error::InvalidConfig(reason));
    };
    Ok(ModelConfig::new(read(json, stack)?, stack.clone()))
}

/// Returns the table with further names for the token embeddings, if `config.json` ties them: a file with one copy of a tied
/// tensor may have it under any of its names.
fn with_tied_embeddings(family: &Family, json: &ConfigJson, stack: &StackConfig) -> Result<Family> {
    let mut tied = family.clone();
    if !json.flag(&["tie_word_embeddings"], true)? {
        return Ok(tied);
    }
    let module = WORD_EMBEDDINGS.trim_end_matches(".weight");
    let mut roles = vec![TIED_WORD.to_string()];
    let tasks = tasks(json)?;
    for &(task, read) in &family.heads {
        let is_of_class = tasks.as_ref().is_none_or(|of| *of == Some(task));
        let is_tied = |readout: ReadoutConfig| {
            let output = readout.output;
            output.is_some_and(|output| output.weight == OutputWeight::Words)
        };
        if is_of_class && read(json, stack).is_ok_and(is_tied) {
            roles.push(format!("{task}.output"));
        }
    }
    let rules = family.end_rules.iter();
    let rules = rules.filter(|rule| roles.contains(&rule.role)).cloned();
    tied.end_rules.extend(rules.map(|rule| Rule {
        role: module.to_string(),
        ..rule
    }));
    Ok(tied)
}

/// The role for further names that tied token embeddings have.
const TIED_WORD: &str = "embeddings.tied_word";

/// Returns role and shape for every parameter outside the blocks, in the layers' order.
pub(crate) fn parameters(model: &ModelConfig) -> Result<Vec<(String, Vec<usize>)>> {
    recorded(|vb| EmbeddingsAndHead::new(model, vb).map(drop))
}

/// Returns whether the class in `architectures` has a head that the family does not define.
pub(crate) fn lacks_head(family: &Family, json: &ConfigJson) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    // Two towers that are also compared, below a head that is not loaded.
    let has_further_head = |class: &String| BELOW.iter().any(|end| class.ends_with(end));
    if classes.iter().any(has_further_head) {
        return Ok(true);
    }
    let has_known = match tasks(json)? {
        // With two stacks, the other one may have the head.
        Some(Some(task)) => family.part.is_some() || family.has_head(task),
        // CLIP-like models load as a text tower, without the part that compares it with images.
        _ => (classes.iter()).all(|class| !class.contains("For")),
    };
    Ok(!has_known)
}

/// Returns the head's task in the class that `architectures` names, if that class has a head.
pub(crate) fn task_of(json: &ConfigJson) -> Result<Option<HeadTask>> {
    Ok(tasks(json)?.flatten())
}

/// Returns the class with the head for a task, beside the class that `architectures` names.
///
/// # Errors
/// If the file names no class, or transformers names none for the task.
pub(crate) fn class_for(json: &ConfigJson, task: HeadTask) -> Result<String> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    let Some(class) = classes.first() else {
        let reason = "missing, expected a class such as \"BertModel\", from which the class with the new head is named";
        return Err(json.error(&["architectures"], reason));
    };
    let ends = CLASSES.iter().map(|(end, _)| *end).chain(["Model"]);
    let ends = ends.filter_map(|end| class.strip_suffix(end));
    let model = ends.min_by_key(|model| model.len()).unwrap_or(class);
    let mut of_task = { CLASSES.iter() }.filter(|(end, of)| *of == task && end.starts_with("For"));
    match of_task.next() {
        Some((end, _)) => Ok(format!("{model}{end}")),
        None => Err(Error::input(
            task.to_string(),
            "transformers has no class of its own for a new head of this task",
        )),
    }
}

/// Returns the head's task in the class that `architectures` names. The inner `None` means a class without a head, the
/// outer one that the file names no class.
fn tasks(json: &ConfigJson) -> Result<Option<Option<HeadTask>>> {
    let Some(classes) = json.texts(&["architectures"])? else {
        return Ok(None);
    };
    let task = |class: &String| {
        let known = CLASSES.iter().find(|(end, _)| class.ends_with(end));
        known.map(|(_, task)| *task)
    };
    Ok(Some(classes.iter().find_map(task)))
}
