//! Reads `adapter_config.json` as PEFT's `LoraConfig` does.

pub(crate) mod base;
pub(crate) mod class;
pub(crate) mod languages;
pub(crate) mod pattern;
pub(crate) mod tasks;

use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// Keys that do not change a trained adapter's output, or whose effect `init_lora_weights` decides.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "velora_config",
];

/// Keys that change an adapter's output and are not supported: each must be absent, null, false or empty.
const REFUSED: &[(&str, &str)] = &[
    (
        "alora_invocation_tokens",
        "the adapter only acts after these tokens in a text",
    ),
    ("arrow_config", "a router selects among adapters"),
    ("kasa_config", "the adapter changes singular values"),
    ("layer_replication", "the model repeats layers"),
    ("megatron_config", "the layers belong to Megatron"),
    (
        "monteclora_config",
        "the adapter is sampled from a distribution",
    ),
    ("use_bdlora", "the factors are block diagonal"),
    (
        "use_qalora",
        "the adapter reads means over groups of inputs",
    ),
];

/// Values of `init_lora_weights` for which PEFT changes the base model before it adds the adapter.
const CHANGE_THE_BASE: &[&str] = &["pissa", "corda", "olora", "loftq"];
/// Values of `init_lora_weights` that change nothing but the start of training.
const STARTS: &[&str] = &["gaussian", "eva", "orthogonal", "lora_ga", "mica"];

/// The layers that have an adapter.
#[derive(Debug)]
enum Targets {
    /// Layers whose names end with one of these.
    Names(Vec<String>),
    /// Layers whose whole names match this pattern.
    Pattern(String),
    /// All linear layers except the output layer.
    AllLinear,
}

/// A checked `adapter_config.json`.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    pub json: ConfigJson,
    rank: usize,
    alpha: f64,
    ranks: Map<String, Value>,
    alphas: Map<String, Value>,
    by_root: bool,
    /// Adapts the weights' directions and magnitudes separately (DoRA).
    pub is_dora: bool,
    /// The adapter changes the model's biases. At most one adapter may.
    pub has_biases: bool,
    /// Layers that share a weight also share the adapted weight.
    pub keeps_ties: bool,
    pub fan_in_fan_out: bool,
    /// Modules that were trained in full.
    pub modules_to_save: Vec<String>,
    targets: Option<Targets>,
    /// Parameters that do not belong to a module.
    parameters: Vec<String>,
    excluded: Option<Targets>,
    layers: Option<Vec<usize>>,
    layer_names: Vec<String>,
    /// Replaced embedding rows, by embedding.
    pub tokens: Vec<(String, Vec<usize>)>,
}

impl AdapterConfig {
    /// # Errors
    /// If the adapter is not LoRA, if a value is malformed, or if an unsupported key changes the adapter's output.
    pub fn open(path: &Path) -> Result<Self> {
        let json = ConfigJson::open(path)?;
        let kind = json.text(&["peft_type"])?.unwrap_or_default();
        if !kind.eq_ignore_ascii_case("LORA") {
            let reason = format!(
                "adapters of the type {kind:?} are not supported, only \"LORA\"; merge it in \
                 Python with `merge_and_unload()` if PEFT can, and load the result of \
                 `save_pretrained`"
            );
            return Err(json.error(&["peft_type"], reason));
        }
        for (key, meaning) in REFUSED {
            if json.at(key).is_some_and(is_set) {
                let reason = format!(
                    "it means that {meaning}, which is not supported; merge the adapter in Python \
                     with `merge_and_unload()` if PEFT can"
                );
                return Err(json.error(&[key], reason));
            }
        }
        check_start(&json)?;
        let texts = |key: &str| -> Result<Vec<String>> {
            Ok(match json.at(key) {
                Some(Value::String(one)) => vec![one.clone()],
                _ => json.texts(&[key])?.unwrap_or_default(),
            })
        };
        let layers = match json.at("layers_to_transform") {
            Some(Value::Number(_)) => Some(vec![json.size(&["layers_to_transform"])?]),
            _ => json.parsed::<Vec<usize>>("layers_to_transform")?,
        };
        let targets = targets(&json, "target_modules")?;
        let bias = json.text(&["bias"])?.unwrap_or_else(|| "none".to_string());
        if !["none", "all", "lora_only"].contains(&bias.as_str()) {
            let reason = format!("found {bias:?}, expected \"none\", \"all\" or \"lora_only\"");
            return Err(json.error(&["bias"], reason));
        }
        Ok(Self {
            rank: json.size(&["r"])?,
            alpha: json.number(&["lora_alpha"], 8.0)?,
            ranks: json.parsed("rank_pattern")?.unwrap_or_default(),
            alphas: json.parsed("alpha_pattern")?.unwrap_or_default(),
            by_root: json.flag(&["use_rslora"], false)?,
            is_dora: json.flag(&["use_dora"], false)?,
            has_biases: bias != "none" || json.flag(&["lora_bias"], false)?,
            keeps_ties: json.flag(&["ensure_weight_tying"], false)?,
            fan_in_fan_out: json.flag(&["fan_in_fan_out"], false)?,
            modules_to_save: [texts("modules_to_save")?, heads(&json)?].concat(),
            targets,
            parameters: json.texts(&["target_parameters"])?.unwrap_or_default(),
            excluded: self::targets(&json, "exclude_modules")?,
            layers: layers.filter(|layers| !layers.is_empty()),
            layer_names: texts("layers_pattern")?,
            tokens: tokens(&json)?,
            json,
        })
    }

