//! Texts are continued in whole characters, and end before stop strings.

use std::fs;

use candle_blocks::candle_core::Tensor;
use candle_blocks::generate::{Finish, GenerationOptions, Generator, Sampler, Sampling};
use candle_blocks::text::{Prompt, TextGenerator};
use candle_blocks::{Checkpoint, Precision};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::weights::{is_present, weights};

fn checkpoint() -> Option<Checkpoint> {
    is_present("tiny-gpt-text").then(|| Checkpoint::open(weights("tiny-gpt-text")).unwrap())
}

/// The bytes behind a text, as tokens.
fn bytes(
    checkpoint: &Checkpoint,
    text: &str,
    options: GenerationOptions,
    sampler: Sampler,
) -> Vec<u8> {
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = Generator::new(&model, options).unwrap();
    let prompt = text.bytes().map(u32::from).collect();
    let tokens = generator.generate(&[prompt], sampler).unwrap();
    tokens[0].iter().map(|&token| token as u8).collect()
}

#[test]
fn a_text_is_continued_by_the_characters_of_its_tokens() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    // Hot enough for bytes that are no characters.
    for sampling in [Sampling::greedy(), Sampling::at(1.0), Sampling::at(3.0)] {
        let sampler = Sampler::new(sampling.with_seed(5)).unwrap();
        let options = GenerationOptions::default().with_max_new_tokens(90);
        let expected = bytes(&checkpoint, "Anne ", options.clone(), sampler);
        let generator = TextGenerator::new(&checkpoint, &model)
            .unwrap()
            .with_options(options);
        let prompt = generator.prompt("Anne ").unwrap();
        let generation = generator.start(&prompt, sampler).unwrap();
        let pieces: Vec<String> = generation.map(Result::unwrap).collect();
        assert!(pieces.len() > 20);
        assert_eq!(pieces.concat(), String::from_utf8_lossy(&expected));
    }
}

/// Of "é", the first byte alone is no text.
#[test]
fn a_character_comes_with_the_last_of_its_bytes() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let text = "aé→𝄞\u{fffd}z";
    let mut bytes = text.bytes();
    let n = text.len();
    let next = move |_: &candle_blocks::candle_core::Tensor| Ok(vec![bytes.next().unwrap().into()]);
    let options = GenerationOptions::default().with_max_new_tokens(n);
    let generator = TextGenerator::new(&checkpoint, &model)
        .unwrap()
        .with_options(options);
    let prompt = generator.prompt("x").unwrap();
    let pieces = generator.start(&prompt, next).unwrap().map(Result::unwrap);
    let pieces: Vec<String> = pieces.filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["a", "é", "→", "𝄞", "\u{fffd}z"]);
}

#[test]
fn a_text_ends_before_a_stop_string() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = TextGenerator::new(&checkpoint, &model).unwrap();
    let generator = generator.with_options(GenerationOptions::default().with_max_new_tokens(60));
    let whole = generator
        .generate("Sir Walter ", Sampler::greedy())
        .unwrap();
    let stop: String = whole.chars().skip(20).take(4).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let generator = generator.with_stop_strings(&["never this", &stop]);
    let prompt = generator.prompt("Sir Walter ").unwrap();
    let mut generation = generator.start(&prompt, Sampler::greedy()).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, expected);
    assert_eq!(generation.finish(), Some(Finish::Stopped));
    assert_eq!(generation.tokens().len(), expected.len() + stop.len());
}

