//! Keys of `tokenizer_config.json` that change how texts become tokens, where transformers' class builds the tokenizer by them.

use serde_json::{Value, json};
use tokenizers::{DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// Classes, without "Fast", whose normalizer is BERT's with the settings of the configuration.
const LIKE_BERT: [&str; 8] = [
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MPNetTokenizer",
    "MobileBertTokenizer",
];

/// Classes, without "Fast", whose byte-level split takes `add_prefix_space` from the configuration.
const LIKE_GPT2: [&str; 11] = [
    "BartTokenizer",
    "BlenderbotTokenizer",
    "CodeGenTokenizer",
    "DebertaTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "Qwen2Tokenizer",
    "RobertaTokenizer",
    "WhisperTokenizer",
];

/// Keys that are read here or in another place, or change neither tokens nor texts of a `tokenizer.json`.
const KNOWN: [&str; 44] = [
    "_commit_hash",
    "add_bos_token", // transformers leaves this to tokenizer.json
    "add_eos_token",
    "add_prefix_space",
    "added_tokens_decoder",
    "additional_special_tokens",
    "auto_map",
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "device_map",
    "do_basic_tokenize",
    "do_lower_case",
    "errors",
    "extra_ids",
    "extra_special_tokens",
    "files_loaded",
    "init_inputs",
    "is_local",
    "legacy",
    "local_files_only",
    "max_len",
    "max_length",
    "model_input_names",
    "model_max_length",
    "name_or_path",
    "never_split",
    "pad_to_multiple_of",
    "pad_token_type_id",
    "padding_side",
    "processor_class",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "special_tokens_map_file",
    "split_special_tokens",
    "stride",
    "strip_accents",
    "tokenize_chinese_chars",
    "tokenizer_class",
    "tokenizer_file",
    "truncation_side",
    "truncation_strategy",
    "use_fast",
];

/// Keys that name one special token each, which chat templates use.
pub(super) const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Returns the keys that nothing reads and that are not known to change nothing.
pub(super) fn unread(config: &ConfigJson) -> Vec<String> {
    let keys = config
        .keys()
        .filter(|key| !KNOWN.contains(key) && !key.ends_with("_token"));
    keys.map(str::to_string).collect()
}

/// Changes a tokenizer as the keys say, for a model of this `model_type`.
///
/// # Errors
/// If a key has a value of another type.
pub(super) fn configure(
    inner: &mut tokenizers::Tokenizer,
    config: &ConfigJson,
    model_type: Option<&str>,
) -> Result<()> {
    if config.flag(&["split_special_tokens"], false)? {
        inner.set_encode_special_tokens(true);
    }
    let class = config.text(&["tokenizer_class"])?.unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(&class);
    if LIKE_GPT2.contains(&class)
        && let Some(adds) = config.parsed::<bool>("add_prefix_space")?
        && let Some(mut split) = inner.get_pre_tokenizer().cloned()
    {
        add_prefix_space(&mut split, adds);
        inner.with_pre_tokenizer(Some(split));
    }
    if class == "LlamaTokenizer" && matches!(model_type, None | Some("llama")) {
        like_llama(inner, config)?;
    }
    if LIKE_BERT.contains(&class)
        && let Some(NormalizerWrapper::BertNormalizer(normalizer)) = inner.get_normalizer()
    {
        let mut normalizer = *normalizer;
        let lowers = config.parsed::<bool>("do_lower_case")?;
        normalizer.lowercase = lowers.unwrap_or(normalizer.lowercase);
        let splits = config.parsed::<bool>("tokenize_chinese_chars")?;
        normalizer.handle_chinese_chars = splits.unwrap_or(normalizer.handle_chinese_chars);
        let strips = config.parsed::<bool>("strip_accents")?;
        normalizer.strip_accents = strips.or(normalizer.strip_accents);
        // It fails only of added tokens that the normalizer refuses, which none does.
        let _ = inner.with_normalizer(Some(normalizer));
    }
    Ok(())
}

/// Marks words as `LlamaTokenizer` does, whatever way `tokenizer.json` has: by default a space is put before the first word of a text
/// alone, and behind special tokens none. A byte-level tokenizer of this class stays as it is.
fn like_llama(inner: &mut tokenizers::Tokenizer, config: &ConfigJson) -> Result<()> {
    let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
    let parts = json!([inner.get_pre_tokenizer(), inner.get_decoder()]);
    if !is_bpe || parts.to_string().contains("\"ByteLevel\"") {
        return Ok(());
    }
    let has_prefix = config.parsed::<bool>("add_prefix_space")?.unwrap_or(true);
    let scheme = match (has_prefix, config.flag(&["legacy"], false)?) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    let split =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    decoders.extend(has_prefix.then_some(strip));
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    let fail = |error: serde_json::Error| config.error(&["tokenizer_class"], error.to_string());
    let part = |value: Value| serde_json::from_value::<PreTokenizerWrapper>(value).map_err(fail);
    inner.with_pre_tokenizer(Some(part(split)?));
    let decoder = serde_json::from_value::<DecoderWrapper>(decoder).map_err(fail)?;
    inner.with_decoder(Some(decoder));
    let _ = inner.with_normalizer(None::<NormalizerWrapper>); // as for BERT's below
    Ok(())
}

fn add_prefix_space(split: &mut PreTokenizerWrapper, adds: bool) {
    match split {
        PreTokenizerWrapper::ByteLevel(bytes) => bytes.add_prefix_space = adds,
        PreTokenizerWrapper::Sequence(all) => {
            for one in all.as_mut() {
                add_prefix_space(one, adds);
            }
        }
        _ => {}
    }
}

/// Returns a text as transformers' `clean_up_tokenization` leaves it: without spaces before punctuation and English endings.
pub(super) fn cleaned(text: &str) -> String {
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