    /// Returns the base model's path or its name on the Hub, if the file has one.
    pub fn base(&self) -> Result<Option<String>> {
        let base = self.json.text(&["base_model_name_or_path"])?;
        Ok(base.filter(|base| !base.is_empty()))
    }

    /// Returns unknown keys that have a value.
    pub fn unread(&self) -> Vec<String> {
        let mut unread = self.json.unread(HARMLESS);
        unread.retain(|key| self.json.at(key).is_some_and(is_set));
        unread
    }

    /// Returns the class in which the adapter was trained, or the end of its name.
    pub fn class(&self) -> Result<Option<String>> {
        if let Some(Value::String(class)) = self.json.at("auto_mapping.base_model_class") {
            return Ok(Some(class.clone()));
        }
        let task = self.json.text(&["task_type"])?;
        Ok(task.and_then(|task| {
            let class = match task.as_str() {
                "SEQ_CLS" => "ForSequenceClassification",
                "TOKEN_CLS" => "ForTokenClassification",
                "QUESTION_ANS" => "ForQuestionAnswering",
                "CAUSAL_LM" => "ForCausalLM",
                "SEQ_2_SEQ_LM" => "ForConditionalGeneration",
                _ => return None,
            };
            Some(class.to_string())
        }))
    }

    /// Returns the rank of a module's adapter.
    pub fn rank(&self, module: &str) -> Result<usize> {
        let is_whole = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        self.of_module("rank_pattern", &self.ranks, self.rank, module, is_whole)
    }

    /// Returns the factor on the product of a module's two matrices, given their rank.
    pub fn scale(&self, module: &str, rank: usize) -> Result<f64> {
        let (key, all) = ("alpha_pattern", &self.alphas);
        let alpha = self.of_module(key, all, self.alpha, module, Value::as_f64)?;
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }

