//! The files of sentence-transformers: `modules.json` and what it names.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use candle_core::{DType, Tensor};
use serde::Deserialize;

use super::Pooling;
use super::stages::{Residual, Stage};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{TensorFiles, floating, read_limited};
use crate::checkpoint::python_json;
use crate::config::{Activation, NormConfig};
use crate::error::{Error, Result};
use crate::layers::{Linear, Norm};

/// A `modules.json` has some hundred bytes.
const MAX_BYTES: u64 = 1_000_000;
/// PyTorch's default.
const NORM_EPS: f64 = 1e-5;
/// What the first module's file was called for other models; a newer model's is the first.
const LENGTH_FILES: [&str; 7] = [
    "bert",
    "roberta",
    "distilbert",
    "camembert",
    "albert",
    "xlm-roberta",
    "xlnet",
];

/// How the vectors of tokens become a text's, and which texts they are of.
#[derive(Clone, Debug, Default)]
pub(super) struct SentenceFiles {
    /// Where the checkpoint and its tokenizer are.
    pub model: PathBuf,
    pub max_length: Option<usize>,
    pub lower_case: bool,
    /// Several are joined; none if there is no `modules.json`.
    pub pooling: Vec<Pooling>,
    /// Whether the tokens of a prompt are not pooled.
    pub skip_prompt: bool,
    pub stages: Vec<Stage>,
    pub prompts: BTreeMap<String, String>,
    /// The prompt that is used where none is named.
    pub default_prompt: Option<String>,
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

impl SentenceFiles {
    /// None of them: the checkpoint says all itself.
    pub fn none(directory: &Path) -> Self {
        Self {
            model: directory.to_path_buf(),
            ..Self::default()
        }
    }

    /// Reads what is in a checkpoint's directory, which may be nothing of all this.
    ///
    /// # Errors
    /// If a file is malformed, or names a module, pooling or activation that is not known.
    pub fn open(directory: &Path) -> Result<Self> {
        let mut files = Self::none(directory);
        if let Some(json) = optional(&directory.join("config_sentence_transformers.json"))? {
            let prompts: Option<BTreeMap<String, Option<String>>> = json.parsed("prompts")?;
            let given = |(name, prompt): (String, Option<String>)| Some((name, prompt?));
            files.prompts = prompts.into_iter().flatten().filter_map(given).collect();
            files.default_prompt = json.text(&["default_prompt_name"])?;
            if let Some(name) = &files.default_prompt
                && !files.prompts.contains_key(name)
            {
                let known: Vec<&String> = files.prompts.keys().collect();
                let reason = format!("names {name:?}, but the prompts are {known:?}");
                return Err(json.error(&["default_prompt_name"], reason));
            }
        }
        let path = directory.join("modules.json");
        if path.exists() {
            files.modules(directory, &path)?;
        }
        for name in LENGTH_FILES {
            let path = files.model.join(format!("sentence_{name}_config.json"));
            if let Some(json) = optional(&path)? {
                files.max_length = json.optional_size(&["max_seq_length"])?;
                files.lower_case = json.flag(&["do_lower_case"], false)?;
                break;
            }
        }
        Ok(files)
    }

    fn modules(&mut self, directory: &Path, path: &Path) -> Result<()> {
        let malformed = |reason: String| Error::MalformedJson {
            path: path.to_path_buf(),
            reason,
        };
        let text = read_limited(path, MAX_BYTES, "modules.json")?;
        let modules: Vec<Module> = python_json::parsed(&text).map_err(malformed)?;
        for (i, module) in modules.iter().enumerate() {
            let is_inside =
                |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
            if !Path::new(&module.path).components().all(is_inside) {
                return Err(malformed(format!(
                    "module {i} lies at {:?}, outside the model's directory; copy it there and name it without \"..\"",
                    module.path
                )));
            }
            let folder = directory.join(&module.path);
            let config = || ConfigJson::open(&folder.join("config.json"));
            match (i, module.class.rsplit('.').next().unwrap_or_default()) {
                (0, "Transformer") => self.model = folder,
                (1, "Pooling") => self.pooling(&config()?)?,
                (2.., "Dense") => self.stages.push(dense(&folder, &config()?)?),
                (2.., "LayerNorm") => self.stages.push(layer_norm(&folder, &config()?)?),
                (2.., "Normalize") => {
                    if let Some(json) = optional(&folder.join("config.json"))? {
                        of_sentences(&json)?;
                    }
                    self.stages.push(Stage::Normalize);
                }
                (2.., "Dropout") => {}
                _ => {
                    return Err(malformed(format!(
                        "module {i} is {:?}; supported are a Transformer, a Pooling, and then Dense, LayerNorm, \
                         Normalize and Dropout",
                        module.class
                    )));
                }
            }
        }
        match self.pooling.is_empty() {
            true => Err(malformed("names no Pooling behind the Transformer".into())),
            false => Ok(()),
        }
    }

