//! Classifies an image: `convert photo.jpg -resize '224x224!' photo.ppm`, then
//!
//! ```text
//! cargo run --release --example image_classification -- MODEL_DIR photo.ppm
//! ```

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::{Checkpoint, Precision, Weights, model::ImageScaling, model::ModelInput};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().context("name the directory of a model")?;
    let image = arguments.next().context("name an image in PPM")?;
    for (logit, label) in ranked(&directory, &image)?.iter().take(5) {
        println!("{logit:8.3}  {label}");
    }
    Ok(())
}

/// Classifies a PPM file: "P6", width, height and 255, each after a space or line break, then three bytes per pixel.
pub fn ranked(directory: &str, image: &str) -> Result<Vec<(f32, String)>> {
    let bytes = std::fs::read(image).context(image.to_string())?;
    let parts: Vec<&[u8]> = bytes.splitn(5, u8::is_ascii_whitespace).collect();
    let [b"P6", width, height, b"255", rgb] = parts[..] else {
        bail!("{image} is not a binary PPM");
    };
    let size = |text| anyhow::Ok(std::str::from_utf8(text)?.parse::<usize>()?);
    let image = Tensor::from_slice(rgb, (1, size(height)?, size(width)?, 3), &Device::Cpu)?;
    let pixels = ImageScaling::open(directory)?.pixels(&image)?;

    let checkpoint = Checkpoint::open(directory)?;
    let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
    let output = model.forward(&ModelInput::pixels(&pixels))?;
    let logits = output.logits.context("there is no head")?.flatten_all()?;
    let mut ranked: Vec<_> = std::iter::zip(logits.to_vec1()?, checkpoint.labels()?).collect();
    ranked.sort_by(|a: &(f32, _), b| b.0.total_cmp(&a.0));
    Ok(ranked)
}
