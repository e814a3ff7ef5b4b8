//! Texts split by every pre-tokenizer name, compared with llama.cpp's tokens.
//!
//! `weights/sweep/gguf_pre_tokenizers.py` asks llama.cpp, and says how the vocabulary is made.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::text::Tokenizer;
use serde::Deserialize;

use crate::gguf_file::{GgufFile, text, texts, whole, wholes};
use crate::weights::{is_present, weights};

#[derive(Deserialize)]
struct Cuts {
    texts: Vec<String>,
    units: BTreeMap<String, Vec<String>>,
    whole: Vec<String>,
    of: Vec<Group>,
}

/// Names by which all texts have the same tokens.
#[derive(Deserialize)]
struct Group {
    names: Vec<String>,
    words: String,
    /// The lengths of each text's tokens in bytes, in base 36.
    lengths: Vec<String>,
}

/// Returns whether llama.cpp's pattern for a name, which it rewrote or matches differently, means the same in a text as the
/// one in `tokenizer.json`.
fn means_the_same(name: &str, text: &str) -> bool {
    match name {
        // llama.cpp has one case for all letters, and only recognizes a word's end after ASCII digits.
        "cohere2moe" | "kimi-k2" | "tiny_aya" | "youtu" => {
            text.is_ascii() && text.to_lowercase() == text
        }
        // The case of ASCII letters alone, and no marks.
        "gpt-4o"
        | "granite-embed-multi-97m"
        | "kanana2"
        | "llama4"
        | "minimax-m2"
        | "talkie"
        | "tekken" => text.is_ascii(),
        // No space but that of ASCII in a range.
        "deepseek-coder" | "deepseek-llm" => !text.contains('\u{3000}'),
        // Two spaces before digits are cut.
        "afmoe" => !text.contains("  "),
        _ => true,
    }
}

/// GPT-2's sign for a byte.
fn sign(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let n_before = (0..byte).filter(|&one| !is_printed(one)).count() as u32;
    match is_printed(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + n_before).unwrap(),
    }
}

struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<u32>,
    merges: Vec<String>,
}

impl Vocabulary {
    fn new(units: &[String], whole: &[String], in_bytes: bool) -> Self {
        let n = units.len() as u64;
        let mut order: Vec<u64> = (0..n * n).collect();
        order.sort_by_key(|i| i * 2_654_435_761 % (1 << 32));
        let pair = |i: &u64| [&units[(i / n) as usize][..], &units[(i % n) as usize]];
        let mut tokens: Vec<String> = ["<s>", "</s>", "<sep>"].map(String::from).into();
        if in_bytes {
            tokens.extend((0..=255).map(|byte| sign(byte).to_string()));
        } else {
            tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
            tokens.extend((1..32).map(|n| "\n".repeat(n)));
            tokens.extend(units.iter().cloned());
        }
        let spelled = |text: &String| match in_bytes {
            true => text.bytes().map(sign).collect(),
            false => text.replace(' ', "▁"),
        };
        let mut known: std::collections::HashSet<String> = tokens.iter().cloned().collect();
        let more = { order.iter() }
            .map(|i| pair(i).concat())
            .chain(whole.iter().map(spelled));
        tokens.extend(more.filter(|token| known.insert(token.clone())));
        let byte = if in_bytes { 1 } else { 6 };
        let kind = |i: usize| match i {
            0..3 => 3,
            3..259 => byte,
            _ => 1,
        };
        Self {
            types: (0..tokens.len()).map(kind).collect(),
            merges: order.iter().map(|i| pair(i).join(" ")).collect(),
            tokens,
        }
    }

    /// Writes a GGUF file with these tokens and a pre-tokenizer's name.
    fn write(&self, path: &Path, name: &str) {
        let mut file = GgufFile::new("llama")
            .key("tokenizer.ggml.model", text("gpt2"))
            .key("tokenizer.ggml.pre", text(name));
        for (i, of) in ["bos", "eos", "seperator"].iter().enumerate() {
            file = file.key(&format!("tokenizer.ggml.{of}_token_id"), whole(i as u32));
        }
        file.key("tokenizer.ggml.tokens", texts(&self.tokens))
            .key("tokenizer.ggml.merges", texts(&self.merges))
            .key("tokenizer.ggml.token_type", wholes(&self.types))
            .write(path);
    }

