//! Tensors beside a module's quantized weight: zero points, each column's group, and tensors that change no weight.

use safetensors::Dtype;

use super::QuantizedModule;
use super::bits::n_words;
use super::gptq::WORDS;
use super::grouped::{CodePacking, Grouped, ZeroSource};
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::scheme::matches;
use crate::error::Result;

/// Scales and zero points that round a module's input or output, which is not rounded here, and observers' states.
const LEFT_OUT: [&str; 11] = [
    "*.input_scale",
    "*.input_zero_point",
    "*.input_global_scale",
    "*.output_scale",
    "*.output_zero_point",
    "*.output_global_scale",
    "*.activation_scale",
    "*_observer.*",
    "*.activation_post_process.*",
    "*.min_vals",
    "*.max_vals",
];

/// Takes tensors that change no weight from the files, and returns their names.
pub(super) fn left_out(files: &mut TensorFiles) -> Vec<String> {
    let is_one = |name: &&str| LEFT_OUT.iter().any(|pattern| matches(pattern, name));
    let names: Vec<String> = files.names().filter(is_one).map(String::from).collect();
    for name in &names {
        files.take(name);
    }
    names
}

impl Grouped {
    /// Adds the zero points and groups that compressed-tensors has beside a module's values and scales.
    ///
    /// # Errors
    /// If a tensor has another type or shape than it should, or zero points are not supported for this packing.
    pub fn with_companions(mut self, module: &mut QuantizedModule) -> Result<Self> {
        if let Some(part) = module.take("weight_zero_point") {
            let shape = &self.scales.part.info.shape;
            self.zeros = match (self.packing, part.info.dtype) {
                (CodePacking::Words { bits }, Dtype::I32 | Dtype::U32) => {
                    let words = n_words(self.n_rows, bits).unwrap_or(0);
                    part.check_shape(&[words, self.scales.n_groups])?;
                    ZeroSource::Words { part, bits }
                }
                (CodePacking::Words { .. } | CodePacking::Int8, _) => {
                    part.check_dtype(&[&WORDS[..], &[Dtype::I8]].concat())?;
                    part.check_shape(shape)?;
                    let bits = self.packing.bits();
                    ZeroSource::Bytes { part, bits }
                }
                // Symmetric, whatever type its zeros have.
                (CodePacking::E4m3 | CodePacking::E2m1, _) => {
                    let bytes: Vec<u8> = module.files.part(&part)?;
                    if bytes.iter().any(|byte| *byte != 0) {
                        return Err(part.error(
                            "it holds a zero point that is not zero, which is not read beside floating-point values",
                        ));
                    }
                    ZeroSource::All(0.0)
                }
            };
        }
        if let Some(index) = module.take("weight_g_idx") {
            index.check_dtype(&[Dtype::I32])?;
            index.check_shape(&[self.columns])?;
            let groups: Vec<i32> = module.files.part(&index)?;
            // compressed-tensors writes -1 if groups are contiguous after all.
            if !groups.contains(&-1) {
                self.index = Some(index);
            }
        }
        Ok(self)
    }
}
