//! Loading takes the memory of the loaded tensors plus one more, not the file's size twice. Loading and packing takes the
//! memory of the packed weights plus one block.

use std::path::Path;

use candle_blocks::{
    Checkpoint, Precision, Weights,
    candle_core::{DType, Device},
};
use serde_json::json;

use crate::{
    resident::{in_a_process_of_its_own, start_measuring, status},
    synthetic::{Sizes, Tensors, adder, write, write_bert},
};

/// About 113 MB; the largest tensor has 9.4 MB.
pub const SIZES: Sizes = Sizes {
    d_model: 768,
    d_ff: 3072,
    n_blocks: 4,
};
/// Embeddings with 61 MB.
const N_TOKENS: usize = 20_000;
const N_POSITIONS: usize = 64;
/// For the plan, the layers and what the allocator rounds up.
const SLACK: usize = 4 << 20;

#[test]
fn loading_takes_the_tensors_and_once_more_the_largest() {
    in_a_process_of_its_own(
        "loading::loading_takes_the_tensors_and_once_more_the_largest",
        measure,
    );
}

fn measure() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write_bert(folders[0].path(), SIZES, 0);
    write_gpt2(folders[1].path(), None);
    // All are kept, so that no load reuses the memory of another.
    let mut kept = Vec::new();
    let mut packed_too = Vec::new();
    for folder in &folders {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let files = checkpoint.files();
        let sizes = files.names().map(|name| files.info(name).unwrap().n_bytes);
        let (total, largest) = (files.n_bytes() as usize, sizes.max().unwrap());
        for is_trainable in [false, true] {
            let before = start_measuring();
            let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
            let loader = match is_trainable {
                false => loader,
                true => loader.trainable(),
            };
            kept.push(loader.stack().unwrap());
            let grown = status("VmHWM:") - before;
            let family = checkpoint.family();
            println!("{family}, trainable {is_trainable}: {grown} bytes for {total} of tensors");
            assert!(
                grown <= total + largest + SLACK,
                "{family} {is_trainable}: {grown}"
            );
            // The measure sees what was loaded.
            assert!(grown >= total / 10 * 9, "{family} {is_trainable}: {grown}");
        }
        for precision in [
            Precision::F32,
            Precision::F16,
            Precision::Bf16,
            Precision::Int8,
        ] {
            let before = start_measuring();
            let packed = checkpoint.load(Weights::Packed(precision)).stack().unwrap();
            let grown = status("VmHWM:") - before;
            let (bytes, block) = (packed.bytes(), total / SIZES.n_blocks);
            println!("{precision:?}: {grown} bytes for {bytes} packed, a block has {block}");
            assert!(
                grown <= bytes / 10 * 11 + block + SLACK,
                "{precision:?}: {grown}"
            );
            assert!(grown >= bytes / 10 * 9, "{precision:?}: {grown}");
            packed_too.push(packed);
        }
    }
    assert_eq!((kept.len(), packed_too.len()), (4, 8));
}

#[test]
fn an_embedding_table_that_is_the_head_too_is_loaded_once() {
    in_a_process_of_its_own(
        "loading::an_embedding_table_that_is_the_head_too_is_loaded_once",
        measure_whole,
    );
}

fn measure_whole() {
    let folder = tempfile::tempdir().unwrap();
    write_gpt2(folder.path(), Some(N_TOKENS));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let n_numbers = checkpoint.files().n_bytes() as usize / 4;
    let mut kept = Vec::new();
    for (precision, bytes) in [
        (Precision::F32, 4.0),
        (Precision::F16, 2.0),
        (Precision::Bf16, 2.0),
        (Precision::Int8, 1.04),
        (Precision::INT4, 4.5 / 8.0),
    ] {
        let before = start_measuring();
        kept.push(checkpoint.load(Weights::Packed(precision)).model().unwrap());
        let (held, peak) = (status("VmRSS:") - before, status("VmHWM:") - before);
        let packed = (n_numbers as f64 * bytes) as usize;
        println!("{precision:?}: {held} bytes held for {packed}, at most {peak}");
        // A table beside the packed one would be half as much again, or more.
        assert!(held <= packed / 10 * 11 + SLACK, "{precision:?}: {held}");
        // Beside the packed table only once as it is read.
        let table = N_TOKENS * SIZES.d_model * 4;
        assert!(
            peak <= packed / 10 * 11 + table + SLACK,
            "{precision:?}: {peak}"
        );
    }
    assert_eq!(kept.len(), 5);
}

/// Writes `config.json` and `model.safetensors` of a GPT-2 as transformers saves them, with `n_tokens` embeddings or none.
pub fn write_gpt2(folder: &Path, n_tokens: Option<usize>) {
    let Sizes {
        d_model,
        d_ff,
        n_blocks,
    } = SIZES;
    let mut tensors = Tensors::new();
    for i in 0..n_blocks {
        let mut add = adder(&mut tensors, format!("h.{i}"));
        add("attn.c_attn", &[d_model, 3 * d_model], 3 * d_model);
        add("attn.c_proj", &[d_model, d_model], d_model);
        add("mlp.c_fc", &[d_model, d_ff], d_ff);
        add("mlp.c_proj", &[d_ff, d_model], d_model);
        add("ln_1", &[d_model], d_model);
        add("ln_2", &[d_model], d_model);
    }
    tensors.push(("ln_f.weight".to_string(), vec![d_model]));
    tensors.push(("ln_f.bias".to_string(), vec![d_model]));
    if let Some(n_tokens) = n_tokens {
        tensors.push(("wte.weight".to_string(), vec![n_tokens, d_model]));
        tensors.push(("wpe.weight".to_string(), vec![N_POSITIONS, d_model]));
    }
    let config = json!({
        "vocab_size": N_TOKENS, "n_positions": N_POSITIONS, "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2", "n_embd": d_model, "n_head": d_model / 64, "n_layer": n_blocks, "n_inner": d_ff,
    });
    write(folder, &config, &tensors);
}
