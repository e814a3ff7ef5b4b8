//! Reads `sentence_bert_config.json`: how the model reads texts, and which of its outputs is used.

use std::path::Path;

use serde_json::Value;
use tokenizers::PaddingDirection;

use super::{Kind, each_token, finished, optional};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;
use crate::text::TruncationStrategy;
use crate::text::encoder::reading::{
    ChatReading, CutEnd, LengthLimit, MessageContent, TextReading,
};
use candle_blocks_tokenizers::is_left;

/// Possible names of the file: the newest model's first, then older ones.
pub(super) const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
/// Keys that change no vector and no score: padding and its removal, inputs other than texts, and the model's device.
const HARMLESS: &[&str] = &[
    "unpad_inputs",
    "cache_dir",
    "modality_config",
    "processing_kwargs.chat_template",
];
/// Keys for queries and documents, which change nothing unless a token has a vector.
const OF_ROLES: &[&str] = &["query_length", "document_length", "query_expansion"];
/// Sections with arguments to the tokenizer's call, and the arguments that change nothing.
const CALLS: [&str; 2] = ["processing_kwargs.text", "processing_kwargs.common"];
const HARMLESS_IN_CALLS: &[&str] = &[
    "logits_to_keep",
    "return_length",
    "return_tensors",
    "verbose",
];
/// The arguments to `from_pretrained`, with their current and former names.
const LOADING: [[&str; 2]; 3] = [
    ["model_kwargs", "model_args"],
    ["processor_kwargs", "tokenizer_args"],
    ["config_kwargs", "config_args"],
];
/// Arguments among these that change no vector and no score.
const HARMLESS_IN_LOADING: &[&str] = &[
    "add_pooling_layer",
    "attn_implementation",
    "cache_dir",
    "clean_up_tokenization_spaces",
    "device_map",
    "dtype",
    "local_files_only",
    "low_cpu_mem_usage",
    "output_attentions",
    "output_hidden_states",
    "revision",
    "token",
    "torch_dtype",
    "trust_remote_code",
    "use_cache",
    "use_fast",
    "use_safetensors",
];

/// The module `Transformer`.
#[derive(Debug)]
pub(super) struct Transformer {
    pub reading: TextReading,
    /// How queries are read.
    pub queries: TextReading,
    pub output: ModuleOutput,
}

/// The model's output that the next module reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModuleOutput {
    /// The hidden states after the last block, one for each token.
    Tokens,
    /// The pooler's output, one vector for each text.
    Pooled,
    /// A text tower's vector in the space that it shares with images.
    Projected,
    /// A classifier's logits.
    Scores,
    /// The next token's logits.
    NextToken,
    /// A masked language model's logits, for each token.
    Words,
}

/// The task of a `CLIPModel`, whose file names none: transformers' `get_text_features` makes the vectors.
const TEXT_FEATURES: &str = "text features";

/// The task of a class whose file names none; `None` for a class that is not supported.
pub(super) fn task_of(class: &str) -> Option<&'static str> {
    match class {
        "Transformer" => Some("feature-extraction"),
        "MLMTransformer" => Some("fill-mask"), // before version 5.4
        "CLIPModel" => Some(TEXT_FEATURES),    // as well
        _ => None,
    }
}

impl Transformer {
    /// Reads the file in the model's folder, if there is one; `task` is that of a file that names none.
    ///
    /// # Errors
    /// If a key is unknown, or has a value that is not supported.
    pub fn open(directory: &Path, kind: &Kind, task: &str) -> Result<Self> {
        for name in FILES {
            if let Some(json) = optional(&directory.join(name))?
                && json.keys().next().is_some()
            {
                return Self::read(&json, kind, task);
            }
        }
        let none = ConfigJson::given(&directory.join(FILES[0]), serde_json::json!({}));
        Self::read(&none, kind, task)
    }

