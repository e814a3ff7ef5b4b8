//! Pre-tokenizers by their names in llama.cpp's `tokenizer.ggml.pre`.
//!
//! Patterns are those in the original tokenizers' files if llama.cpp rewrote one for its engine. Settings that a GGUF file
//! cannot express but `tokenizer.json` has, such as character composition, follow from the name.

use Also::{Begun, Composed, Marked, Separated, WholeBreaks, WholeWords};

/// How a tokenizer splits texts before merging, and other settings that its name implies.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// Patterns, each of which splits the pieces left by the previous ones: both the matches and the text between them
    /// become pieces.
    pub cuts: &'static [&'static str],
    also: &'static [Also],
}

/// Other settings that a name implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Also {
    /// A piece that is in the vocabulary is not split and merged.
    WholeWords,
    /// A text begins with the start token, unless the file says otherwise.
    Begun,
    /// A pair has two separators between its texts, as in RoBERTa.
    Separated,
    /// Characters are composed first (NFC).
    Composed,
    /// Tokens contain characters, with spaces marked, instead of GPT-2's byte characters.
    Marked,
    /// Adjacent line breaks are one token if the vocabulary has it, whatever its merges are.
    WholeBreaks,
}

impl PreTokenizer {
    /// Returns the pre-tokenizer with this name.
    pub fn named(name: &str) -> Option<Self> {
        let found = TABLE.iter().find(|one| one.names.contains(&name));
        found.copied()
    }

    /// Returns all names, for a message.
    pub fn listed() -> String {
        let names: Vec<&str> = TABLE.iter().flat_map(|one| one.names).copied().collect();
        names.join(", ")
    }

    /// Returns whether its name implies this setting.
    pub fn is(&self, what: Also) -> bool {
        self.also.contains(&what)
    }
}

const fn of(
    names: &'static [&'static str],
    cuts: &'static [&'static str],
    also: &'static [Also],
) -> PreTokenizer {
    PreTokenizer { names, cuts, also }
}

/// GPT-2's pattern.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's pattern: digits in threes.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's pattern: single digits.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's pattern: words are split where capitals begin.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's pattern: Mistral's with digits in threes.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_SCRIPTS: &str = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
/// Kimi K2's pattern: Chinese characters are separate.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Chinese characters and kana.
const CHINESE: &str = r"[一-龥぀-ゟ゠-ヿ]+";
const SPARK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_SIGNS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK_CHINESE: &str = r"[一-龥ࠀ-一가-퟿]+";
const FALCON_SIGNS: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DEFAULT_SIGNS: &str = r"[\p{P}\$\+<=>\^~\|]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const AFMOE_SCRIPTS: &str = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NO_CONTRACTIONS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Jais 2's pattern: spaces in powers of two.
const JAIS_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Line breaks separate from everything else.
const LINES: &str = r"[^\n]+|[\n]+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const THREE_ASCII_DIGITS: &str = r"[0-9][0-9][0-9]";
const LINE_BREAK: &str = r"[\r\n]";

const TABLE: &[PreTokenizer] = &[
    of(
        &["default"],
        &[DEFAULT_SIGNS, GPT_2, DIGITS, THREE_ASCII_DIGITS],
        &[],
    ),
    of(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[GPT_2],
        &[],
    ),
    of(&["mpt", "olmo", "modern-bert"], &[GPT_2], &[Composed]),
    of(
        &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        &[GPT_2],
        &[Separated],
    ),
    of(
        &[
            "starcoder",
            "refact",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[DIGIT, GPT_2],
        &[],
    ),
    of(&["command-r"], &[DIGIT, GPT_2], &[Composed]),
    of(
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA_3],
        &[WholeWords, Begun],
    ),
    of(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA_3], &[]),
    of(&["glm4", "glm5"], &[LLAMA_3], &[WholeWords]),
    of(
        &[
            "qwen2",
            "f2llmv2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
        ],
        &[QWEN_2],
        &[Composed],
    ),
    of(&["kormo", "megrez", "solar-open", "grok-2"], &[QWEN_2], &[]),
    of(&["qwen35"], &[QWEN_3_5], &[Composed]),
    of(&["laguna"], &[LINES, QWEN_2], &[]),
    of(&["ufakzeka"], &[NO_CONTRACTIONS], &[]),
    of(&["minicpm5"], &[THREE_DIGITS, MINICPM_5], &[WholeWords]),
    of(&["jais-2"], &[JAIS_2], &[]),
    of(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING], &[]),
    of(&["seed-coder"], &[SEED_CODER], &[]),
    of(&["exaone-moe"], &[EXAONE_MOE], &[]),
    of(&["tekken"], &[TEKKEN], &[WholeWords, Begun]),
    of(
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        &[GPT_4O],
        &[],
    ),
    of(&["granite-embed-multi-97m"], &[GPT_4O], &[WholeWords]),
    of(
        &["tiny_aya", "cohere2moe"],
        &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O],
        &[],
    ),
    of(&["youtu"], &[YOUTU_SCRIPTS, YOUTU], &[WholeWords]),
    of(&["kimi-k2"], &[KIMI_K2], &[]),
    of(
        &["deepseek-llm"],
        &[
            LINE_BREAK,
            DEEPSEEK_LETTERS,
            DEEPSEEK_SIGNS,
            r"\s+$",
            DEEPSEEK_CHINESE,
            DIGITS,
        ],
        &[],
    ),
    of(
        &["deepseek-coder"],
        &[
            LINE_BREAK,
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            DEEPSEEK_CHINESE,
            DIGIT,
        ],
        &[],
    ),
    of(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[THREE_DIGITS, CHINESE, DEEPSEEK_3_WORDS],
        &[],
    ),
    of(
        &["spark2_5"],
        &[THREE_DIGITS, CHINESE, SPARK_WORDS, DIGIT],
        &[],
    ),
    of(
        &["afmoe"],
        &[
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            AFMOE_SCRIPTS,
            DEEPSEEK_3_WORDS,
        ],
        &[],
    ),
    of(&["falcon"], &[FALCON_SIGNS, GPT_2, THREE_ASCII_DIGITS], &[]),
    of(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM], &[]),
    of(&["viking"], &[BLOOM, DIGIT], &[]),
    of(&["superbpe"], &[DIGITS, r"(?=(\d{3})+(?!\d))"], &[]),
    of(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT_2,
        ],
        &[Begun],
    ),
    of(
        &["gemma4", "granite-embed-multi-311m"],
        &[LINES],
        &[Marked, Begun, WholeBreaks],
    ),
    of(&["sarvam-moe"], &[LINES], &[Marked]),
];
