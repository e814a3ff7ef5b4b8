//! Classifies an image file:
//!
//! ```text
//! cargo run --release --features media --example image_classification -- MODEL_DIR photo.jpg
//! ```

use anyhow::{Context, Result};
use candle_blocks::pictures::{Image, ImageClassifier};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().context("name the directory of a model")?;
    let image = arguments.next().context("name an image")?;
    for (logit, label) in ranked(&directory, &image)?.iter().take(5) {
        println!("{logit:8.3}  {label}");
    }
    Ok(())
}

/// Returns the logits of an image with the model's labels, the highest first.
pub fn ranked(directory: &str, image: &str) -> Result<Vec<(f32, String)>> {
    let classifier = ImageClassifier::open(directory)?;
    let scores = classifier.classify(&[Image::open(image)?])?.remove(0);
    let ranked = scores.ranked().into_iter();
    let ranked = ranked.map(|i| (scores.logits[i], classifier.labels()[i].clone()));
    Ok(ranked.collect())
}
