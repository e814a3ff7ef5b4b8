//! Image patch embeddings.

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::Init;

use super::resized::resized;
use crate::Error;
use crate::config::{PatchEmbeddingsConfig, PixelOrder, getters};
use crate::layers::{Dropout, DropoutSource, Linear, Norm, ParameterSource};
use crate::memory::check_next;

/// Image patch embeddings, with special tokens in front and position embeddings added.
///
/// Names in a `VarBuilder`: `patch`, `class_token`, `distillation_token`, `registers`, `position`, `norm`.
#[derive(Clone, Debug)]
pub struct PatchEmbeddings {
    config: PatchEmbeddingsConfig,
    patch: Linear,           // of [n_channels * frames * height * width]
    special: Option<Tensor>, // [n_special, d_model]
    registers: Option<Tensor>,
    positions: Option<Tensor>, // [n_special + grid, d_model]
    norm: Option<Norm>,
    pub(super) dropout: Dropout,
}

impl PatchEmbeddings {
    /// Creates the layer with parameters from `vb`: `patch.weight` `[d_model, n_channels, height, width]`, or
    /// `[d_model, n_channels, frames, height, width]`, with its bias; the special tokens `[d_model]` each;
    /// `registers.weight` `[n_registers, d_model]`; `position.weight` `[n_special + patches, d_model]`; and `norm`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &PatchEmbeddingsConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let d_model = config.d_model;
        let [height, width] = config.patch_size;
        let init = Init::Randn {
            mean: 0.0,
            stdev: 0.02,
        };
        let n_channels = config.n_channels;
        let weight = match (config.frames, config.pixels) {
            (_, PixelOrder::PixelByPixel) => vec![d_model, height * width * n_channels],
            (None, _) => vec![d_model, n_channels, height, width],
            (Some(frames), _) => vec![d_model, n_channels, frames, height, width],
        };
        let weight = vb.pp("patch").get_with_hints(weight, "weight", init)?;
        let bias = config.bias.then(|| {
            vb.pp("patch")
                .get_with_hints(d_model, "bias", Init::Const(0.0))
        });
        if !weight.is_contiguous() {
            check_next(
                weight
                    .elem_count()
                    .saturating_mul(weight.dtype().size_in_bytes()),
            )?;
        }
        let patch = Linear::from_parts(weight.flatten_from(1)?, bias.transpose()?)?;
        let token = |name: &str| {
            let token = vb.pp(name).get_with_hints(d_model, "weight", init)?;
            token.unsqueeze(0)
        };
        let mut special = Vec::new();
        if config.class_token {
            special.push(token("class_token")?);
        }
        if config.distillation_token {
            special.push(token("distillation_token")?);
        }
        let special = match special.as_slice() {
            [] => None,
            tokens => Some(Tensor::cat(tokens, 0)?),
        };
        let registers = (config.n_registers > 0).then(|| {
            let shape = (config.n_registers, d_model);
            vb.pp("registers").get_with_hints(shape, "weight", init)
        });
        let [down, across] = config.grid();
        let n_positions = config.n_special() + down * across;
        let positions = config.positions.then(|| {
            let shape = (n_positions, d_model);
            vb.pp("position").get_with_hints(shape, "weight", init)
        });
        let norm = |norm| Norm::new(norm, vb.pp("norm"));
        Ok(Self {
            patch,
            special,
            registers: registers.transpose()?,
            positions: positions.transpose()?,
            norm: config.norm.as_ref().map(norm).transpose()?,
            dropout: Dropout::new(config.dropout, DropoutSource::default())?,
            config: config.clone(),
        })
    }

    getters! {
        /// The configuration.
        config(&self) -> &PatchEmbeddingsConfig => &self.config;
    }

    /// Computes the first block's input, `[batch, tokens and patches, d_model]`. If the image size differs from the
    /// trained size, the position embeddings are interpolated.
    ///
    /// # Shapes
    /// `pixels` is `[batch, n_channels, height, width]`.
    ///
    /// # Errors
    /// If `pixels` has other channels, or a size that is not a multiple of the patch size or window size. The trained
    /// size is always accepted.
    pub fn forward_t(&self, pixels: &Tensor, train: bool) -> Result<Tensor> {
        let grid = self.grid(pixels)?;
        let mut x = self.patch.forward(&self.patches(pixels, grid)?)?;
        let (batch, _, d_model) = x.dims3()?;
        let in_each = |tokens: &Tensor| {
            let shape = (batch, tokens.dims()[0], d_model);
            tokens.unsqueeze(0)?.broadcast_as(shape)?.contiguous()
        };
        if let Some(special) = &self.special {
            x = Tensor::cat(&[&in_each(special)?, &x], 1)?;
        }
        if let Some(positions) = &self.positions {
            let positions = self.resized_to(grid, positions)?;
            x = x.broadcast_add(&positions.unsqueeze(0)?)?;
        }
        if let Some(registers) = &self.registers {
            let n_special = self.config.n_special();
            let front = x.narrow(1, 0, n_special)?;
            let patches = x.narrow(1, n_special, grid[0] * grid[1])?;
            x = Tensor::cat(&[&front, &in_each(registers)?, &patches], 1)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        self.dropout.forward_t(&x, train)
    }

    /// Returns how many patches an image has, down and across.
    #[doc(hidden)]
    pub fn grid(&self, pixels: &Tensor) -> Result<[usize; 2]> {
        let fail = |reason| Err(Error::input("pixel_values", reason).into());
        let (found, n_channels) = (pixels.dims(), self.config.n_channels);
        if !pixels.dtype().is_float() {
            let dtype = pixels.dtype();
            return fail(format!("is {dtype:?}, expected a floating-point type"));
        }
        let size = match *found {
            [_, channels, height, width] if channels == n_channels => [height, width],
            _ => {
                return fail(format!(
                    "has shape {found:?}, expected [batch, {n_channels}, height, width]"
                ));
            }
        };
        let PatchEmbeddingsConfig {
            image_size,
            patch_size,
            window,
            ..
        } = self.config;
        if size == image_size && window == 1 {
            return Ok(self.config.grid());
        }
        let least = |i: usize| patch_size[i].saturating_mul(window);
        let is_divided = |i: usize| size[i] > 0 && size[i].is_multiple_of(least(i));
        let are_divided = is_divided(0) && is_divided(1);
        if !are_divided && window > 1 {
            return fail(format!(
                "holds images of {} by {}, which is not a multiple of windows of {window} x {window} patches of {} by {}; resize or \
                 pad them",
                size[0], size[1], patch_size[0], patch_size[1]
            ));
        }
        if !are_divided {
            return fail(format!(
                "holds images of {} by {}, which is not a multiple of the patch size {} by {}; resize or pad them, best to the \
                 {} by {} that the model was trained with",
                size[0], size[1], patch_size[0], patch_size[1], image_size[0], image_size[1]
            ));
        }
        Ok([0, 1].map(|i| size[i] / patch_size[i]))
    }

    /// Returns the position embeddings for special tokens and a grid of patches, `[tokens and patches, d_model]`.
    fn resized_to(&self, grid: [usize; 2], positions: &Tensor) -> Result<Tensor> {
        let trained = self.config.grid();
        if grid == trained {
            return Ok(positions.clone());
        }
        let n_special = self.config.n_special();
        let patch_positions = positions.narrow(0, n_special, trained[0] * trained[1])?;
        let patch_positions = resized(&patch_positions, trained, grid, self.config.resizing)?;
        match n_special {
            0 => Ok(patch_positions),
            _ => Tensor::cat(&[&positions.narrow(0, 0, n_special)?, &patch_positions], 0),
        }
    }

    /// Returns the pixels of each patch, `[batch, patches, n_channels * frames * height * width]`.
    fn patches(&self, pixels: &Tensor, [down, across]: [usize; 2]) -> Result<Tensor> {
        let (batch, channels, _, _) = pixels.dims4()?;
        let ([p, q], window) = (self.config.patch_size, self.config.window);
        // Pixels that do not fill a patch are left out, as in a convolution.
        let pixels = pixels.narrow(2, 0, down * p)?.narrow(3, 0, across * q)?;
        let (down_of, across_of, n_patches) = (down / window, across / window, down * across);
        let shape = vec![batch, channels, down_of, window, p, across_of, window, q];
        // To [batch, windows down, across, patches down, across, channels, rows, columns], or with the channels last.
        let order = match self.config.pixels {
            PixelOrder::ChannelByChannel => vec![0, 2, 5, 3, 6, 1, 4, 7],
            PixelOrder::PixelByPixel => vec![0, 2, 5, 3, 6, 4, 7, 1],
        };
        let patches = pixels.reshape(shape)?.permute(order)?.contiguous()?;
        match self.config.frames {
            None => patches.reshape((batch, n_patches, channels * p * q)),
            Some(frames) => {
                let patches = patches.reshape((batch * n_patches, channels, 1, p * q))?;
                let shape = (batch * n_patches, channels, frames, p * q);
                let patches = patches.broadcast_as(shape)?.contiguous()?;
                patches.reshape((batch, n_patches, channels * frames * p * q))
            }
        }
    }
}
