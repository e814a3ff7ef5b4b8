//! Searches a folder's text files by meaning. An index beside them keeps the vectors for files that do not change.
//!
//! ```text
//! cargo run --release --example semantic_search --features text -- all-MiniLM-L6-v2 notes "how to bake bread"
//! ```

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::{env, error::Error, fs, path::Path, path::PathBuf};

use candle_blocks::candle_core::{Device, Tensor, safetensors};
use candle_blocks::text::{RankedText, TextEmbedder, TextRole};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [model, folder, query] = &arguments[..] else {
        return Err("give a model, a folder with .txt files, and a query".into());
    };
    for (score, file) in search(model, Path::new(folder), query)? {
        println!("{score:.3} {}", file.display());
    }
    Ok(())
}

/// Returns the files with their scores, the best first.
pub fn search(model: &str, folder: &Path, query: &str) -> Result<Vec<(f32, PathBuf)>> {
    let embedder = TextEmbedder::open(model)?;
    let index = folder.join("index.safetensors");
    let old = match index.exists() {
        true => safetensors::load(&index, &Device::Cpu)?,
        false => HashMap::new(),
    };
    let mut vectors: HashMap<String, Tensor> = HashMap::new();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_none_or(|end| end != "txt") {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let mut hasher = DefaultHasher::new();
        (model, &text).hash(&mut hasher);
        let name = format!("{} {:x}", file.display(), hasher.finish());
        let vector = match old.get(&name) {
            Some(vector) => vector.clone(),
            None => embedder.embed_as(TextRole::Document, &[text])?,
        };
        vectors.insert(name.clone(), vector);
        names.push((name, file));
    }
    safetensors::save(&vectors, &index)?;
    let documents: Vec<&Tensor> = names.iter().map(|(name, _)| &vectors[name]).collect();
    let query = embedder.embed_as(TextRole::Query, &[query])?;
    let scores = embedder.similarity(&query, &Tensor::cat(&documents, 0)?)?;
    let ranking = RankedText::ranking(&scores.flatten_all()?.to_vec1()?).into_iter();
    let file = |one: RankedText| (one.score, names[one.corpus_id].1.clone());
    Ok(ranking.map(file).collect())
}
