//! Keys of `tokenizer_config.json` that change how texts become tokens, where transformers' class builds the tokenizer by them.

use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

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

/// Changes a tokenizer as the keys say.
///
/// # Errors
/// If a key has a value of another type.
pub(super) fn configure(inner: &mut tokenizers::Tokenizer, config: &ConfigJson) -> Result<()> {
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
        // The vocabulary of added tokens is normalized anew; ours are read from a valid file.
        let _ = inner.with_normalizer(Some(normalizer));
    }
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
