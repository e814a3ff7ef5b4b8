//! The labels of an image: `convert photo.jpg -resize '224x224!' photo.ppm`, then
//!
//! ```text
//! cargo run --release --example image_classification -- MODEL_DIR photo.ppm
//! ```

use std::{env, fs, path::Path};

use anyhow::{Context, Result, ensure};
use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::{Checkpoint, Precision, model::ModelInput};
use serde_json::Value;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [model, image] = arguments.as_slice() else {
        anyhow::bail!(
            "name the directory of a model, such as vit-base-patch16-224, and an image in PPM"
        );
    };
    let json = |file: &str| -> Result<Value> {
        let path = Path::new(model).join(file);
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(serde_json::from_slice(&text)?)
    };
    let (config, scaling) = (json("config.json")?, json("preprocessor_config.json")?);
    let of_channels = |key: &str| -> Result<Tensor> {
        let values: Vec<f32> = serde_json::from_value(scaling[key].clone())?;
        Ok(Tensor::new(values, &Device::Cpu)?.reshape((3, 1, 1))?)
    };
    // A PPM is "P6", width, height and 255, each behind a space or line, and then three bytes for each pixel.
    let bytes = fs::read(image).with_context(|| image.clone())?;
    let mut parts = bytes.splitn(5, u8::is_ascii_whitespace);
    ensure!(parts.next() == Some(b"P6"), "{image}: not a binary PPM");
    let mut size =
        || -> Result<usize> { Ok(std::str::from_utf8(parts.next().unwrap_or(b""))?.parse()?) };
    let (width, height, _) = (size()?, size()?, size()?);
    let pixels =
        Tensor::new(parts.next().unwrap_or_default(), &Device::Cpu)?.reshape((height, width, 3))?;
    let pixels = (pixels
        .permute((2, 0, 1))?
        .to_dtype(candle_blocks::candle_core::DType::F32)?
        / 255.0)?;
    let pixels = pixels
        .broadcast_sub(&of_channels("image_mean")?)?
        .broadcast_div(&of_channels("image_std")?)?;
    let model = Checkpoint::open(model)?.packed_model(Precision::F32)?;
    let logits = model
        .forward(&ModelInput::pixels(&pixels.unsqueeze(0)?))?
        .logits
        .context("the model has no head")?;
    let logits = logits.squeeze(0)?.to_vec1::<f32>()?;
    let mut labels: Vec<usize> = (0..logits.len()).collect();
    labels.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    for label in labels.into_iter().take(5) {
        println!(
            "{:8.3}  {}",
            logits[label],
            config["id2label"][label.to_string()]
                .as_str()
                .unwrap_or("?")
        );
    }
    Ok(())
}
