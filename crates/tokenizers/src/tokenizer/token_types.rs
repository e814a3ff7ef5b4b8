//! Determines whether a tokenizer returns token types, which tell the two texts of a pair apart.

use crate::Tokenizer;
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;

/// The tokenizer classes in transformers 5 that return token types even if `model_input_names` does not list them.
const CLASSES: [&str; 11] = [
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "ElectraTokenizer",
    "FNetTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
];
/// The model types that use one of these tokenizers if no class is named.
const MODEL_TYPES: [&str; 13] = [
    "bert",
    "convbert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "dpr",
    "electra",
    "ernie",
    "fnet",
    "gte",
    "megatron-bert",
    "new",
    "nomic_bert",
];

/// Returns whether the tokenizer returns token types, from `tokenizer_config.json` or else from the `config.json` beside it.
///
/// # Errors
/// If a key has a wrong type.
#[doc(hidden)]
pub fn are_given(tokenizer: &Tokenizer, config: Option<&ConfigJson>) -> Result<bool> {
    if let Some(json) = tokenizer.config()
        && let Some(names) = json.texts(&["model_input_names"])?
    {
        return Ok(names.iter().any(|name| name == "token_type_ids"));
    }
    for json in [tokenizer.config(), config].into_iter().flatten() {
        if let Some(class) = json.text(&["tokenizer_class"])? {
            let class = class.strip_suffix("Fast").unwrap_or(&class);
            return Ok(CLASSES.contains(&class));
        }
    }
    let model_type = config.map(|json| json.text(&["model_type"])).transpose()?;
    Ok(model_type
        .flatten()
        .is_none_or(|name| MODEL_TYPES.contains(&name.as_str())))
}
