//! Image preprocessing: bytes to `pixel_values`.

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};

const FILE: &str = "preprocessor_config.json";
/// Settings for pixel changes other than scaling. A file with one of them is refused.
const CHANGES: [&str; 5] = [
    "rescale_offset",
    "offset",
    "do_flip_channel_order",
    "do_grayscale",
    "do_color_quantize",
];

/// Scales the bytes of an image to a model's `pixel_values`, by the factor, mean and standard deviation in its
/// `preprocessor_config.json`. The image must have the model's size: this type does not resize.
///
/// The result is `(factor · byte - mean) / deviation`, with a mean and a deviation for each channel. It has the same
/// bits as transformers' processors without torchvision.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, Precision, model::{ImageScaling, ModelInput}, Weights};
/// use candle_blocks::candle_core::{DType, Device, Tensor};
/// let model = Checkpoint::open("vit-base-patch16-224")?.load(Weights::Packed(Precision::F32)).model()?;
/// let bytes = Tensor::zeros((1, 224, 224, 3), DType::U8, &Device::Cpu)?; // your image, as red, green and blue
/// let pixels = ImageScaling::open("vit-base-patch16-224")?.pixels(&bytes)?;
/// println!("{:?}", model.forward(&ModelInput::pixels(&pixels))?.logits);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageScaling {
    factor: f64,
    /// The mean and standard deviation of each channel.
    normalization: Option<(Vec<f32>, Vec<f32>)>,
}

impl ImageScaling {
    /// Reads the `preprocessor_config.json` in a checkpoint's directory.
    ///
    /// # Errors
    /// If the file is missing or lacks a value.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let json = ConfigJson::open(&directory.as_ref().join(FILE))?;
        for key in CHANGES {
            json.only(key, &[false.into()])?;
        }
        let factor = match json.flag(&["do_rescale"], true)? {
            true => json.number(&["rescale_factor"], 1.0 / 255.0)?,
            false => 1.0,
        };
        let per_channel = |key| match json.numbers(&[key])? {
            Some(numbers) => Ok(numbers.into_iter().map(|x| x as f32).collect::<Vec<_>>()),
            None => Err(json.error(&[key], "missing, expected a value for each channel")),
        };
        let normalization = match json.flag(&["do_normalize"], true)? {
            true => Some((per_channel("image_mean")?, per_channel("image_std")?)),
            false => None,
        };
        if let Some((mean, deviation)) = &normalization {
            let is_scale = |x: &f32| x.is_finite() && *x > 0.0;
            if mean.len() != deviation.len() || !deviation.iter().all(is_scale) {
                let reason = format!(
                    "found {deviation:?}, expected {} values above 0",
                    mean.len()
                );
                return Err(json.error(&["image_std"], reason));
            }
        }
        Ok(Self {
            factor,
            normalization,
        })
    }

    /// Converts bytes `[batch, height, width, channels]` to `pixel_values` `[batch, channels, height, width]`, f32 on
    /// the CPU.
    ///
    /// # Errors
    /// If the image has another dtype or shape.
    pub fn pixels(&self, image: &Tensor) -> Result<Tensor> {
        let n_channels = self.normalization.as_ref().map(|(mean, _)| mean.len());
        let is_image = image.rank() == 4 && n_channels.is_none_or(|n| image.dims()[3] == n);
        if !is_image || image.dtype() != DType::U8 {
            let n_channels = n_channels.map_or("channels".to_string(), |n| n.to_string());
            let reason = format!(
                "{:?} of {:?}, expected bytes (U8) of [batch, height, width, {n_channels}]",
                image.dims(),
                image.dtype()
            );
            return Err(Error::input("image", reason));
        }
        let image = image.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let scaled = (image * self.factor)?.to_dtype(DType::F32)?;
        let scaled = match &self.normalization {
            None => scaled,
            Some((mean, deviation)) => scaled
                .broadcast_sub(&Tensor::new(mean.as_slice(), &Device::Cpu)?)?
                .broadcast_div(&Tensor::new(deviation.as_slice(), &Device::Cpu)?)?,
        };
        Ok(scaled.permute((0, 3, 1, 2))?.contiguous()?)
    }
}
