//! The tokenizer in a GGUF file beside the model's own `tokenizer.json`: equal ids for generated strings.
//!
//! `weights/fixtures/gguf_words.py` writes both, from tokenizers that it trains or is given. The committed ones are tiny.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::text::Tokenizer;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokenizers::AddedToken;

use crate::weights::{is_present, weights};

const SIGNS: [&str; 34] = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    "\u{0}",
    "'s",
    "'LL",
    "'ve",
    "'ſ",
    "3",
    "42",
    "1234567",
    "²",
    "٣",
    "-",
    "--",
    ".",
    "...",
    "!?",
    "\"",
    "#",
    "##",
    "_",
    "▁",
    "e\u{301}",
    "👩‍👧",
    "🇫🇷",
    "\u{fffd}",
];
/// Scripts whose letters are used.
const SCRIPTS: [(u32, u32); 14] = [
    (0x20, 0x7e),
    (0x61, 0x7a),
    (0x41, 0x5a),
    (0xa1, 0x17f),
    (0x300, 0x32f),
    (0x391, 0x3c9),
    (0x410, 0x44f),
    (0x5d0, 0x5ea),
    (0x621, 0x64a),
    (0x905, 0x94d),
    (0x3041, 0x3093),
    (0x4e00, 0x4fff),
    (0xac00, 0xac80),
    (0x1f600, 0x1f640),
];

/// Returns a random string with the tokenizer's words, letters from some script, and signs that tokenizers treat specially.
fn string(words: &[String], rng: &mut StdRng) -> String {
    let mut text = String::new();
    for _ in 0..rng.random_range(0..12) {
        match rng.random_range(0..10) {
            0..4 => {
                let word = words.choose(rng).map_or("", String::as_str);
                text.push_str(&word.replace(['▁', 'Ġ'], " ").replace("##", ""));
            }
            4..7 => text.push_str(SIGNS.choose(rng).unwrap()),
            7 => text.push(' '),
            _ => {
                let &(first, last) = SCRIPTS.choose(rng).unwrap();
                for _ in 0..rng.random_range(1..6) {
                    text.extend(char::from_u32(rng.random_range(first..=last)));
                }
            }
        }
    }
    text
}

/// The strings that give different results in a tokenizer's two files.
#[derive(Default)]
struct Differences {
    /// The number with different ids, or whose ids decode to another text.
    n: usize,
    /// The first such string.
    first: String,
    /// The number with the same ids that decode to another text because `tokenizer.json` shows a token that the GGUF file
    /// calls a control token: llama.cpp's converter does so for every added token whose text is `<|..|>` or `<｜..｜>`.
    n_hidden: usize,
    /// These tokens' texts.
    hidden: BTreeSet<String>,
}

fn differences(folder: &Path, n: usize, seed: u64) -> Differences {
    let [own, of_file] = ["", "words.gguf"].map(|name| Tokenizer::open(folder.join(name)).unwrap());
    let mut words: Vec<String> = own.inner().get_vocab(true).into_keys().collect();
    words.sort();
    let [of_own, of_gguf] =
        [&own, &of_file].map(|tokenizer| tokenizer.inner().get_added_tokens_decoder());
    let is_hidden = |id: &u32| {
        let is_special = |of: &AddedToken| of.special;
        of_gguf.get(id).is_some_and(is_special) && !of_own.get(id).is_some_and(is_special)
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let mut found = Differences::default();
    for _ in 0..n.div_ceil(1000) {
        let strings: Vec<String> = (0..1000).map(|_| string(&words, &mut rng)).collect();
        let of = |tokenizer: &Tokenizer| {
            tokenizer
                .encode_all(strings.iter().map(String::as_str))
                .unwrap()
        };
        for (i, ((text, a), b)) in strings.iter().zip(of(&own)).zip(of(&of_file)).enumerate() {
            // Some are also decoded.
            let texts = || [&own, &of_file].map(|tokenizer| tokenizer.decode(&a.ids).unwrap());
            let differs_back = i % 20 == 0 && texts()[0] != texts()[1];
            let hidden: Vec<u32> = a.ids.iter().copied().filter(is_hidden).collect();
            if a.ids == b.ids && differs_back && !hidden.is_empty() {
                found.n_hidden += 1;
                let texts = hidden.iter().map(|id| of_own[id].content.clone());
                found.hidden.extend(texts);
            } else if a.ids != b.ids || differs_back {
                if found.n == 0 {
                    found.first = format!("{text:?}: {:?} and {:?}", a.ids, b.ids);
                }
                found.n += 1;
            }
        }
    }
    found
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries
        .filter(|path| path.join("words.gguf").exists())
        .collect();
    folders.sort();
    folders
}

fn check(root: &Path, n: usize) {
    let mut wrong = vec![];
    let all = folders(root);
    for folder in &all {
        let found = differences(folder, n, 40);
        let (n_different, first) = (found.n, &found.first);
        println!("{}: {n_different} of {n} differ {first}", folder.display());
        if found.n_hidden > 0 {
            let (n, tokens) = (found.n_hidden, &found.hidden);
            println!("  {n} more give a text without {tokens:?}");
        }
        if n_different > 0 {
            wrong.push(format!(
                "{}: {n_different}, first {first}",
                folder.display()
            ));
        }
    }
    assert!(!all.is_empty(), "no folders in {root:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tokens_of_a_gguf_file_are_those_of_its_tokenizer_json() {
    if is_present("gguf-words") {
        check(&weights("gguf-words"), 4000);
    }
}

/// `CANDLE_BLOCKS_WORDS=FOLDER cargo test --release --features cli --test text million -- --ignored --nocapture`, with the
/// files that `weights/fixtures/gguf_words.py` wrote there.
#[test]
#[ignore = "minutes for each tokenizer, and these are made by weights/fixtures/gguf_words.py"]
fn a_million_strings_have_the_same_ids() {
    let root =
        std::env::var_os("CANDLE_BLOCKS_WORDS").expect("set CANDLE_BLOCKS_WORDS to a folder");
    let n = std::env::var("CANDLE_BLOCKS_STRINGS");
    check(
        Path::new(&root),
        n.map_or(1_000_000, |n| n.parse().unwrap()),
    );
}
