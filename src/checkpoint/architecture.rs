//! The model that a `config.json` describes, without any weights.

use std::path::{Path, PathBuf};

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::families::{self, TextSide, is_of_decoder};
use crate::checkpoint::gguf;
use crate::checkpoint::keys::attribute_names::spelled_as_own;
use crate::checkpoint::plan::outside_blocks::{class_for, described, task_of};
use crate::checkpoint::scheme::builtin::{Unknown, first_of_two, known};
use crate::checkpoint::scheme::{Family, StackPart, StackSource};
use crate::checkpoint::two_stacks::SecondStack;
use crate::checkpoint::{Checkpoint, CheckpointOptions, FamilySource};
use crate::config::{
    CountedTokens, EmbeddingsConfig, HeadTask, Initialization, ModelConfig, StackConfig,
    TwoStackKind,
};
use crate::error::{Error, Result, listed};
use candle_blocks_files::quantized;
use serde_json::{Map, Value};

/// The model that a `config.json` describes and its initialization: everything needed to train from scratch. [`Self::save`]
/// shows an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Architecture {
    /// The family's name, such as `"gpt2"`.
    pub family: String,
    /// The stack's configuration.
    pub config: StackConfig,
    /// The initialization of new parameters: transformers' `_init_weights` for this family.
    pub initialization: Initialization,
    /// The whole model's configuration, or the reason why there is none.
    pub(super) model: std::result::Result<ModelConfig, String>,
    /// The second of two stacks that make one model.
    pub(super) second: Option<(Box<Architecture>, SecondStack)>,
    /// The family's table.
    pub(super) table: Family,
    /// The `config.json`, if there was one, and the names that it selects.
    pub(super) json: Option<(Vec<u8>, &'static [&'static str])>,
    /// The folder whose tokenizer and processor are saved with the model.
    pub(super) files: Option<PathBuf>,
}

impl Architecture {
    /// Reads a `config.json`, or the one in a directory. Use [`CheckpointOptions::architecture`] to open one of several
    /// stacks, or a family of your own.
    ///
    /// # Errors
    /// If the file is missing or malformed, `model_type` is unknown, or the configuration is invalid.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        CheckpointOptions::default().architecture(path)
    }

    /// Returns the configuration of the whole model, for [`Model::new`](crate::model::Model::new): embeddings, blocks, the
    /// head of the class in `architectures`, and a pooler if that head needs one.
    ///
    /// # Errors
    /// If the family does not define embeddings and heads, or `config.json` lacks one of their keys.
    pub fn model_config(&self) -> Result<&ModelConfig> {
        let none = |reason| Error::InvalidConfig(format!("no whole model: {reason}"));
        self.model.as_ref().map_err(none)
    }

    /// Returns the model that a `config.json` describes, with its pooler if it is compared with another stack.
    fn of(
        family: Family,
        config: StackConfig,
        json: Option<&ConfigJson>,
        is_compared: bool,
    ) -> Result<Self> {
        let (initialization, model, json) = match json {
            Some(json) => {
                let bytes = quantized::config_of_dense_weights(json)?;
                let model = described(&family, json, &config, is_compared);
                let model = model.map_err(|error| error.located(json.path()));
                let seen = family.keys.seen(json)?;
                let names = (family.new_names)(&seen)?;
                let mut initialization = (family.initialization)(&seen)?;
                if let Ok(model) = &model {
                    initialization = with_padding(initialization, &model.embeddings);
                }
                for role in &family.untrained {
                    initialization = initialization.with_untrained(role);
                }
                let model = model.map_err(|e| e.to_string());
                (initialization, model, Some((bytes, names)))
            }
            // The configuration was given, so no file is read.
            None => (
                Initialization::default(),
                Err("there is no config.json".to_string()),
                None,
            ),
        };
        Ok(Self {
            family: family.name.clone(),
            config,
            initialization,
            model,
            second: None,
            table: family,
            json,
            files: None,
        })
    }
}

