//! Images through a model, several at a time.

use candle_blocks_media::pictures::{Image, Size};
use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::model::{Model, ModelInput, ModelOutput};
use crate::pictures::ImageProcessor;
use crate::text::host;

/// The most images in one pass of a model.
const AT_ONCE: usize = 8;

/// Runs the model on images, and returns the vector that `select` takes from the output, for each image.
///
/// # Errors
/// If an image cannot be preprocessed, or the model refuses its size.
pub(super) fn vectors(
    model: &Model,
    processor: &ImageProcessor,
    images: &[Image],
    select: impl Fn(ModelOutput) -> Result<Tensor>,
) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::with_capacity(images.len());
    let mut batch = Batch::default();
    for (i, image) in images.iter().enumerate() {
        let pixels = processor.of_one(i, image)?;
        if batch.n == AT_ONCE || batch.size.is_some_and(|size| size != pixels.size) {
            std::mem::take(&mut batch).run(model, &select, &mut all)?;
        }
        batch.n += 1;
        batch.size = Some(pixels.size);
        batch.values.extend(pixels.values);
    }
    batch.run(model, &select, &mut all)?;
    Ok(all)
}

/// Images of one size.
#[derive(Default)]
struct Batch {
    n: usize,
    size: Option<Size>,
    values: Vec<f32>,
}

impl Batch {
    fn run(
        self,
        model: &Model,
        select: impl Fn(ModelOutput) -> Result<Tensor>,
        all: &mut Vec<Vec<f32>>,
    ) -> Result<()> {
        let Some(size) = self.size else {
            return Ok(());
        };
        let shape = (self.n, 3, size.height, size.width);
        let pixels = Tensor::from_vec(self.values, shape, &Device::Cpu)?;
        let pixels = pixels.to_device(model.device())?;
        let rows = select(model.forward(&ModelInput::pixels(&pixels))?)?;
        let width = rows.elem_count() / self.n;
        all.extend(host(&rows)?.chunks_exact(width).map(<[f32]>::to_vec));
        Ok(())
    }
}