    fn read(json: &ConfigJson, kind: &Kind, task: &str) -> Result<Self> {
        let mut reading = TextReading {
            limit: limit(json, "max_seq_length")?.unwrap_or_default(),
            lower_case: json.flag(&["do_lower_case"], false)?,
            ..TextReading::default()
        };
        if let Some(name) = json.text(&["tokenizer_name_or_path"])? {
            let reason = format!(
                "{name:?}: a tokenizer in another folder is not supported; copy it beside the weights"
            );
            return Err(json.error(&["tokenizer_name_or_path"], reason));
        }
        let (output, chat) = output(json, kind, task)?;
        reading.chat = chat;
        for keys in LOADING {
            for key in keys {
                if let Some(section) = json.section(&[key])?
                    && section.at("model_max_length").is_some()
                {
                    reading.limit =
                        limit(&section, "model_max_length")?.unwrap_or(LengthLimit::Positions);
                }
                if let Some(section) = json.section(&[key])? {
                    reading.padding_side = padding_side(&section)?.or(reading.padding_side);
                }
            }
        }
        let mut queries = reading.clone();
        let has_roles = *kind == Kind::MultiVectorEncoder;
        if has_roles {
            for (key, reading) in [
                ("query_length", &mut queries),
                ("document_length", &mut reading),
            ] {
                let length = json.optional_size(&[key])?;
                reading.limit = length.map_or(reading.limit, LengthLimit::Tokens);
            }
            queries.expansion = each_token::expansion(json)?;
        }
        if let Some(kwargs) = json.section(&["processing_kwargs"])? {
            processing(&kwargs, &mut queries)?;
            processing(&kwargs, &mut reading)?;
        }
        if let Some(added) = queries.expansion.as_ref().filter(|added| added.truncates) {
            queries.limit = LengthLimit::Tokens(added.length);
        }
        let loading_keys = LOADING
            .as_flattened()
            .iter()
            .map(|section| (section, HARMLESS_IN_LOADING));
        let call_keys = CALLS.iter().map(|section| (section, HARMLESS_IN_CALLS));
        let inside = loading_keys
            .chain(call_keys)
            .flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{key}")));
        let inside: Vec<String> = inside.collect();
        let harmless: Vec<&str> = HARMLESS
            .iter()
            .copied()
            .chain(OF_ROLES.iter().copied().filter(|_| !has_roles))
            .chain(inside.iter().map(String::as_str))
            .collect();
        finished(json, &harmless)?;
        Ok(Self {
            reading,
            queries,
            output,
        })
    }
}

/// Reads a number of tokens; `None` if absent. transformers writes 1e30 for no limit.
fn limit(json: &ConfigJson, key: &str) -> Result<Option<LengthLimit>> {
    const UNLIMITED: f64 = 1e9;
    let found = json.optional_number(&[key])?;
    found
        .map(|number| match number {
            n if n >= UNLIMITED => Ok(LengthLimit::Positions),
            n if n >= 0.0 && n.fract() == 0.0 => Ok(LengthLimit::Tokens(n as usize)),
            n => Err(json.error(&[key], format!("found {n}, expected a number of tokens"))),
        })
        .transpose()
}

