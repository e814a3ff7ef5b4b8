//! Adapters for languages beside the weights (MMS): a file with the adapter layers and the head of one language, which replace the
//! weights' own. A language is requested by its name, in an adapter folder's place.
//!
//! `Wav2Vec2PreTrainedModel.load_adapter`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/wav2vec2/modeling_wav2vec2.py>

use std::path::PathBuf;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::report::AppliedAdapter;
use crate::error::{Error, Result};

/// The key in `config.json` of models with such layers.
const KEY: &str = "adapter_attn_dim";
/// A part of these layers' names.
const LAYER: &str = ".adapter_layer.";
/// The head, whose size depends on the language.
const HEAD: &str = "lm_head.";

/// Replaces the tensors of the language that is requested, and takes its name from the adapters. The configuration then has the
/// size of its vocabulary. Returns it as an adapter.
///
/// # Errors
/// If there is no file for it, the file has a tensor that the weights lack or lacks one that they have, or a shape differs.
pub(in crate::checkpoint) fn apply(
    adapters: &mut Vec<PathBuf>,
    json: &mut Option<ConfigJson>,
    files: &mut TensorFiles,
) -> Result<Option<AppliedAdapter>> {
    let has_layers = { json.as_ref() }
        .and_then(|json| json.value_at(KEY))
        .is_some_and(|width| !width.is_null());
    let folder = files.directory();
    let file = |name: &PathBuf| folder.join(format!("adapter.{}.safetensors", name.display()));
    // A folder of the same name is an adapter of PEFT if there is no such file.
    let is_name = |path: &PathBuf| {
        path.parent().is_some_and(|of| of == "") && (file(path).exists() || !path.exists())
    };
    let Some(place) = adapters.iter().position(|path| has_layers && is_name(path)) else {
        return Ok(None);
    };
    let directory = adapters.remove(place);
    let path = file(&directory);
    if !path.exists() {
        return Err(Error::input(
            path.display().to_string(),
            "there is no such file; use a language whose file is beside the weights, or download it from the model's repository (`Hub::file`)",
        ));
    }
    let mut tensors = Vec::new();
    for part in files.take_in(TensorFiles::open(&path)?) {
        let Some(base) = files.info(&part.name) else {
            return Err(part.error("the weights have no tensor with this name; use the model that was published with the file"));
        };
        if !part.name.starts_with(HEAD) {
            part.check_shape(&base.shape)?;
        }
        tensors.push(part.name.clone());
        files.put(part.name, part.info);
    }
    let own = |name: &&str| name.contains(LAYER) || name.starts_with(HEAD);
    let mut own = files.names().filter(own);
    if let Some(name) = own.find(|name| !tensors.iter().any(|of| of == name)) {
        let reason = format!("{name} is missing, which the weights have; download the file again");
        return Err(Error::input(path.display().to_string(), reason));
    }
    let head = files.info("lm_head.weight");
    if let Some(&n_tokens) = head.and_then(|head| head.shape.first()) {
        *json = json.take().map(|json| json.with("vocab_size", n_tokens));
    }
    Ok(Some(AppliedAdapter {
        directory,
        is_beside: false,
        tensors,
        unread: Vec::new(),
    }))
}
