//! A quantized file is loaded and run in its own size, plus the cache's and little more: no weight is in memory twice.

use std::{fs, path::Path};

use candle_blocks::{
    Checkpoint, Precision, Weights,
    generate::{GenerationOptions, Generator, Sampler},
};

use crate::resident::{in_a_process_of_its_own, start_measuring, status};

/// A Llama with 80 MB.
const D_MODEL: usize = 1024;
const D_FF: usize = 4096;
const D_KEYS: usize = 256;
const N_BLOCKS: usize = 7;
const N_TOKENS: usize = 32_000;
/// The last chunk of the cache has only a few of these positions.
const PROMPT: usize = 257;
const NEW: usize = 17;
/// The program's own pages, pieces of a tensor that is being packed, and the prompt's rows between layers. The quantized
/// token embeddings alone have 18 MB.
const SLACK: usize = 24 << 20;

#[test]
fn quantized_models_run_in_little_more_than_file_and_cache() {
    in_a_process_of_its_own(
        "codes::quantized_models_run_in_little_more_than_file_and_cache",
        measure,
    );
}

fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_llama(&path);
    let before = start_measuring();
    let model = Checkpoint::open(&path).unwrap();
    let model = model
        .load(Weights::Packed(Precision::AsStored))
        .model()
        .unwrap();
    let options = GenerationOptions::default().with_max_new_tokens(NEW);
    let generator = Generator::new(&model, options).unwrap();
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let mut generation = generator.start(&[prompt], Sampler::greedy()).unwrap();
    for step in &mut generation {
        step.unwrap();
    }
    let grown = status("VmHWM:") - before;
    let file = fs::metadata(&path).unwrap().len() as usize;
    // Keys and values in bf16, of all tokens but the last.
    let cache = N_BLOCKS * 2 * D_KEYS * (PROMPT + NEW - 1) * 2;
    println!("{grown} bytes for a file of {file} and a cache of {cache}");
    assert!(grown <= file + cache + SLACK, "{grown}");
    // The measure sees what was loaded.
    assert!(grown >= file, "{grown}");
}

/// Writes a Q4_0 file with all zeros, which takes no space on disk.
fn write_llama(path: &Path) {
    let (u32s, f32s, texts) = (4u32, 6u32, 8u32);
    let (of_f32, of_q4_0) = (0, 2);
    let text = |to: &mut Vec<u8>, text: &str| {
        to.extend((text.len() as u64).to_le_bytes());
        to.extend(text.bytes());
    };
    let mut tensors = Vec::new();
    let mut add = |name: String, kind: u32, shape: &[usize]| {
        tensors.push((name, kind, shape.to_vec()));
    };
    add("token_embd.weight".into(), of_q4_0, &[N_TOKENS, D_MODEL]);
    add("output_norm.weight".into(), of_f32, &[D_MODEL]);
    for i in 0..N_BLOCKS {
        for norm in ["attn_norm", "ffn_norm"] {
            add(format!("blk.{i}.{norm}.weight"), of_f32, &[D_MODEL]);
        }
        for (name, d_out, d_in) in [
            ("attn_q", D_MODEL, D_MODEL),
            ("attn_k", D_KEYS, D_MODEL),
            ("attn_v", D_KEYS, D_MODEL),
            ("attn_output", D_MODEL, D_MODEL),
            ("ffn_gate", D_FF, D_MODEL),
            ("ffn_up", D_FF, D_MODEL),
            ("ffn_down", D_MODEL, D_FF),
        ] {
            add(format!("blk.{i}.{name}.weight"), of_q4_0, &[d_out, d_in]);
        }
    }
    let sizes = [
        ("block_count", N_BLOCKS),
        ("context_length", 2 * PROMPT),
        ("embedding_length", D_MODEL),
        ("feed_forward_length", D_FF),
        ("attention.head_count", D_MODEL / 64),
        ("attention.head_count_kv", D_KEYS / 64),
    ];
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((sizes.len() as u64 + 2).to_le_bytes());
    text(&mut header, "general.architecture");
    header.extend(texts.to_le_bytes());
    text(&mut header, "llama");
    text(&mut header, "llama.attention.layer_norm_rms_epsilon");
    header.extend(f32s.to_le_bytes());
    header.extend(1e-5f32.to_le_bytes());
    for (key, size) in sizes {
        text(&mut header, &format!("llama.{key}"));
        header.extend(u32s.to_le_bytes());
        header.extend((size as u32).to_le_bytes());
    }
    let mut filled = 0;
    for (name, kind, shape) in tensors {
        text(&mut header, &name);
        header.extend((shape.len() as u32).to_le_bytes());
        for dim in shape.iter().rev() {
            header.extend((*dim as u64).to_le_bytes());
        }
        header.extend(kind.to_le_bytes());
        header.extend((filled as u64).to_le_bytes());
        let n: usize = shape.iter().product();
        filled += if kind == of_f32 { 4 * n } else { n / 32 * 18 };
    }
    header.resize(header.len().next_multiple_of(32), 0);
    fs::write(path, &header).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((header.len() + filled) as u64).unwrap();
}
