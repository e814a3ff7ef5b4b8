//! Checkpoints with any size, made by rule: all zeros, in files that take no space on disk.

use std::{fs, path::Path};

use safetensors::Dtype;
use serde_json::{Map, Value, json};

/// A checkpoint's sizes.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub d_model: usize,
    pub d_ff: usize,
    pub n_blocks: usize,
}

/// Names and shapes.
pub type Tensors = Vec<(String, Vec<usize>)>;

/// Writes `config.json` and `model.safetensors` of a BERT as transformers saves it, without the pooler.
pub fn write_bert(folder: &Path, sizes: Sizes, n_words: usize) {
    let Sizes {
        d_model,
        d_ff,
        n_blocks,
    } = sizes;
    let mut tensors = Tensors::new();
    if n_words > 0 {
        let words = "embeddings.word_embeddings.weight".to_string();
        tensors.push((words, vec![n_words, d_model]));
    }
    for i in 0..n_blocks {
        let mut add = adder(&mut tensors, format!("encoder.layer.{i}"));
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            add(&format!("attention.{name}"), &[d_model, d_model], d_model);
        }
        add("intermediate.dense", &[d_ff, d_model], d_ff);
        add("output.dense", &[d_model, d_ff], d_model);
        for norm in ["attention.output.LayerNorm", "output.LayerNorm"] {
            add(norm, &[d_model], d_model);
        }
    }
    let config = json!({
        "model_type": "bert", "hidden_size": d_model, "num_attention_heads": d_model / 64,
        "num_hidden_layers": n_blocks, "intermediate_size": d_ff,
    });
    write(folder, &config, &tensors);
}

/// Adds a layer's weight and bias.
pub fn adder(tensors: &mut Tensors, stem: String) -> impl FnMut(&str, &[usize], usize) {
    move |layer, weight, bias| {
        tensors.push((format!("{stem}.{layer}.weight"), weight.to_vec()));
        tensors.push((format!("{stem}.{layer}.bias"), vec![bias]));
    }
}

/// Writes a checkpoint's two files.
pub fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    let typed = tensors
        .iter()
        .map(|(name, shape)| (name.clone(), Dtype::F32, shape.clone()));
    write_typed(folder, config, &typed.collect::<Vec<_>>());
}

/// Like [`write`], for tensors with any dtypes.
pub fn write_typed(folder: &Path, config: &Value, tensors: &[(String, Dtype, Vec<usize>)]) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut header = Map::new();
    let mut filled = 0;
    for (name, dtype, shape) in tensors {
        let end = filled + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [filled, end]});
        header.insert(name.clone(), entry);
        filled = end;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let start = [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat();
    let path = folder.join("model.safetensors");
    fs::write(&path, &start).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((start.len() + filled) as u64).unwrap();
}