impl CheckpointOptions {
    /// Reads the architecture from the `config.json` at `path`, or in the directory `path`. A [`whole`](Self::whole) model
    /// with two stacks has both, unless the class in `architectures` only has the second. Errors as for
    /// [`Architecture::open`].
    pub fn architecture(self, path: impl AsRef<Path>) -> Result<Architecture> {
        let path = path.as_ref();
        let path = self.config.clone().unwrap_or_else(|| match path.is_dir() {
            true => path.join("config.json"),
            false => path.to_path_buf(),
        });
        let first = self.clone().architecture_of_stack(&path, false)?;
        let Some((second, part, kind)) = self.clone().second(&first.table, &path)? else {
            return Ok(first);
        };
        let is_compared = matches!(kind, TwoStackKind::TwoTowers { .. });
        let second = second.architecture_of_stack(&path, is_compared)?;
        if let Some(task) = task_of(&gguf::open_config(&path)?)?
            && !first.table.has_head(task)
            && second.table.has_head(task)
        {
            return Ok(second);
        }
        let first = match is_compared {
            true => self.architecture_of_stack(&path, true)?,
            false => first,
        };
        first.joined(second, part, kind)
    }

    /// Reads the architecture of one stack, with its pooler if the model compares two stacks.
    fn architecture_of_stack(self, path: &Path, is_compared: bool) -> Result<Architecture> {
        let json = gguf::open_named_config(path)?;
        let (family, config) = self.blocks(path, json.as_ref())?;
        Architecture::of(family, config, json.as_ref(), is_compared)
    }

    /// Returns the family and the stack's configuration. Reads `json`, the contents of the `config.json` at `path`, unless
    /// both were set.
    pub(super) fn blocks(
        self,
        path: &Path,
        json: Option<&ConfigJson>,
    ) -> Result<(Family, StackConfig)> {
        let of_gliner = path.with_file_name("gliner_config.json");
        let json = || {
            json.ok_or_else(|| match of_gliner.exists() {
                true => Error::InvalidConfig(format!(
                    "{}: this file belongs to a GLiNER model, which `Gliner` opens",
                    of_gliner.display()
                )),
                false => Error::MissingConfig {
                    path: path.to_path_buf(),
                },
            })
        };
        if let Some(given) = self.config.filter(|config| !config.exists()) {
            return Err(Error::MissingConfig { path: given });
        }
        let mut family = match self.family {
            Some(FamilySource::Given(family)) => *family,
            Some(FamilySource::File(path)) => Family::from_json_file(path)?,
            None => family_of(json()?, self.part, self.whole, self.encoder_of)?,
        };
        if let Some(part) = self.part
            && family.part != Some(part)
        {
            let described = match family.part {
                Some(own) => format!("the {own}"),
                None => "a single stack".to_string(),
            };
            let reason = format!(
                "{part} was selected, but the family {} describes {described}; select no stack, or \
                 set it in the family",
                family.name
            );
            return Err(Error::input("part", reason));
        }
        let config = match &family.config {
            // No file is read, and there may be none.
            StackSource::Given(config) => {
                config.validate().map_err(|error| error.located(path))?;
                (**config).clone()
            }
            StackSource::Json(_) => {
                let json = json()?;
                let config = family.stack_config(json);
                let checked = config.and_then(|config| config.validate().map(|()| config));
                let config = checked.map_err(|error| json.located(error))?;
                family = family.with_group_sizes(json)?;
                config
            }
        };
        Ok((family, config))
    }
}

impl Checkpoint {
    /// Returns the architecture of this model under the head for a task, with these labels.
    ///
    /// # Errors
    /// If the family has no such head, or `config.json` names no class.
    pub(crate) fn architecture_with_head(
        &self,
        task: HeadTask,
        labels: &[&str],
    ) -> Result<Architecture> {
        let path = || self.files().path().to_path_buf();
        let json = self.config_json()?;
        let json = json.ok_or_else(|| Error::MissingConfig { path: path() })?;
        if !self.family.has_head(task) {
            let tasks: Vec<_> = { self.family.heads.iter() }
                .map(|(task, _)| task.to_string())
                .collect();
            let reason = format!(
                "the family {} has no head for this task{}",
                self.family.name,
                listed("it has heads for", &tasks)
            );
            return Err(Error::input(task.to_string(), reason));
        }
        let class = class_for(&json, task)?;
        let mut json = json
            .with("architectures", vec![class])
            .without("problem_type");
        if !labels.is_empty() {
            let labels = || labels.iter().enumerate();
            let names = labels().map(|(i, &label)| (i.to_string(), Value::from(label)));
            let ids = labels().map(|(i, label)| (label.to_string(), Value::from(i)));
            let (names, ids): (Map<_, _>, Map<_, _>) = (names.collect(), ids.collect());
            json = { json.without("num_labels") }
                .with("id2label", names)
                .with("label2id", ids);
        }
        let (family, config) = (self.family.clone(), self.config.clone());
        let mut architecture = Architecture::of(family, config, Some(&json), false)?;
        architecture.model_config()?;
        architecture.files = self
            .files
            .gguf()
            .is_none()
            .then(|| self.files.directory().to_path_buf());
        Ok(architecture)
    }
}

