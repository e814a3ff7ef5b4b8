//! SentencePiece BPE vocabularies: `llama`, merged in the order of scores.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};

use super::pairs::with_normalizer;
use super::{Around, TokenizerParts, failed, is_filler, part, separator, wanted};
use candle_blocks_base::Result;
use candle_blocks_files::gguf::vocabulary::{GgufTokenizer, SpecialToken, TokenType};

pub(super) fn parts(gguf: &GgufTokenizer) -> Result<TokenizerParts> {
    if gguf.scores.is_empty() {
        return Err(gguf.error("scores", "is missing; convert the model again".to_string()));
    }
    if !gguf.has_types {
        let reason = "is missing; convert the model again".to_string();
        return Err(gguf.error("token_type", reason));
    }
    let kept = { gguf.tokens.iter().enumerate() }.filter(|(id, _)| !is_filler(gguf, *id));
    let vocabulary: Vec<(&str, u32)> = kept.map(|(id, token)| (&token[..], id as u32)).collect();
    let merges = merges(&vocabulary, &gguf.scores);
    let owned = vocabulary
        .iter()
        .map(|(token, id)| (token.to_string(), *id));
    let has_bytes = gguf.types.contains(&TokenType::Byte);
    let mut model = BPE::builder()
        .vocab_and_merges(owned.collect::<Vocab>(), merges)
        .byte_fallback(has_bytes)
        .fuse_unk(true);
    if let Some(unknown) = gguf.id(SpecialToken::Unknown).and_then(|id| gguf.text(id)) {
        model = model.unk_token(unknown.to_string());
    }
    let model = model.build().map_err(|error| failed(gguf, error))?;
    let mut tokenizer = Tokenizer::new(model);
    let has_prefix = gguf.flag("add_space_prefix")?.unwrap_or(true);
    let marks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let first = json!({"type": "Prepend", "prepend": "▁"});
    let normalizers: Vec<Value> = has_prefix
        .then_some(first)
        .into_iter()
        .chain([marks])
        .collect();
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    with_normalizer(gguf, &mut tokenizer, normalizer)?;
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if has_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    tokenizer.with_decoder(Some(part::<tokenizers::DecoderWrapper>(gguf, decoder)?));
    let last = wanted(gguf, "add_eos_token", false, SpecialToken::Eos)?;
    Ok(TokenizerParts {
        tokenizer,
        around: Around {
            first: wanted(gguf, "add_bos_token", true, SpecialToken::Bos)?,
            between: separator(gguf, false, last)?,
            last,
            begins_again: true,
            ..Around::default()
        },
    })
}

/// Returns all pairs of tokens that form a token, in descending order of score: transformers' `generate_merges`.
fn merges(vocabulary: &[(&str, u32)], scores: &[f32]) -> Vec<(String, String)> {
    let ids: HashMap<&str, u32> = vocabulary.iter().copied().collect();
    let mut all = Vec::new();
    for &(word, id) in vocabulary {
        let score = scores[id as usize];
        let start = all.len();
        for (at, _) in word.char_indices().skip(1) {
            let (one, other) = word.split_at(at);
            if let (Some(&first), Some(&second)) = (ids.get(one), ids.get(other)) {
                let lengths = [one, other].map(|part| part.chars().count());
                all.push(((first, second), (score, lengths), (one, other)));
            }
        }
        all[start..].sort_by_key(|(ids, ..)| *ids);
    }
    all.sort_by(|(_, (a, a_lengths), _), (_, (b, b_lengths), _)| {
        b.total_cmp(a).then_with(|| b_lengths.cmp(a_lengths))
    });
    let pair = |(_, _, (one, other)): (_, _, (&str, &str))| (one.to_string(), other.to_string());
    all.into_iter().map(pair).collect()
}
