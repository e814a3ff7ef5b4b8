//! `</s>` in a GGUF file's vocabulary: ordinary text if a merge produces it, as in Qwen's, and otherwise the end of a text.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::Checkpoint;
use candle_blocks::generate::GenerationOptions;
use candle_blocks::text::Tokenizer;
use serde_json::json;

use crate::gguf_file::{GgufFile, number, text, texts, whole, wholes};

/// The ids of `</s>`, and of the control token that ends a text.
const LITERAL: u32 = 12;
const END: u32 = 0;
/// The model's width.
const WIDTH: usize = 8;
const TOKENS: [&str; 13] = [
    "<|im_end|>",
    "<",
    "/",
    "s",
    ">",
    "a",
    "b",
    "Ġ",
    "</",
    "s>",
    "ab",
    "Ġa",
    "</s>",
];
const MERGES: [&str; 5] = ["< /", "s >", "a b", "Ġ a", "</ s>"];
const TEXTS: [&str; 6] = [
    "a</s>b",
    "</s>",
    "</s></s> ab",
    "<s>a</s>",
    "ab </s> a <|im_end|></s>",
    "</ s> < /s>",
];

/// The tokenizer that a `tokenizer.json` describes with these words, as Qwen 2's does with its own.
fn own(folder: &Path, merges: &[&str]) -> Tokenizer {
    let vocabulary: serde_json::Map<_, _> = { TOKENS.iter().enumerate() }
        .map(|(id, token)| (token.to_string(), json!(id)))
        .collect();
    let cut = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let described = json!({
        "version": "1.0",
        "added_tokens": [{
            "id": END, "content": TOKENS[END as usize], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": false}, bytes,
        ]},
        "post_processor": null,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    });
    fs::write(folder.join("tokenizer.json"), described.to_string()).unwrap();
    Tokenizer::open(folder).unwrap()
}

/// Writes a model with zeros and the vocabulary, in which all tokens but the first are normal.
fn file(folder: &Path, merges: &[&str]) -> PathBuf {
    let path = folder.join("model.gguf");
    let mut types = vec![1; TOKENS.len()];
    types[END as usize] = 3;
    let mut file = GgufFile::new("llama")
        .key("llama.block_count", whole(1))
        .key("llama.embedding_length", whole(WIDTH as u32))
        .key("llama.feed_forward_length", whole(WIDTH as u32))
        .key("llama.attention.head_count", whole(1))
        .key("llama.attention.layer_norm_rms_epsilon", number(1e-5))
        .key("tokenizer.ggml.model", text("gpt2"))
        .key("tokenizer.ggml.pre", text("qwen2"))
        .key("tokenizer.ggml.eos_token_id", whole(END))
        .key("tokenizer.ggml.tokens", texts(&TOKENS))
        .key("tokenizer.ggml.merges", texts(merges))
        .key("tokenizer.ggml.token_type", wholes(&types));
    let matrices = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let of_block = |name: &str| format!("blk.0.{name}.weight");
    let shapes = { matrices.iter() }
        .map(|name| (of_block(name), vec![WIDTH; 2]))
        .chain(["attn_norm", "ffn_norm"].map(|name| (of_block(name), vec![WIDTH])))
        .chain([
            ("token_embd.weight".to_string(), vec![TOKENS.len(), WIDTH]),
            ("output_norm.weight".to_string(), vec![WIDTH]),
        ]);
    for (name, shape) in shapes {
        let zeros = vec![0; shape.iter().product::<usize>() * size_of::<f32>()];
        file = file.tensor(&name, &shape, 0, zeros);
    }
    file.write(&path);
    path
}

fn stop_tokens(path: &Path) -> Vec<u32> {
    let checkpoint = Checkpoint::open(path).unwrap();
    GenerationOptions::of(&checkpoint).unwrap().stop_tokens
}

#[test]
fn the_literal_end_that_a_merge_makes_is_an_ordinary_word() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path(), &MERGES);
    let path = file(folder.path(), &MERGES);
    let of_file = Tokenizer::open(&path).unwrap();
    for text in TEXTS {
        let [expected, found] = [&own, &of_file].map(|tokenizer| tokenizer.encode(text).unwrap());
        assert_eq!(found.ids, expected.ids, "{text}");
        let back = of_file.decode(&found.ids).unwrap();
        assert_eq!(back, own.decode(&expected.ids).unwrap(), "{text}");
        assert_eq!(back, text.replace("<|im_end|>", ""));
    }
    // A model may say it.
    let said = [&own, &of_file].map(|tokenizer| tokenizer.decode(&[5, LITERAL, 6]).unwrap());
    assert_eq!(said, ["a</s>b"; 2]);
    assert!(!of_file.is_special(LITERAL) && of_file.is_special(END));
    assert_eq!(stop_tokens(&path), [END]);
}

#[test]
fn the_literal_end_that_no_merge_makes_ends_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &MERGES[..4]);
    let tokenizer = Tokenizer::open(&path).unwrap();
    assert!(tokenizer.is_special(LITERAL));
    assert_eq!(tokenizer.encode("a</s>b").unwrap().ids, [5, LITERAL, 6]);
    assert_eq!(tokenizer.decode(&[5, LITERAL, 6]).unwrap(), "ab");
    assert_eq!(stop_tokens(&path), [END, LITERAL]);
}