/// A folder with the model of bytes, whose tokenizer is another one of at most 256 tokens.
fn model_with(tokenizer: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let from = weights("tiny-gpt-text").join(file);
        fs::copy(from, folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("tokenizer.json");
    fs::write(path, tokenizer.to_string()).unwrap();
    folder
}

/// A tokenizer of these tokens that only has to decode; the last is special.
fn decoding(model: &str, decoder: Value, tokens: &[&str]) -> Value {
    let ids: serde_json::Map<String, Value> = (0..)
        .zip(tokens)
        .map(|(id, token)| (token.to_string(), json!(id)))
        .collect();
    let model = match model {
        "BPE" => json!({"type": "BPE", "vocab": ids, "merges": []}),
        "WordPiece" => {
            json!({"type": "WordPiece", "vocab": ids, "unk_token": tokens[0], "continuing_subword_prefix": "##", "max_input_chars_per_word": 100})
        }
        _ => {
            let pieces: Vec<Value> = tokens.iter().map(|token| json!([token, -1.0])).collect();
            json!({"type": "Unigram", "vocab": pieces, "unk_id": 0})
        }
    };
    let last = tokens.len() - 1;
    let special = json!({"id": last, "content": tokens[last], "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
    json!({"version": "1.0", "added_tokens": [special], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder, "model": model})
}

/// Tokenizers whose texts depend on neighboring tokens in different ways.
fn kinds() -> Vec<(&'static str, Value, bool)> {
    // Bytes of é, € and 🦀, one that is in no character, and letters, as a byte-level vocabulary spells them.
    let bytes = [
        "Ã", "©", "â", "Ĥ", "¬", "ð", "Ł", "¦", "Ģ", "ÿ", "a", "Ġb", "Ġ", "</s>",
    ];
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let fallback = [
        "<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>", "<0xF0>", "<0x9F>", "<0xA6>", "<0x80>",
        "<0xFF>", "▁a", "b", "▁", "🦀", "</s>",
    ];
    let llama = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    ]});
    let pieces = [
        "[UNK]", "do", "n", "'", "t", ".", "##x", "it", "s", ",", "##é", "[SEP]",
    ];
    let word_piece = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let unigram = [
        "<unk>", "▁a", "b", "▁", ".", "▁.", "'", "▁'", "s", "▁n't", "</s>",
    ];
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    vec![
        ("byte level", decoding("BPE", byte_level, &bytes), false),
        (
            "byte fallback",
            decoding("BPE", llama.clone(), &fallback),
            false,
        ),
        (
            "byte fallback of Unigram",
            decoding("Unigram", llama, &fallback),
            false,
        ),
        (
            "word pieces",
            decoding("WordPiece", word_piece.clone(), &pieces),
            false,
        ),
        (
            "cleaned word pieces",
            decoding("WordPiece", word_piece, &pieces),
            true,
        ),
        (
            "metaspace",
            decoding("Unigram", metaspace.clone(), &unigram),
            false,
        ),
        (
            "cleaned metaspace",
            decoding("Unigram", metaspace, &unigram),
            true,
        ),
    ]
}

/// Of random tokens, cut into prompt and continuation at every place. What a prompt has of a character that goes on counts to the
/// continuation.
#[test]
fn pieces_add_up_to_the_text_of_all_tokens_for_every_tokenizer_and_cut() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    for (name, tokenizer, cleans) in kinds() {
        let n_tokens = match &tokenizer["model"]["vocab"] {
            Value::Array(pieces) => pieces.len(),
            words => words.as_object().unwrap().len(),
        };
        let folder = model_with(&tokenizer);
        let config = json!({"clean_up_tokenization_spaces": cleans});
        fs::write(
            folder.path().join("tokenizer_config.json"),
            config.to_string(),
        )
        .unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let model = checkpoint.packed_model(Precision::F32).unwrap();
        let generator = TextGenerator::new(&checkpoint, &model).unwrap();
        let decode = |ids: &[u32]| generator.tokenizer().decode(ids).unwrap();
        for round in 0..12 {
            let n = 2 + below(14) as usize;
            // Every second round has a crab, whose bytes are the tokens 5 to 8, now and then.
            let mut ids = Vec::new();
            while ids.len() < n {
                match round % 2 == 0 && below(3) == 0 && name.starts_with("byte") {
                    true => ids.extend(5..9),
                    false => ids.push(below(n_tokens as u64) as u32),
                }
            }
            let whole = decode(&ids);
            for cut in 1..ids.len() {
                let (prompt, rest) = ids.split_at(cut);
                let mut rest_ids = rest.iter();
                let next = move |_: &Tensor| Ok(vec![*rest_ids.next().unwrap()]);
                let options = GenerationOptions::default().with_max_new_tokens(rest.len());
                let generator = generator.clone().with_options(options);
                let prompt = Prompt {
                    ids: prompt.to_vec(),
                };
                let pieces = generator.start(&prompt, next).unwrap();
                let text: String = pieces.map(Result::unwrap).collect();
                let of_prompt = decode(&prompt.ids);
                let same = of_prompt
                    .chars()
                    .zip(whole.chars())
                    .take_while(|(a, b)| a == b);
                let expected: String = whole.chars().skip(same.count()).collect();
                assert_eq!(text, expected, "{name}: {ids:?} cut at {cut}, {whole:?}");
            }
        }
    }
}
