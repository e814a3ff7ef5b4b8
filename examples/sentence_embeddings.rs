//! Prints how similar the lines in a file are to each other. The Python twin is `sentence_embeddings.py`.
//!
//! ```text
//! cargo run --release --features text --example sentence_embeddings -- MODEL_DIR [FILE]
//! ```

use anyhow::{Context, Result};
use candle_blocks::text::TextEmbedder;

const SENTENCES: &str = "A man is eating food.
Someone is having a meal.
The girl is carrying a baby.
A woman holds an infant in her arms.
A cheetah is running behind its prey.
The stock market fell by three percent on Tuesday.";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments
        .next()
        .context("name the directory of a model, such as all-MiniLM-L6-v2")?;
    let text = match arguments.next() {
        Some(path) => std::fs::read_to_string(&path).context(path)?,
        None => SENTENCES.to_string(),
    };
    let sentences: Vec<&str> = text.lines().collect();

    let embedder = TextEmbedder::open(model)?;
    let vectors = embedder.embed(&sentences)?; // [sentences, width]
    let lengths = vectors.sqr()?.sum_keepdim(1)?.sqrt()?;
    let unit = vectors.broadcast_div(&lengths)?;
    let similarity = unit.matmul(&unit.t()?)?.to_vec2::<f32>()?;

    for (sentence, row) in sentences.iter().zip(similarity) {
        let row: Vec<String> = row.iter().map(|cosine| format!("{cosine:6.3}")).collect();
        println!("{}  {sentence}", row.join(" "));
    }
    Ok(())
}
