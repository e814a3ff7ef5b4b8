//! Keys in `tokenizer_config.json`: those that nothing reads, and the cleanup of spaces that one of them enables.

use crate::tokenizer_class::TokenizerClass;
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;

/// Keys that are read here or elsewhere, or that change neither the tokens nor the texts of a `tokenizer.json`.
const KNOWN: [&str; 40] = [
    "_commit_hash",
    "add_bos_token", // transformers leaves this to tokenizer.json
    "add_eos_token",
    "added_tokens_decoder",
    "additional_special_tokens",
    "auto_map",
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "device_map",
    "do_basic_tokenize",
    "errors",
    "extra_ids",
    "extra_special_tokens",
    "files_loaded",
    "init_inputs",
    "is_local",
    "local_files_only",
    "max_len",
    "max_length",
    "model_input_names",
    "model_max_length",
    "name_or_path",
    "never_split",
    "pad_to_multiple_of",
    "pad_token_type_id",
    "padding_side", // which lengthens the queries of ColBERT
    "processor_class",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "special_tokens_map_file",
    "split_special_tokens",
    "stride",
    "tgt_lang", // transformers reads it for target texts
    "tokenizer_class",
    "tokenizer_file",
    "truncation_side",
    "truncation_strategy",
    "use_fast",
];

/// Keys that name one special token each, which chat templates use.
pub(crate) const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Keys for classes that build a tokenizer's parts. Other classes ignore them, also in transformers.
const OF_CLASSES: [&str; 23] = [
    "add_prefix_space",
    "clean_text",
    "do_clean_text",
    "do_lower_case",
    "keep_accents",
    "language_codes",
    "legacy",
    "legacy_behaviour",
    "mask_token_sent",
    "normalization",
    "normalize",
    "offset",
    "predict_timestamps",
    "remove_space",
    "source_lang",
    "split_by_punct",
    "src_lang",
    "strip_accents",
    "task",
    "tokenize_chinese_chars",
    "trim_offsets",
    "unk_id",
    "wordpieces_prefix",
];

/// Returns the keys that nothing reads and that are not known to change nothing.
pub(crate) fn unread(config: &ConfigJson, class: &TokenizerClass) -> Vec<String> {
    let is_known = |key: &str| match OF_CLASSES.contains(&key) {
        true => !class.is_unknown(),
        false => KNOWN.contains(&key) || key.ends_with("_token"),
    };
    let entries = config
        .entries()
        .filter(|(key, value)| !value.is_null() && !is_known(key));
    entries.map(|(key, _)| key.clone()).collect()
}

/// Returns whether a key names the left side; `None` if the file does not have it.
///
/// # Errors
/// If it names another side than left or right.
#[doc(hidden)]
pub fn is_left(json: &ConfigJson, key: &str) -> Result<Option<bool>> {
    match json.text(&[key])?.as_deref() {
        None => Ok(None),
        Some("left") => Ok(Some(true)),
        Some("right") => Ok(Some(false)),
        Some(other) => {
            let reason = format!("found {other:?}, expected \"left\" or \"right\"");
            Err(json.error(&[key], reason))
        }
    }
}

/// Returns a text after transformers' `clean_up_tokenization`: without spaces before punctuation and English endings.
pub(crate) fn cleaned(text: &str) -> String {
    const ENDINGS: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    let text = text.to_string();
    ENDINGS
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}