/// Returns which output is used, and how texts become messages, if they do.
fn output(
    json: &ConfigJson,
    kind: &Kind,
    default: &str,
) -> Result<(ModuleOutput, Option<ChatReading>)> {
    const TASK: &str = "transformer_task";
    const CONFIG: &str = "modality_config";
    const GET_TEXT_FEATURES: &str = "get_text_features";
    let task = json.text(&[TASK])?;
    let task = task.as_deref().unwrap_or(default);
    let by_task = match (task, kind) {
        ("feature-extraction", _) => ModuleOutput::Tokens,
        (TEXT_FEATURES, Kind::SentenceTransformer) => ModuleOutput::Projected,
        ("fill-mask", Kind::SentenceTransformer | Kind::SparseEncoder) => ModuleOutput::Words,
        ("sequence-classification", Kind::CrossEncoder) => ModuleOutput::Scores,
        ("text-generation", Kind::CrossEncoder) => ModuleOutput::NextToken,
        _ => {
            let reason = format!("{task:?} is not supported for a {kind}");
            return Err(json.error(&[TASK], reason));
        }
    };
    let module_output = json.text(&["module_output_name"])?;
    let Some(config) = json.section(&[CONFIG])? else {
        return Ok((by_task, None)); // older files: `module_output_name` only counts beside `modality_config`
    };
    let (modality, chat) = match (config.section(&["message"])?, config.section(&["text"])?) {
        (Some(message), _) => {
            let format = message.text(&["format"])?;
            let content = match format.as_deref() {
                Some("flat") => MessageContent::Flat,
                Some("structured") => MessageContent::Structured,
                None if message.at("format").is_some() => MessageContent::Structured, // null
                Some("auto") | None => MessageContent::ByTemplate,
                Some(other) => {
                    let reason = format!(
                        "{other:?} is not supported, only \"flat\", \"structured\" and \"auto\""
                    );
                    return Err(message.error(&["format"], reason));
                }
            };
            let chat = ChatReading {
                content,
                ..ChatReading::default()
            };
            (message, Some(chat))
        }
        (None, Some(text)) => (text, None),
        (None, None) => {
            let found: Vec<&str> = config.keys().collect();
            let reason = format!("the model does not read texts, only {found:?}");
            return Err(json.error(&[CONFIG], reason));
        }
    };
    modality.only("method", &["forward".into(), GET_TEXT_FEATURES.into()])?;
    let projects = modality.text(&["method"])?.as_deref() == Some(GET_TEXT_FEATURES);
    let name = match modality.at("method_output_name") {
        Some(Value::Array(names)) if names.len() == 1 => names[0].as_str(),
        Some(Value::String(name)) => Some(name.as_str()),
        _ => None,
    };
    let module_output = module_output.unwrap_or_default();
    let output = match (task, name, module_output.as_str()) {
        (TEXT_FEATURES | "feature-extraction", Some("pooler_output"), "sentence_embedding")
            if projects =>
        {
            ModuleOutput::Projected
        }
        _ if projects => {
            let reason = format!(
                "{GET_TEXT_FEATURES:?} is supported with pooler_output as \"sentence_embedding\" alone"
            );
            return Err(modality.error(&["method"], reason));
        }
        ("feature-extraction", Some("last_hidden_state"), "token_embeddings") => {
            ModuleOutput::Tokens
        }
        ("feature-extraction", Some("pooler_output"), "sentence_embedding") => ModuleOutput::Pooled,
        ("fill-mask", Some("logits"), "token_embeddings") => ModuleOutput::Words,
        ("sequence-classification", Some("logits"), "scores") => ModuleOutput::Scores,
        ("text-generation", Some("logits"), "causal_logits") => ModuleOutput::NextToken,
        _ => {
            let name = modality
                .at("method_output_name")
                .cloned()
                .unwrap_or_default();
            let reason = format!(
                "{name} of a model for {task} as {module_output:?} (\"module_output_name\") is not \
                 supported; supported are last_hidden_state as \"token_embeddings\" and \
                 pooler_output as \"sentence_embedding\" of a model for feature-extraction, \
                 logits as \"token_embeddings\" of one for fill-mask, \
                 logits as \"scores\" of one for sequence-classification, and logits as \
                 \"causal_logits\" of one for text-generation"
            );
            return Err(modality.error(&["method_output_name"], reason));
        }
    };
    Ok((output, chat))
}

