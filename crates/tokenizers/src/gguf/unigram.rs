//! SentencePiece unigram vocabularies: `t5`.

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::Precompiled;

use super::{Around, TokenizerParts, failed, is_filler, part, separator, wanted};
use candle_blocks_base::Result;
use candle_blocks_files::gguf::vocabulary::{GgufTokenizer, SpecialToken, TokenType};

pub(super) fn parts(gguf: &GgufTokenizer) -> Result<TokenizerParts> {
    if gguf.scores.is_empty() {
        return Err(gguf.error("scores", "is missing; convert the model again".to_string()));
    }
    let n = gguf.tokens.len();
    let fillers = (0..n).rev().take_while(|&id| is_filler(gguf, id)).count();
    let scored = (0..n - fillers).map(|id| match (gguf.types[id], is_filler(gguf, id)) {
        // The lowest score belongs to the unknown token, and no text contains this word.
        (_, true) => (format!("\0{}", gguf.tokens[id]), 0.0),
        (TokenType::Control | TokenType::UserDefined | TokenType::Unknown, _) => {
            (gguf.tokens[id].clone(), f64::from(gguf.scores[id].max(0.0)))
        }
        _ => (gguf.tokens[id].clone(), f64::from(gguf.scores[id])),
    });
    let unknown = gguf.id(SpecialToken::Unknown).map(|id| id as usize);
    if let Some(id) = unknown.filter(|id| *id >= n - fillers) {
        let reason = format!("is {id}, which only fills the vocabulary up");
        return Err(gguf.error("unknown_token_id", reason));
    }
    let has_bytes = gguf.types.contains(&TokenType::Byte);
    let model = Unigram::from(scored.collect(), unknown, has_bytes);
    let mut tokenizer = Tokenizer::new(model.map_err(|error| failed(gguf, error))?);
    let is_trimmed = gguf.flag("remove_extra_whitespaces")?.unwrap_or(false);
    let is_marked = gguf.flag("add_space_prefix")?.unwrap_or(false);
    if is_trimmed && !is_marked {
        let reason = "is false or missing, which is not supported where \"tokenizer.ggml.remove_extra_whitespaces\" is true";
        return Err(gguf.error("add_space_prefix", reason.to_string()));
    }
    let scheme = match is_marked {
        true => "always",
        false => "never",
    };
    let marks =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let mut cuts = vec![marks.clone()];
    if is_trimmed {
        cuts.insert(0, json!({"type": "WhitespaceSplit"}));
    }
    if !gguf.charsmap.is_empty() {
        let map = Precompiled::from(&gguf.charsmap).map_err(|error| failed(gguf, error))?;
        let set = tokenizer.with_normalizer(Some(map));
        set.map_err(|error| failed(gguf, error))?;
    }
    let cuts: Value = json!({"type": "Sequence", "pretokenizers": cuts});
    tokenizer.with_pre_tokenizer(Some(part::<tokenizers::PreTokenizerWrapper>(gguf, cuts)?));
    tokenizer.with_decoder(Some(part::<tokenizers::DecoderWrapper>(gguf, marks)?));
    let last = wanted(gguf, "add_eos_token", true, SpecialToken::Eos)?;
    let first = wanted(gguf, "add_bos_token", false, SpecialToken::Bos)?;
    Ok(TokenizerParts {
        tokenizer,
        around: Around {
            first,
            // XLM-R's texts have two tokens between them, and T5's one.
            between: separator(gguf, first.is_some(), last)?,
            last,
            ..Around::default()
        },
    })
}
