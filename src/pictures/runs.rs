//! Images through a model, several at a time.

use candle_blocks_media::pictures::{Image, Size};
use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::model::{Model, ModelInput, ModelOutput};
use crate::pictures::ImageProcessor;
use crate::text::host;

/// The most images in one pass of a model.
const AT_ONCE: usize = 8;

/// Makes a model's input from images.
#[derive(Clone, Debug)]
pub(super) struct ImageReader {
    pub processor: ImageProcessor,
    /// The type that the model reads.
    pub dtype: DType,
}

impl ImageReader {
    /// Runs the model on images, and returns the vector that `select` takes from the output, for each image.
    ///
    /// # Errors
    /// If an image cannot be preprocessed, or the model refuses its size.
    pub fn vectors(
        &self,
        model: &Model,
        images: &[Image],
        select: impl Fn(ModelOutput) -> Result<Tensor>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut all = Vec::with_capacity(images.len());
        let mut batch = Batch::default();
        let run = |batch: Batch, all: &mut Vec<_>| {
            let Some(pixels) = batch.pixels()? else {
                return Ok(());
            };
            let pixels = pixels.to_device(model.device())?.to_dtype(self.dtype)?;
            let rows = select(model.forward(&ModelInput::pixels(&pixels))?)?;
            let width = rows.elem_count() / batch.n;
            all.extend(host(&rows)?.chunks_exact(width).map(<[f32]>::to_vec));
            Ok::<_, Error>(())
        };
        for (i, image) in images.iter().enumerate() {
            let pixels = self.processor.of_one(i, image)?;
            if batch.n == AT_ONCE || batch.size.is_some_and(|size| size != pixels.size) {
                run(std::mem::take(&mut batch), &mut all)?;
            }
            batch.n += 1;
            batch.size = Some(pixels.size);
            batch.values.extend(pixels.values);
        }
        run(batch, &mut all)?;
        Ok(all)
    }
}

/// Images of one size.
#[derive(Default)]
struct Batch {
    n: usize,
    size: Option<Size>,
    values: Vec<f32>,
}

impl Batch {
    /// Returns `[n, 3, height, width]`, if there is an image.
    fn pixels(&self) -> Result<Option<Tensor>> {
        let Some(size) = self.size else {
            return Ok(None);
        };
        let shape = (self.n, 3, size.height, size.width);
        let pixels = Tensor::from_slice(&self.values, shape, &Device::Cpu)?;
        Ok(Some(pixels))
    }
}