    fn pooling(&mut self, json: &ConfigJson) -> Result<()> {
        const KEY: &str = "pooling_mode";
        self.skip_prompt = !json.flag(&["include_prompt"], true)?;
        if let Some(value) = json.at(KEY) {
            let names = match value {
                serde_json::Value::Array(_) => json.texts(&[KEY])?.unwrap_or_default(),
                _ => json.text(&[KEY])?.into_iter().collect(),
            };
            let known = |name: &String| {
                name.parse()
                    .map_err(|e: Error| json.error(&[KEY], e.to_string()))
            };
            self.pooling = names.iter().map(known).collect::<Result<_>>()?;
        }
        let is_old = |key: &&str| key.starts_with("pooling_mode_");
        for key in json.keys().filter(is_old) {
            let pooling = Pooling::ALL
                .into_iter()
                .find(|pooling| pooling.old_key() == key);
            match pooling {
                _ if !json.flag(&[key], false)? || json.at(KEY).is_some() => {}
                Some(pooling) => self.pooling.push(pooling),
                None => {
                    let known = Pooling::ALL.map(Pooling::old_key).join(", ");
                    return Err(json.error(&[key], format!("no known pooling; known are {known}")));
                }
            }
        }
        let place = |pooling: &Pooling| Pooling::ALL.iter().position(|one| one == pooling);
        if json.at(KEY).is_none() {
            self.pooling.sort_by_key(place);
        }
        if self.pooling.is_empty() {
            self.pooling.push(Pooling::Mean); // as sentence-transformers
        }
        Ok(())
    }
}

/// A file that need not be there.
fn optional(path: &Path) -> Result<Option<ConfigJson>> {
    path.exists().then(|| ConfigJson::open(path)).transpose()
}

/// Refuses a module that maps the vectors of tokens.
fn of_sentences(json: &ConfigJson) -> Result<()> {
    let keys = ["module_input_name", "module_output_name"];
    let sentences = [serde_json::json!("sentence_embedding")];
    keys.into_iter()
        .try_for_each(|key| json.only(key, &sentences))
}

fn dense(folder: &Path, json: &ConfigJson) -> Result<Stage> {
    const KEY: &[&str] = &["activation_function"];
    of_sentences(json)?;
    let [d_in, d_out] = [json.size(&["in_features"])?, json.size(&["out_features"])?];
    let activation = match json.text(KEY)? {
        None => Activation::Tanh,
        // `torch.nn.modules.activation.Tanh`
        Some(class) => match class.rsplit('.').next().unwrap_or_default() {
            "Identity" => Activation::Identity,
            "LeakyReLU" => Activation::LeakyRelu,
            name => json.activation_named(&name.to_lowercase(), KEY)?,
        },
    };
    let files = TensorFiles::open(folder)?;
    let linear = |name: &str, bias: bool| -> Result<Linear> {
        let weight = parameter(&files, &format!("{name}.weight"), &[d_out, d_in])?;
        let bias = bias.then(|| parameter(&files, &format!("{name}.bias"), &[d_out]));
        Ok(Linear::from_parts(weight, bias.transpose()?)?)
    };
    Ok(Stage::Dense {
        linear: linear("linear", json.flag(&["bias"], true)?)?,
        activation,
        residual: match json.flag(&["use_residual"], false)? {
            false => Residual::None,
            true if d_in == d_out => Residual::Input,
            true => Residual::Linear(linear("residual", false)?),
        },
    })
}

fn layer_norm(folder: &Path, json: &ConfigJson) -> Result<Stage> {
    let width = json.size(&["dimension"])?;
    let files = TensorFiles::open(folder)?;
    let parameter = |name| parameter(&files, name, &[width]);
    let (weight, bias) = (parameter("norm.weight")?, parameter("norm.bias")?);
    let config = NormConfig::layer_norm(width, NORM_EPS);
    Ok(Stage::LayerNorm(Norm::from_parts(
        weight,
        Some(bias),
        config,
    )?))
}

/// A parameter of this shape, in f32.
fn parameter(files: &TensorFiles, name: &str, shape: &[usize]) -> Result<Tensor> {
    let tensor = floating(files.read(name)?, files.path(), name)?;
    if tensor.dims() != shape {
        return Err(Error::ShapeMismatch {
            path: files.path().to_path_buf(),
            tensor: name.to_string(),
            expected: shape.to_vec(),
            found: tensor.dims().to_vec(),
        });
    }
    Ok(tensor.to_dtype(DType::F32)?)
}