/// Reads the arguments to the tokenizer's call.
fn processing(kwargs: &ConfigJson, reading: &mut TextReading) -> Result<()> {
    for of_no_text in ["audio", "image", "video"] {
        kwargs.at(of_no_text);
    }
    let template = kwargs.section(&["chat_template"])?;
    let template = template.filter(|_| reading.chat.is_some());
    let (own_limit, mut truncation) = (reading.limit, Some(TruncationStrategy::LongestFirst));
    let mut call_sections = [kwargs.section(&["text"])?, kwargs.section(&["common"])?];
    // If two sections have the same key, the later one counts. For chats, the library merges them in the opposite order.
    if reading.chat.is_some() {
        call_sections.reverse();
    }
    for section in call_sections.iter().flatten().chain(&template) {
        if section.at("max_length").is_some() {
            reading.limit = limit(section, "max_length")?.unwrap_or(own_limit);
        }
        truncation = truncation_of(section)?.unwrap_or(truncation);
    }
    match truncation {
        Some(strategy) => reading.truncation = strategy,
        None => reading.limit = LengthLimit::Positions,
    }
    for section in call_sections.iter().flatten() {
        reading.padding_side = padding_side(section)?.or(reading.padding_side);
        let adds = section.flag(&["add_special_tokens"], !reading.without_special_tokens)?;
        reading.without_special_tokens = !adds;
        section.only("return_attention_mask", &[true.into()])?;
        // Padding to a fixed length would also change which tokens count as a prompt's.
        section.only(
            "padding",
            &[
                true.into(),
                "longest".into(),
                false.into(),
                "do_not_pad".into(),
            ],
        )?;
        if section.at("return_token_type_ids").is_some() {
            reading.types = Some(section.flag(&["return_token_type_ids"], true)?);
        }
    }
    if let (Some(section), Some(chat)) = (template, &mut reading.chat) {
        chat_template(&section, chat)?;
    }
    Ok(())
}

/// Returns the side on which the section's tokenizer pads, if the section names one.
fn padding_side(section: &ConfigJson) -> Result<Option<PaddingDirection>> {
    let side = is_left(section, "padding_side")?;
    Ok(side.map(|is_left| match is_left {
        true => PaddingDirection::Left,
        false => PaddingDirection::Right,
    }))
}

/// Returns how texts are truncated, or that they are not, if the section says so.
fn truncation_of(section: &ConfigJson) -> Result<Option<Option<TruncationStrategy>>> {
    const KEY: &str = "truncation";
    let strategy = match section.at(KEY) {
        None => return Ok(None),
        Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(TruncationStrategy::LongestFirst),
        Some(Value::String(name)) if name == "do_not_truncate" => None,
        Some(other) => {
            let known = other.as_str().and_then(|name| name.parse().ok());
            let unknown = || {
                let reason = format!(
                    "{other} is not supported, only true, false, \"longest_first\", \"only_first\", \"only_second\" and \
                     \"do_not_truncate\""
                );
                section.error(&[KEY], reason)
            };
            Some(known.ok_or_else(unknown)?)
        }
    };
    Ok(Some(strategy))
}

/// Reads the arguments to `apply_chat_template`; unknown ones are template variables.
fn chat_template(section: &ConfigJson, chat: &mut ChatReading) -> Result<()> {
    const KNOWN: [&str; 6] = [
        "add_generation_prompt",
        "restore_suffix",
        "max_length",
        "truncation",
        "padding",
        "return_tensors",
    ];
    const UNSUPPORTED: [&str; 4] = [
        "chat_template",
        "continue_final_message",
        "tokenize",
        "return_dict",
    ];
    chat.add_generation_prompt = section.flag(&["add_generation_prompt"], false)?;
    chat.cut = match section.flag(&["restore_suffix"], true)? {
        true => CutEnd::Restored,
        false => CutEnd::Lost,
    };
    for key in section.keys().filter(|key| !KNOWN.contains(key)) {
        if UNSUPPORTED.contains(&key) {
            return Err(section.error(&[key], "is not supported here; leave it out"));
        }
        let value = section.at(key).cloned().unwrap_or_default();
        chat.variables.insert(key.to_string(), value);
    }
    Ok(())
}
