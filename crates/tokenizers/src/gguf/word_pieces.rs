//! WordPiece vocabularies: `bert`.

use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;

use super::pairs::with_normalizer;
use super::{Around, TokenizerParts, failed, part};
use candle_blocks_base::Result;
use candle_blocks_files::gguf::vocabulary::{GgufTokenizer, SpecialToken, TokenType};

/// The prefix of tokens inside a word in a `tokenizer.json`.
const INSIDE: &str = "##";

pub(super) fn parts(gguf: &GgufTokenizer) -> Result<TokenizerParts> {
    let unknown = gguf.id(SpecialToken::Unknown).and_then(|id| gguf.text(id));
    let Some(unknown) = unknown else {
        let reason = "is missing, and [UNK] is not a token".to_string();
        return Err(gguf.error("unknown_token_id", reason));
    };
    // llama.cpp takes a lone mark as the beginning of any word, which no WordPiece vocabulary has.
    if let Some(id) = gguf.find("▁").filter(|_| gguf.find("[UNK]").is_none()) {
        let reason = format!(
            "is \"bert\", but token {id} is \"▁\" alone and none is [UNK], as in vocabularies of \"t5\" or \
             \"llama\"; correct the key, or use the model's tokenizer.json"
        );
        return Err(gguf.error("model", reason));
    }
    // GGUF files mark the beginning of a word instead of its continuation.
    let mut vocabulary = Vocab::default();
    for (id, (token, kind)) in gguf.tokens.iter().zip(gguf.settled_types()).enumerate() {
        let is_bracketed = token.starts_with('[') && token.ends_with(']');
        let token = match (kind, token.strip_prefix('▁')) {
            (TokenType::Control | TokenType::Unknown, _) => token.clone(),
            (_, Some(first)) => first.to_string(),
            (_, None) if is_bracketed => token.clone(),
            (_, None) => format!("{INSIDE}{token}"),
        };
        vocabulary.entry(token).or_insert(id as u32);
    }
    if vocabulary.get(unknown).copied() != gguf.id(SpecialToken::Unknown) {
        let reason = format!("is {unknown:?}, a part of words; expected a token such as [UNK]");
        return Err(gguf.error("unknown_token_id", reason));
    }
    let model = WordPiece::builder()
        .vocab(vocabulary)
        .unk_token(unknown.to_string())
        .continuing_subword_prefix(INSIDE.to_string());
    let model = model.build().map_err(|error| failed(gguf, error))?;
    let mut tokenizer = Tokenizer::new(model);
    let lowers = gguf.flag("normalizer.lowercase")?.unwrap_or(true);
    let strips = gguf.flag("normalizer.strip_accents")?;
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": strips, "lowercase": lowers,
    });
    with_normalizer(gguf, &mut tokenizer, normalizer)?;
    let cut = part::<tokenizers::PreTokenizerWrapper>(gguf, json!({"type": "BertPreTokenizer"}))?;
    tokenizer.with_pre_tokenizer(Some(cut));
    let decoder = json!({"type": "WordPiece", "prefix": INSIDE, "cleanup": true});
    tokenizer.with_decoder(Some(part::<tokenizers::DecoderWrapper>(gguf, decoder)?));
    let first = gguf
        .said(SpecialToken::Bos)
        .or(gguf.said(SpecialToken::Cls));
    Ok(TokenizerParts {
        tokenizer,
        around: Around {
            first: first.or(gguf.id(SpecialToken::Cls)),
            between: None,
            last: gguf.id(SpecialToken::Separator),
            begins_again: false,
            second_type: 1,
        },
    })
}