    /// Returns the key that gives an expert's matrices another scaling than `lora_alpha / r`, if there is one. PEFT drops
    /// that scaling when it joins all experts' adapters.
    pub fn changes_when_joined(&self, module: &str) -> Result<Option<&'static str>> {
        let rank = self.rank(module)?;
        let alpha = self.of_module(
            "alpha_pattern",
            &self.alphas,
            self.alpha,
            module,
            Value::as_f64,
        )?;
        Ok(match () {
            () if self.by_root => Some("use_rslora"),
            () if rank != self.rank => Some("rank_pattern"),
            () if alpha != self.alpha => Some("alpha_pattern"),
            () => None,
        })
    }

    /// Returns the value for the first pattern that matches a module.
    fn of_module<T: PartialEq + Copy>(
        &self,
        key: &str,
        patterns: &Map<String, Value>,
        otherwise: T,
        module: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T> {
        let mut found: Option<T> = None;
        for (pattern, value) in patterns {
            if !self.tried(key, pattern::ends_in(pattern, module))? {
                continue;
            }
            let value = read(value).ok_or_else(|| {
                let reason = format!("found {value} for {pattern:?}, expected a number");
                self.json.error(&[key], reason)
            })?;
            // PEFT takes the first pattern in the file's order. A parsed object need not keep that order.
            if found.is_some_and(|found| found != value) {
                let reason =
                    format!("several patterns with different values match {module}; keep one");
                return Err(self.json.error(&[key], reason));
            }
            found = Some(value);
        }
        Ok(found.unwrap_or(otherwise))
    }

    /// Returns whether `target_modules` is `"all-linear"`.
    pub fn takes_all_linear(&self) -> bool {
        matches!(self.targets, Some(Targets::AllLinear))
    }

    /// Returns the key that excludes a module from the adapter, as PEFT's `check_target_module_exists` does. `"all-linear"`
    /// does not include embeddings, convolutions and the output layer.
    pub fn leaves_out(&self, module: &str, is_linear: bool) -> Result<Option<&'static str>> {
        if let Some(excluded) = &self.excluded
            && self.picks("exclude_modules", excluded, module)?
        {
            return Ok(Some("exclude_modules"));
        }
        if self.saves(module)? {
            return Ok(Some("modules_to_save"));
        }
        let key = "target_modules";
        let Some(targets) = &self.targets else {
            let reason =
                "for null, PEFT uses its own list for the model type; list the adapter's modules";
            return Err(self.json.error(&[key], reason));
        };
        if (!is_linear && self.takes_all_linear()) || !self.picks(key, targets, module)? {
            return Ok(Some("target_modules (and no entry of target_parameters)"));
        }
        let (Some(layers), Targets::Names(names)) = (&self.layers, targets) else {
            return Ok(None);
        };
        if names.iter().any(|name| name == module) {
            return Ok(None);
        }
        let layer = pattern::layer_of(&self.layer_names, module);
        let layer = self.tried("layers_pattern", layer)?;
        let is_listed = layer.is_some_and(|layer| layers.contains(&layer));
        Ok(match self.layer_names.is_empty() {
            _ if is_listed => None,
            true => Some("layers_to_transform"),
            false => Some("layers_to_transform with layers_pattern"),
        })
    }

    /// Returns whether the parameter with this name in the class has an adapter.
    pub fn targets_parameter(&self, name: &str) -> bool {
        let ends = |target: &String| {
            let before = name.strip_suffix(target.as_str());
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        self.parameters.iter().any(ends)
    }

    fn picks(&self, key: &str, targets: &Targets, module: &str) -> Result<bool> {
        match targets {
            Targets::AllLinear => Ok(true),
            Targets::Pattern(pattern) => self.tried(key, pattern::is_whole(pattern, module)),
            Targets::Names(names) => Ok(names.iter().any(|name| {
                let before = module.strip_suffix(name.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            })),
        }
    }

    /// Returns whether the tensor with this name in the class was trained in full, separately from the tensors that are tied
    /// to it.
    pub fn saves(&self, name: &str) -> Result<bool> {
        for saved in &self.modules_to_save {
            if self.tried("modules_to_save", pattern::is_in(saved, name))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tried<T>(&self, key: &str, found: std::result::Result<T, String>) -> Result<T> {
        found.map_err(|reason| self.json.error(&[key], reason))
    }
}

/// Returns the modules that PEFT's class for a task always saves, besides `modules_to_save`.
fn heads(json: &ConfigJson) -> Result<Vec<String>> {
    let task = json.text(&["task_type"])?.unwrap_or_default();
    let names: &[&str] = match task.as_str() {
        "SEQ_CLS" | "TOKEN_CLS" => &["classifier", "score"],
        "QUESTION_ANS" => &["qa_outputs"],
        _ => &[],
    };
    Ok(names.iter().map(ToString::to_string).collect())
}

/// Returns whether a value enables a feature.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(keys) => !keys.is_empty(),
        _ => true,
    }
}

/// # Errors
/// If `init_lora_weights` means that PEFT changes the base model before it adds the adapter.
fn check_start(json: &ConfigJson) -> Result<()> {
    let key = "init_lora_weights";
    let Some(Value::String(start)) = json.at(key) else {
        return json.flag(&[key], true).map(drop);
    };
    let start = start.to_lowercase();
    let reason = match () {
        () if STARTS.contains(&start.as_str()) => return Ok(()),
        () if CHANGE_THE_BASE.iter().any(|known| start.starts_with(known)) => format!(
            "with {start:?} PEFT first subtracts the adapter's initial value from the base model, \
             which is not supported; save the adapter in Python with `save_pretrained(.., \
             path_initial_model_for_weight_conversion=..)`, or merge it with \
             `merge_and_unload()`"
        ),
        () => format!(
            "{start:?} is unknown; supported are true, false and {}",
            STARTS.join(", ")
        ),
    };
    Err(json.error(&[key], reason))
}

/// Reads a list of names or a pattern; `None` if absent.
fn targets(json: &ConfigJson, key: &str) -> Result<Option<Targets>> {
    Ok(match json.at(key) {
        Some(Value::String(all)) if all.eq_ignore_ascii_case("all-linear") => {
            Some(Targets::AllLinear)
        }
        Some(Value::String(pattern)) if !pattern.is_empty() => {
            Some(Targets::Pattern(pattern.clone()))
        }
        Some(Value::String(_)) => None,
        _ => json.texts(&[key])?.map(Targets::Names),
    })
}

/// Reads the rows of `trainable_token_indices`, by module. A plain list belongs to the token embeddings.
fn tokens(json: &ConfigJson) -> Result<Vec<(String, Vec<usize>)>> {
    let key = "trainable_token_indices";
    match json.at(key) {
        Some(Value::Array(_)) => {
            let rows: Option<Vec<usize>> = json.parsed(key)?;
            Ok(rows.map(|rows| (String::new(), rows)).into_iter().collect())
        }
        _ => {
            let merged_layers: Option<std::collections::BTreeMap<String, Vec<usize>>> =
                json.parsed(key)?;
            Ok(merged_layers.unwrap_or_default().into_iter().collect())
        }
    }
}
