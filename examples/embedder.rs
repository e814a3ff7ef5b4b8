//! Trains an embedder on texts that belong together. Each line of the data is two texts with a tab between.
//!
//! `cargo run --release --features text --example embedder -- all-MiniLM-L6-v2 pairs.tsv out`

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{DType::F32, Device::Cpu};
use candle_blocks::train::losses::{PairSimilarity::Cosine, multiple_negatives};
use candle_blocks::train::{AdamW, AdamWConfig, ParameterGroup, loss_value};
use candle_blocks::{Checkpoint, ModelInput, text::Tokenizer};

fn main() -> Result<()> {
    let [model, data, out] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        bail!("give a model, a file of pairs, and a new folder");
    };
    let losses = train(model, &std::fs::read_to_string(data)?, out, (3, 2e-5))?;
    println!("mean loss of each epoch: {losses:.4?}");
    Ok(())
}

/// Trains with the other texts of each batch as negatives. Returns each epoch's mean loss.
pub fn train(model: &str, data: &str, out: &str, epochs: (usize, f64)) -> Result<Vec<f64>> {
    let parts = |line| str::split_once(line, '\t').context("a line has no tab");
    let pairs = data.lines().map(parts).collect::<Result<Vec<_>>>()?;
    let pretrained = Checkpoint::open(model)?;
    let mut tokenizer = Tokenizer::of(&pretrained)?;
    tokenizer.truncate(128)?;
    let loader = pretrained.trainable(F32, &Cpu)?;
    let model = loader.base_model()?;
    let groups = ParameterGroup::decaying_matrices(loader.parameters(), 0.01);
    let mut optimizer = AdamW::new(groups, AdamWConfig::with_learning_rate(epochs.1))?;
    let vectors = |texts: Vec<&str>| {
        let input = ModelInput::texts(&tokenizer, texts, &Cpu)?.with_train(true);
        model.forward(&input)?.mean(input.attention_mask.as_ref())
    };
    let mut losses = vec![0.0; epochs.0];
    for mean in &mut losses {
        for batch in pairs.chunks(32) {
            let (queries, documents) = batch.iter().copied().unzip();
            let (queries, documents) = (vectors(queries)?, vectors(documents)?);
            let loss = multiple_negatives(&queries, &[documents], Cosine, 20.0)?;
            optimizer.update(&optimizer.backward(&loss)?, 1.0)?;
            *mean += loss_value(&loss)? * batch.len() as f64 / pairs.len() as f64;
        }
    }
    pretrained.save(out, loader.parameters())?; // with tokenizer and pooling, for `TextEmbedder`
    Ok(losses)
}
