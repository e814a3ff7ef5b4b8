//! Trains a classifier for labels of your own. Each line of the data is a label, a tab and a text:
//! `cargo run --release --features text --example classifier -- all-MiniLM-L6-v2 labeled.tsv out`

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{DType::F32, Device::Cpu, Tensor};
use candle_blocks::config::HeadTask::SequenceClassification;
use candle_blocks::text::{TextClassifier, Tokenizer};
use candle_blocks::train::{AdamW, AdamWConfig, ParameterGroup};
use candle_blocks::{Checkpoint, ModelInput, model::NewHead, ops};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

fn main() -> Result<()> {
    let [model, data, out] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        bail!("give a model, a file of labels and texts, and a new folder");
    };
    let [right, n] = train(model, &std::fs::read_to_string(data)?, out, (3, 5e-5))?;
    println!("{right} of {n} texts that were held out have the right label");
    Ok(())
}

pub fn train(model: &str, data: &str, out: &str, epochs: (usize, f64)) -> Result<[usize; 2]> {
    let parts = |line| str::split_once(line, '\t').context("a line has no tab");
    let mut lines = data.lines().map(parts).collect::<Result<Vec<_>>>()?;
    lines.shuffle(&mut StdRng::seed_from_u64(42)); // the file may be sorted
    let mut labels: Vec<&str> = lines.iter().map(|line| line.0).collect();
    labels.sort_unstable();
    labels.dedup();
    let (kept, held_out) = lines.split_at(lines.len() * 9 / 10);
    let pretrained = Checkpoint::open(model)?;
    let mut tokenizer = Tokenizer::of(&pretrained)?;
    tokenizer.truncate(128)?;
    let head = NewHead::new(&pretrained, SequenceClassification, &labels, 42, F32, &Cpu)?;
    println!("new: {}", head.new_parameters().join(", "));
    let groups = ParameterGroup::decaying_matrices(head.parameters(), 0.01);
    let mut optimizer = AdamW::new(groups, AdamWConfig::with_learning_rate(epochs.1))?;
    for batch in (0..epochs.0).flat_map(|_| kept.chunks(16)) {
        let (expected, texts): (Vec<_>, Vec<_>) = batch.iter().copied().unzip();
        let input = ModelInput::texts(&tokenizer, texts, &Cpu)?.with_train(true);
        let logits = head.model().forward(&input)?.logits.context("no head")?;
        let index = |label| labels.binary_search(label).unwrap_or(0) as u32;
        let expected = expected.iter().map(index);
        let loss = ops::cross_entropy(&logits, &Tensor::from_iter(expected, &Cpu)?)?;
        optimizer.update(&optimizer.backward(&loss)?, 1.0)?;
    }
    head.save(out)?;
    let (expected, texts): (Vec<_>, Vec<_>) = held_out.iter().copied().unzip();
    let scores = TextClassifier::open(out)?.classify(&texts)?;
    let is_right = |i: &usize| labels[scores[*i].best()] == expected[*i];
    Ok([(0..texts.len()).filter(is_right).count(), texts.len()])
}
