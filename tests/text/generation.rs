//! Texts are continued in whole characters, and end with stop strings.

use std::fs;
use std::sync::Arc;

use candle_blocks::candle_core::{Device, Tensor, safetensors};
use candle_blocks::generate::{Finish, GenerationOptions, Generator, Sampler, Sampling};
use candle_blocks::text::{Pooling, Prompt, TextGenerator, TextOptions, Tokenizer};
use candle_blocks::{Checkpoint, Precision, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::weights::{is_present, weights};

fn checkpoint() -> Option<Checkpoint> {
    is_present("tiny-gpt-text").then(|| Checkpoint::open(weights("tiny-gpt-text")).unwrap())
}

/// Returns the bytes generated after a text, as tokens.
fn bytes(
    checkpoint: &Checkpoint,
    text: &str,
    options: GenerationOptions,
    sampler: Sampler,
) -> Vec<u8> {
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
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
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
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

/// The first byte of "é" alone is not text.
#[test]
fn a_character_comes_with_the_last_of_its_bytes() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
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

/// Follows transformers' `TextGenerationPipeline`; `prefix` is a key in every configuration.
#[test]
fn the_prefix_of_a_configuration_comes_before_a_text() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "tokenizer.json"] {
        let from = weights("tiny-gpt-text").join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    let config = std::fs::read(weights("tiny-gpt-text").join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["prefix"] = "She was ".into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let generated = |checkpoint: &Checkpoint, text: &str| {
        let model = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        let generator = TextGenerator::new(checkpoint, &model).unwrap();
        let options = generator.options().clone().with_max_new_tokens(8);
        let generator = generator.with_options(options);
        let prompt = generator.prompt(text).unwrap().ids;
        (prompt, generator.generate(text, Sampler::greedy()).unwrap())
    };
    let plain = Checkpoint::open(weights("tiny-gpt-text")).unwrap();
    let prefixed = Checkpoint::open(folder.path()).unwrap();
    let expected = generated(&plain, "She was not");
    assert_eq!(generated(&prefixed, "not"), expected);
    assert_ne!(generated(&plain, "not"), expected);
}

/// Returns the text, the number of tokens and the end of a generation.
fn ended(generator: &TextGenerator, prompt: &str) -> (String, usize, Option<Finish>) {
    let prompt = generator.prompt(prompt).unwrap();
    let mut generation = generator.start(&prompt, Sampler::greedy()).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    (text, generation.tokens().len(), generation.finish())
}

/// transformers' `stop_strings`: the token that completes one is the last, and may have begun in the prompt.
#[test]
fn a_text_ends_with_a_stop_string_of_the_caller_or_of_the_options() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let options = GenerationOptions::default().with_max_new_tokens(60);
    let with = |strings: &[&str]| {
        let generator = TextGenerator::new(&checkpoint, &model).unwrap();
        let own = strings.iter().map(|string| string.to_string()).collect();
        let of_options = GenerationOptions {
            stop_strings: own,
            ..options.clone()
        };
        let said = ended(&generator.clone().with_options(of_options), "Sir Walter ");
        // The caller's replace those of the options, in any order of the calls.
        let other = GenerationOptions {
            stop_strings: vec!["e".to_string()],
            ..options.clone()
        };
        let generator = generator.with_stop_strings(strings).with_options(other);
        assert_eq!(ended(&generator, "Sir Walter "), said);
        said
    };
    let (whole, n, finish) = with(&[]);
    assert_eq!((n, finish), (60, Some(Finish::MaxNewTokens)));
    let stop: String = whole.chars().skip(20).take(4).collect();
    let expected = &whole[..whole.find(&stop).unwrap() + stop.len()];
    let end = Some(Finish::StopString);
    assert_eq!(
        with(&["never this", &stop]),
        (expected.to_string(), expected.len(), end)
    );
    let first = whole.chars().next().unwrap().to_string();
    assert_eq!(with(&[&format!("ter {first}")]), (first, 1, end));
}

/// A text has no special tokens, but its stop strings do.
#[test]
fn a_stop_string_that_is_a_special_token_ends_the_text() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let greedy = |checkpoint: &Checkpoint, strings: &[&str]| {
        let model = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        let options = GenerationOptions::default().with_max_new_tokens(30);
        let generator = TextGenerator::new(checkpoint, &model).unwrap();
        let generator = generator.with_options(options).with_stop_strings(strings);
        let prompt = generator.prompt("Sir Walter ").unwrap();
        let mut generation = generator.start(&prompt, Sampler::greedy()).unwrap();
        let text: String = generation.by_ref().map(Result::unwrap).collect();
        (generation.tokens().to_vec(), text)
    };
    let (tokens, _) = greedy(&checkpoint, &[]);
    let special = tokens[9];
    let n = tokens.iter().position(|&token| token == special).unwrap() + 1;
    let file = fs::read(weights("tiny-gpt-text").join("tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&file).unwrap();
    let words = file["model"]["vocab"].as_object_mut().unwrap();
    words.retain(|_, id| *id != special);
    words.insert("<|user|>".to_string(), special.into());
    file["added_tokens"] = json!([{"id": special, "content": "<|user|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}]);
    let folder = model_with(&file, 256);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let (ended, text) = greedy(&checkpoint, &["<|user|>"]);
    assert_eq!(ended, tokens[..n]);
    assert!(!text.contains("user"), "{text}");
    assert_eq!(greedy(&checkpoint, &[]).0, tokens);
}

/// A rotary model computes on, as in transformers, which prints a reminder.
#[test]
fn a_sequence_beyond_the_context_length_has_a_note_with_both_lengths() {
    if !is_present("families") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let from = weights("families/llama");
    let config = fs::read(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    fs::copy(
        from.join("model.safetensors"),
        folder.path().join("model.safetensors"),
    )
    .unwrap();
    for key_of_length in ["max_position_embeddings", "max_seq_len"] {
        let entries = config.as_object_mut().unwrap();
        for key in ["max_position_embeddings", "max_seq_len"] {
            entries.remove(key);
        }
        entries.insert(key_of_length.to_string(), 8.into());
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.context_length().unwrap(), Some(8));
        let options = GenerationOptions::of(&checkpoint).unwrap();
        let model = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        for (n, words) in [(4, None), (5, Some("9 tokens"))] {
            let options = GenerationOptions {
                stop_tokens: Vec::new(),
                ..options.clone().with_max_new_tokens(n)
            };
            let generator = Generator::new(&model, options).unwrap();
            // Padding does not count.
            let mut generation = generator
                .start(&[vec![1, 2, 3, 4], vec![5]], Sampler::greedy())
                .unwrap();
            generation.by_ref().for_each(|step| drop(step.unwrap()));
            let note = generation.beyond_context();
            match words {
                None => assert_eq!(note, None),
                Some(words) => {
                    let note = note.unwrap();
                    assert!(
                        note.contains(words) && note.contains("context length is 8"),
                        "{note}"
                    );
                }
            }
        }
    }
}

/// Returns a folder with the byte-level model and another tokenizer with this number of tokens.
fn model_with(tokenizer: &Value, n_tokens: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = |file: &str| weights("tiny-gpt-text").join(file);
    let to = |file: &str| folder.path().join(file);
    let mut tensors = safetensors::load(from("model.safetensors"), &Device::Cpu).unwrap();
    let words = tensors
        .values_mut()
        .filter(|tensor| tensor.dims().first() == Some(&256) && tensor.rank() == 2);
    for words in words {
        let more = n_tokens.saturating_sub(256);
        *words = words.pad_with_zeros(0, 0, more).unwrap();
    }
    safetensors::save(&tensors, to("model.safetensors")).unwrap();
    let config = fs::read(from("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = n_tokens.max(256).into();
    fs::write(to("config.json"), config.to_string()).unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(path, tokenizer.to_string()).unwrap();
    folder
}

/// Returns a tokenizer with these tokens that only has to decode; the last one is special.
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

/// Returns the tokenizers beside committed models, and those in the reference file.
fn committed() -> Vec<(String, Value, bool)> {
    let folders = [
        "text/ranker",
        "text/t5",
        "text/last",
        "tiny-gpt-text",
        "gguf-words/pairs",
        "gguf-words/pieces",
        "gguf-words/scores",
        "gguf-words/unigram",
    ];
    let folders = folders.into_iter().filter(|name| is_present(name));
    let read = |name: &str| {
        let json = fs::read(weights(name).join("tokenizer.json")).unwrap();
        (name.to_string(), serde_json::from_slice(&json).unwrap())
    };
    let of_reference = crate::tokenizers::kinds();
    let of_reference = of_reference.as_object().unwrap().clone().into_iter();
    let all = folders.map(read).chain(of_reference);
    all.flat_map(|(name, json)| [(name.clone(), json.clone(), false), (name, json, true)])
        .collect()
}

/// A text whose tokens include characters from several bytes, words and punctuation.
const SAMPLE: &str = "The boats do n't lie , it 's \u{e9}\u{2192}\u{6f22}\u{5b57} \u{1f642}\u{1f980}  . x ! it is hello  world ' it";

/// Random tokens are split into prompt and continuation at every place. The part of a character in the prompt counts as part
/// of the continuation.
#[test]
fn pieces_add_up_to_the_text_of_all_tokens_for_every_tokenizer_and_cut() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let mut random = 1u64;
    let mut below = |n: usize| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) as usize % n
    };
    let small = kinds().into_iter();
    let small = small.map(|(name, json, cleans)| (name.to_string(), json, cleans, 12));
    let committed = committed().into_iter();
    let committed = committed.map(|(name, json, cleans)| (name, json, cleans, 5));
    let (mut n_cuts, mut wrong) = (0, Vec::new());
    for (name, json, cleans, rounds) in small.chain(committed) {
        let file = tempfile::tempdir().unwrap();
        fs::write(file.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(file.path()).unwrap();
        let n_tokens = tokenizer.inner().get_vocab_size(true);
        let mut config = json!({"clean_up_tokenization_spaces": cleans});
        // And tokens that only the file beside adds, which are no special ones.
        let added = ["<extra>", " \u{e9}<x> "].into_iter().filter(|_| cleans);
        let added = (n_tokens..).zip(added).map(|(id, content)| {
            let token = json!({"content": content, "special": false, "normalized": false});
            (id.to_string(), token)
        });
        config["added_tokens_decoder"] = Value::Object(added.collect());
        let n_tokens = n_tokens + if cleans { 2 } else { 0 };
        let sample = tokenizer.encode(SAMPLE).map_or(Vec::new(), |text| text.ids);
        let folder = model_with(&json, n_tokens);
        let path = folder.path().join("tokenizer_config.json");
        fs::write(path, config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let model = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        let generator = TextGenerator::new(&checkpoint, &model).unwrap();
        let decode = |ids: &[u32]| generator.tokenizer().decode(ids).unwrap();
        for round in 0..rounds {
            let n = 2 + below(14);
            let mut ids: Vec<u32> = Vec::new();
            while ids.len() < n {
                match below(3) {
                    // The bytes of a crab.
                    0 if round % 2 == 0 && name.starts_with("byte ") => ids.extend(5..9),
                    1 if sample.len() > 4 => {
                        let from = below(sample.len() - 4);
                        ids.extend(&sample[from..from + 1 + below(4)]);
                    }
                    2 if cleans && below(3) == 0 => ids.push((n_tokens - 1 - below(2)) as u32),
                    _ => ids.push(below(n_tokens) as u32),
                }
            }
            let whole = decode(&ids);
            for cut in 1..ids.len() {
                n_cuts += 1;
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
                if text != expected {
                    wrong.push(format!(
                        "{name} {cleans}: {ids:?} cut at {cut}: {text:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {n_cuts} cuts:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

/// Keeps a generator in a struct that threads share.
struct Server {
    generator: TextGenerator,
}

#[test]
fn a_generator_that_owns_its_model_is_shared_among_threads() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let borrowed = TextGenerator::new(&checkpoint, &model).unwrap();
    let options = borrowed.options().clone().with_max_new_tokens(20);
    let borrowed = borrowed.with_options(options.clone());
    let opened = TextGenerator::open(weights("tiny-gpt-text")).unwrap();
    let server = Arc::new(Server {
        generator: opened.with_options(options),
    });
    let texts = ["Sir Walter ", "Anne "];
    let started = texts.map(|text| {
        let server = server.clone();
        std::thread::spawn(move || server.generator.generate(text, Sampler::greedy()).unwrap())
    });
    for (text, thread) in texts.into_iter().zip(started) {
        let expected = borrowed.generate(text, Sampler::greedy()).unwrap();
        assert_eq!(thread.join().unwrap(), expected);
    }
}

#[test]
fn options_for_vectors_are_refused_where_text_is_generated() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let path = weights("tiny-gpt-text");
    for (options, name) in [
        (TextOptions::default().max_length(8), "max_length"),
        (TextOptions::default().normalize(true), "normalize"),
        (TextOptions::default().pooling([Pooling::Mean]), "pooling"),
    ] {
        let refused = options.generator(&path).unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
    }
}