    /// Returns the lengths of tokens' texts in bytes, in base 36.
    fn lengths(&self, ids: &[u32]) -> String {
        let length = |&id: &u32| match (self.types[id as usize], self.types[3]) {
            (3, _) => 0,
            (6, _) => 1,
            (_, 1) => self.tokens[id as usize].chars().count(), // signs
            _ => self.tokens[id as usize].replace('▁', " ").len(),
        };
        { ids.iter().map(length) }
            .map(|n| char::from_digit(n as u32, 36).unwrap())
            .collect()
    }
}

/// `CANDLE_BLOCKS_CUTS=FILE` uses another file from the script, with more texts.
#[test]
fn every_name_of_a_pre_tokenizer_cuts_texts_as_llama_cpp_does() {
    let given = std::env::var_os("CANDLE_BLOCKS_CUTS").map(PathBuf::from);
    if given.is_none() && !is_present("gguf-words") {
        return;
    }
    let path = given.unwrap_or_else(|| weights("gguf-words/cuts.json"));
    let cuts: Cuts = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let [of_bytes, of_characters] = ["bytes", "characters"].map(|of| {
        let units = &cuts.units[of];
        Vocabulary::new(units, &cuts.whole, of == "bytes")
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.gguf");
    let (mut n_names, mut wrong) = (0, vec![]);
    for group in &cuts.of {
        let vocabulary = match &group.words[..] {
            "bytes" => &of_bytes,
            _ => &of_characters,
        };
        for name in &group.names {
            n_names += 1;
            vocabulary.write(&path, name);
            let tokenizer = Tokenizer::open(&path).unwrap();
            let encoded = tokenizer.encode_all(cuts.texts.iter().map(String::as_str));
            let differing = { cuts.texts.iter().zip(encoded.unwrap()).zip(&group.lengths) }
                .map(|((text, found), expected)| (text, vocabulary.lengths(&found.ids), expected))
                .filter(|(text, ..)| means_the_same(name, text))
                .filter(|(_, found, expected)| !expected.is_empty() && found != *expected);
            let differing: Vec<String> = differing
                .map(|(text, found, expected)| format!("{text:?}: {found}, expected {expected}"))
                .collect();
            if let Some(first) = differing.first() {
                wrong.push(format!(
                    "{name}: {} of {}, {first}",
                    differing.len(),
                    cuts.texts.len()
                ));
            }
        }
    }
    // llama.cpp knows it, and stops the process at a text with a space.
    of_characters.write(&path, "whitespace");
    let message = Tokenizer::open(&path).unwrap_err().to_string();
    assert!(message.contains("\"whitespace\""), "{message}");
    println!("{n_names} names, {} texts", cuts.texts.len());
    assert!(n_names > 80, "{n_names} names");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names whose models compose characters first (NFC), as their `tokenizer.json` or their own class says.
const COMPOSED: [&str; 10] = [
    "command-r",
    "deepseek-r1-qwen",
    "f2llmv2",
    "hunyuan",
    "modern-bert",
    "mpt",
    "olmo",
    "qwen2",
    "qwen35",
    "stablelm2",
];

#[test]
fn text_is_composed_for_the_names_whose_models_do_so_and_for_no_other() {
    if !is_present("gguf-words") {
        return;
    }
    let path = weights("gguf-words/cuts.json");
    let cuts: Cuts = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    // Unicode's composed characters, and their canonical decompositions.
    const PAIRS: [[&str; 2]; 5] = [
        ["\u{e9}", "e\u{301}"],
        ["\u{c5}", "A\u{30a}"],
        ["\u{1ec7}", "e\u{323}\u{302}"],
        ["\u{d55c}", "\u{1112}\u{1161}\u{11ab}"],
        ["\u{3a9}", "\u{2126}"],
    ];
    let vocabulary = Vocabulary::new(&["c", "a"].map(String::from), &[], true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.gguf");
    let mut n_composed = 0;
    let groups = cuts.of.iter().filter(|group| group.words == "bytes");
    for name in groups.flat_map(|group| &group.names) {
        vocabulary.write(&path, name);
        let tokenizer = Tokenizer::open(&path).unwrap();
        let is_composed = COMPOSED.contains(&&name[..]);
        n_composed += usize::from(is_composed);
        for [composed, apart] in PAIRS {
            let [one, other] = [composed, apart].map(|text| {
                let text = format!("caf{text} {text}1");
                tokenizer.encode(&text).unwrap().ids
            });
            assert_eq!(one == other, is_composed, "{name}: {composed}");
        }
    }
    assert_eq!(n_composed, COMPOSED.len());
}
