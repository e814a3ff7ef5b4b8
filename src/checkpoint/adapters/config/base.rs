//! The base model and the task that PEFT's files for a new adapter name.

use std::path::{Component, Path};

use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::plan::outside_blocks;
use crate::checkpoint::scheme::StackPart;
use crate::config::HeadTask;
use crate::error::{Error, Result};

/// Keys in `adapter_config.json` by which PEFT opens an adapter's base model.
#[derive(Debug)]
pub(crate) struct PeftBase {
    /// `base_model_name_or_path`: a repository or a directory.
    pub name: String,
    /// `task_type` for language models. For its other tasks, PEFT expects a head in the adapter's file.
    pub task: Option<&'static str>,
    /// `auto_mapping`, which names the class if there is no task.
    pub class: Option<Value>,
}

/// Classes called `..ForConditionalGeneration` whose encoder does not read tokens.
const NOT_OF_TEXT: [&str; 4] = ["Whisper", "Speech", "Moonshine", "Pix2Struct"];

impl Checkpoint {
    /// Returns the base model for adapters of this checkpoint: `given`, or the repository or directory that it was opened from.
    ///
    /// # Errors
    /// If the checkpoint contains another adapter and no other base is given, if it is a GGUF file or has no `config.json`
    /// and no base is given, or if `config.json` cannot be read.
    pub(crate) fn as_peft_base(&self, given: Option<&str>) -> Result<PeftBase> {
        let (task, class) = self.peft_task()?;
        let name = match given {
            Some(name) => name.to_string(),
            None => self.own_name()?,
        };
        let is_own = |name: &str| {
            let own = self.files.directory();
            let both = [Path::new(name), own].map(|path| path.canonicalize().ok());
            both[0].is_some() && both[0] == both[1]
        };
        if let Some(adapter) = self.adapters.first()
            && (given.is_none() || is_own(&name))
        {
            let directory = adapter.directory.display();
            let reason = format!(
                "the checkpoint was opened with the adapter in {directory}, which this base model does not contain; save the \
                 merged model with `Checkpoint::save`, and give its folder to `Lora::save_peft_on`"
            );
            return Err(Error::input(name, reason));
        }
        Ok(PeftBase {
            name,
            class: match task {
                Some(_) => None,
                None => Some(json!({"base_model_class": class, "parent_library": "transformers"})),
            },
            task,
        })
    }

    /// Returns the repository on the Hub, if the files are in the Hub's cache, or otherwise their directory.
    fn own_name(&self) -> Result<String> {
        let directory = match self.files.directory() {
            empty if empty.as_os_str().is_empty() => Path::new("."),
            directory => directory,
        };
        if self.files.gguf().is_some() || !directory.join("config.json").is_file() {
            let reason = "PEFT cannot open this base model, which is not a directory with a config.json; give \
             `Lora::save_peft_on` the directory or the repository of the model in transformers' format";
            return Err(Error::input(
                self.files.path().display().to_string(),
                reason,
            ));
        }
        let directory = std::path::absolute(directory)
            .map_err(|source| Error::io(directory, "read", source))?;
        Ok(repository(&directory).unwrap_or_else(|| directory.display().to_string()))
    }

    /// Returns PEFT's task for the class in `config.json`, or without one, for the head in the files; and the class.
    fn peft_task(&self) -> Result<(Option<&'static str>, String)> {
        let json = self.config_json()?;
        let classes = json.as_ref().map(|json| json.texts(&["architectures"]));
        let class = classes
            .transpose()?
            .flatten()
            .unwrap_or_default()
            .into_iter()
            .next();
        let task = match (&class, &json) {
            (Some(_), Some(json)) => outside_blocks::task_of(json)?,
            _ => self
                .plan
                .model
                .as_ref()
                .and_then(|model| model.head.as_ref())
                .map(|head| head.task),
        };
        let has_two_stacks = matches!(
            self.family.part,
            Some(StackPart::Encoder | StackPart::Decoder)
        );
        let is_conditional = class
            .as_ref()
            .is_some_and(|class| class.ends_with("ForConditionalGeneration"));
        let is_of_text = |class: &String| !NOT_OF_TEXT.iter().any(|start| class.starts_with(start));
        let (task, auto) = match task {
            Some(HeadTask::CausalLm) if has_two_stacks => {
                let is_of_text = class.as_ref().is_none_or(is_of_text);
                (
                    is_of_text.then_some("SEQ_2_SEQ_LM"),
                    "AutoModelForSeq2SeqLM",
                )
            }
            Some(HeadTask::CausalLm) if is_conditional => (None, "AutoModelForImageTextToText"),
            Some(HeadTask::CausalLm) => (Some("CAUSAL_LM"), "AutoModelForCausalLM"),
            Some(HeadTask::SequenceClassification) => (None, "AutoModelForSequenceClassification"),
            Some(HeadTask::TokenClassification) => (None, "AutoModelForTokenClassification"),
            Some(HeadTask::QuestionAnswering) => (None, "AutoModelForQuestionAnswering"),
            Some(HeadTask::MaskedLm) => (None, "AutoModelForMaskedLM"),
            Some(HeadTask::NextSentence) => (None, "AutoModelForNextSentencePrediction"),
            Some(HeadTask::MultipleChoice) => (None, "AutoModelForMultipleChoice"),
            Some(HeadTask::ReplacedTokens) => (None, "AutoModelForPreTraining"),
            Some(HeadTask::ImageClassification) => (None, "AutoModelForImageClassification"),
            Some(HeadTask::Projection) | None => (None, "AutoModel"),
        };
        Ok((task, class.unwrap_or_else(|| auto.to_string())))
    }
}

/// Returns the repository whose snapshot in the Hub's cache this directory is: `models--owner--name/snapshots/<commit>`.
fn repository(directory: &Path) -> Option<String> {
    let mut names = directory
        .components()
        .rev()
        .map(|component| match component {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
    let (_commit, snapshots, folder) = (names.next()??, names.next()??, names.next()??);
    let name = folder
        .strip_prefix("models--")
        .filter(|_| snapshots == "snapshots")?;
    Some(name.replacen("--", "/", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_in_the_hubs_cache_is_a_repository() {
        for (directory, expected) in [
            (
                "/home/a/.cache/huggingface/hub/models--org--my--model/snapshots/4fa1",
                Some("org/my--model"),
            ),
            ("/cache/models--gpt2/snapshots/4fa1", Some("gpt2")),
            ("/cache/models--gpt2/other/4fa1", None),
            ("/models/bert", None),
        ] {
            assert_eq!(
                repository(Path::new(directory)).as_deref(),
                expected,
                "{directory}"
            );
        }
    }
}
