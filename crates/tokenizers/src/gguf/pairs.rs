//! BPE vocabularies: `gpt2`, with GPT-2's byte characters or with plain characters.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};

use super::{
    Also, Around, PreTokenizer, TokenizerParts, failed, is_filler, part, separator, wanted,
};
use candle_blocks_base::Result;
use candle_blocks_files::gguf::vocabulary::{GgufTokenizer, SpecialToken};

pub(super) fn parts(gguf: &GgufTokenizer) -> Result<TokenizerParts> {
    let name = match (&gguf.model[..], &gguf.pre) {
        ("gemma4", _) => "gemma4",
        (_, Some(name)) => name,
        (_, None) => "default",
    };
    let pre = PreTokenizer::named(name).ok_or_else(|| {
        let reason = format!(
            "is {name:?}, which is unknown; known are {}. Give token ids instead of texts, or use \
             the model's tokenizer.json",
            PreTokenizer::listed()
        );
        gguf.error("pre", reason)
    })?;
    let is_marked = pre.is(Also::Marked);
    let vocabulary: Vec<(String, u32)> = { gguf.tokens.iter().enumerate() }
        .filter(|(id, _)| !is_filler(gguf, *id))
        .map(|(id, token)| (token.clone(), id as u32))
        .collect();
    let merges = merges(gguf)?;
    let known: HashMap<&str, u32> = { vocabulary.iter() }
        .map(|(token, id)| (&token[..], *id))
        .collect();
    // Merges of tokens that the vocabulary lacks have no effect.
    let is_known = |(one, other): &(String, String)| {
        let both = format!("{one}{other}");
        [one, other, &both]
            .into_iter()
            .all(|word| known.contains_key(&word[..]))
    };
    let breaks = match pre.is(Also::WholeBreaks) {
        true => line_breaks(&known),
        false => Vec::new(),
    };
    let merges = merges.into_iter().filter(is_known).chain(breaks).collect();
    let unknown = gguf.id(SpecialToken::Unknown).and_then(|id| gguf.text(id));
    let mut model = BPE::builder()
        .vocab_and_merges(vocabulary.into_iter().collect::<Vocab>(), merges)
        .ignore_merges(pre.is(Also::WholeWords));
    if is_marked {
        model = model.byte_fallback(true).fuse_unk(true);
        if let Some(unknown) = unknown {
            model = model.unk_token(unknown.to_string());
        }
    }
    let model = model.build().map_err(|error| failed(gguf, error))?;
    let mut tokenizer = Tokenizer::new(model);
    let cuts = pre.cuts.iter().map(|cut| {
        json!({"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": false})
    });
    let mut cuts: Vec<Value> = cuts.collect();
    let decoder = if is_marked {
        let marks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        with_normalizer(gguf, &mut tokenizer, marks)?;
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]})
    } else {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        cuts.push(bytes.clone());
        bytes
    };
    if pre.is(Also::Composed) {
        with_normalizer(gguf, &mut tokenizer, json!({"type": "NFC"}))?;
    }
    let cuts = json!({"type": "Sequence", "pretokenizers": cuts});
    tokenizer.with_pre_tokenizer(Some(part::<tokenizers::PreTokenizerWrapper>(gguf, cuts)?));
    tokenizer.with_decoder(Some(part::<tokenizers::DecoderWrapper>(gguf, decoder)?));
    // Gemma's files say no, but llama.cpp does it anyway.
    let first = match name {
        "gemma4" => gguf.id(SpecialToken::Bos),
        _ => wanted(
            gguf,
            "add_bos_token",
            pre.is(Also::Begun),
            SpecialToken::Bos,
        )?,
    };
    let last = wanted(gguf, "add_eos_token", false, SpecialToken::Eos)?;
    let between = separator(gguf, pre.is(Also::Separated), last)?;
    Ok(TokenizerParts {
        tokenizer,
        around: Around {
            first,
            between,
            last,
            begins_again: true,
            second_type: 0,
        },
    })
}

/// Sets the normalizer.
pub(super) fn with_normalizer(
    gguf: &GgufTokenizer,
    tokenizer: &mut Tokenizer,
    described: Value,
) -> Result<()> {
    let normalizer = part::<tokenizers::NormalizerWrapper>(gguf, described)?;
    let set = tokenizer.with_normalizer(Some(normalizer));
    set.map(drop).map_err(|error| failed(gguf, error))
}

/// Returns all merges of line breaks, the shortest first, so that each run of line breaks that is a token becomes that
/// token.
fn line_breaks(known: &HashMap<&str, u32>) -> Vec<(String, String)> {
    let breaks = |n: usize| "\n".repeat(n);
    let n_most = (1..)
        .take_while(|&n| known.contains_key(&breaks(n)[..]))
        .count();
    let pairs = (2..=n_most).flat_map(|n| (1..n).map(move |first| (first, n - first)));
    pairs
        .map(|(one, other)| (breaks(one), breaks(other)))
        .collect()
}

/// Returns the merges in order. The first token in a merge may begin with a space.
fn merges(gguf: &GgufTokenizer) -> Result<Vec<(String, String)>> {
    let pair = |merge: &String| {
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let (_, rest) = merge.split_at(first);
        match rest.split_once(' ') {
            Some((_, second)) if !second.is_empty() => {
                let one = merge[..merge.len() - second.len() - 1].to_string();
                Ok((one, second.to_string()))
            }
            _ => {
                let reason =
                    format!("contains {merge:?}, expected two tokens with a space between");
                Err(gguf.error("merges", reason))
            }
        }
    };
    match gguf.merges.is_empty() {
        true => Err(gguf.error("merges", "is missing; convert the model again".to_string())),
        false => gguf.merges.iter().map(pair).collect(),
    }
}