/// Returns the initialization with zeros for the padding embeddings, which are not trained.
fn with_padding(mut drawn: Initialization, embeddings: &EmbeddingsConfig) -> Initialization {
    let EmbeddingsConfig::Tokens(tokens) = embeddings else {
        return drawn;
    };
    if let Some(padding) = tokens.padding {
        drawn = drawn.with_zero_row("embeddings.word.weight", padding as usize);
        if tokens.layer_inputs.is_some() {
            drawn = drawn.with_zero_row("embeddings.layer_inputs.weight", padding as usize);
        }
    }
    match tokens.positions.map(|table| table.counted) {
        Some(CountedTokens::Except(padding)) => {
            drawn.with_zero_row("embeddings.position.weight", padding as usize)
        }
        _ => drawn,
    }
}

/// Returns whether a class in `architectures` has the decoder of an encoder-decoder alone, of which `first` is the first stack.
fn is_decoder_alone(json: &ConfigJson, first: StackPart) -> Result<bool> {
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    Ok(classes.iter().any(|class| is_of_decoder(class, first)))
}

/// Returns the stack of a class in `architectures`, if that class has only one of two stacks, or is read as its texts' alone.
fn only_stack(json: &ConfigJson) -> Result<Option<StackPart>> {
    const CLASSES: [(&str, StackPart); 4] = [
        ("Siglip2Model", StackPart::Text),
        ("EncoderModel", StackPart::Encoder),
        ("ForAudioClassification", StackPart::Encoder),
        ("ForTokenClassification", StackPart::Encoder),
    ];
    let classes = json.texts(&["architectures"])?.unwrap_or_default();
    let stack = |class: &String| {
        let known = CLASSES.iter().find(|(end, _)| class.ends_with(end));
        known.map(|(_, part)| *part)
    };
    Ok(classes.iter().find_map(stack))
}

/// Returns the family that `model_type` names, for the requested stack.
fn family_of(
    json: &ConfigJson,
    part: Option<StackPart>,
    whole: bool,
    encoder_of: &[&str],
) -> Result<Family> {
    let key = "model_type";
    let own = families::type_of_code(json)?.map(str::to_string);
    let Some(model_type) = own.or(json.text(&[key])?) else {
        return Err(json.error(&[key], "missing, expected the name of a family"));
    };
    if let Some(side) = TextSide::of(&model_type)
        && part.is_none()
    {
        return family_of_text(side, json);
    }
    let mut is_alone = false;
    let part = match (part, first_of_two(&model_type)) {
        (None, Some(_)) if encoder_of.contains(&model_type.as_str()) => Some(StackPart::Encoder),
        (None, Some(first)) if is_decoder_alone(json, first)? => {
            is_alone = true;
            Some(first)
        }
        (None, Some(first)) => match whole {
            true => Some(first),
            false => only_stack(json)?,
        },
        _ => part,
    };
    let family = known(&model_type, part).map(|family| match is_alone {
        true => family.alone(),
        false => family,
    });
    family.map_err(|unknown| match unknown {
        Unknown::ModelType { lacks, nearest } => Error::UnknownFamily {
            path: json.path().to_path_buf(),
            model_type,
            lacks,
            nearest,
        },
        Unknown::Part(reason) => Error::input("part", reason),
    })
}

/// Returns the table for a larger model's text, whose own model type the file says.
fn family_of_text(side: &TextSide, json: &ConfigJson) -> Result<Family> {
    let text_type = side.text_type_of(&spelled_as_own(json))?;
    let key = format!("{}.model_type", side.section());
    let refused = |reason| Err(json.error(&[&key], reason));
    match known(&text_type, None) {
        Ok(text) if text.keys.section.is_none() => Ok(side.around(&text)),
        Ok(_) => refused(format!("found {text_type:?}, expected a text model's type")),
        Err(unknown) => refused(unknown.reason(&text_type)),
    }
}
