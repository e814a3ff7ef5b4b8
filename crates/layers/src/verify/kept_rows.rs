//! The rows to compare, which the attention mask keeps.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

use super::names;

/// The rows `[batch, seq]` that an attention mask keeps.
///
/// Results in padding rows are meaningless and differ between correct implementations, so they are not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRows {
    batch: usize,
    seq: usize,
    keep: Vec<bool>,
}

impl KeptRows {
    /// Reads a mask of zeros (drop) and ones (keep).
    ///
    /// # Shapes
    /// `mask` is `[batch, seq]`, in any integer or floating-point dtype.
    ///
    /// If the mask has another rank, or contains values other than 0 and 1 (for example an additive mask with zeros
    /// and large negative values).
    pub fn from_mask(mask: &Tensor) -> Result<Self> {
        let &[batch, seq] = mask.dims() else {
            return Err(Error::input(
                "attention_mask",
                format!(
                    "has shape {:?}, expected [batch, seq], one 0 or 1 per token",
                    mask.dims()
                ),
            ));
        };
        let values = mask
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()?;
        let wrong = values.iter().position(|&v| v != 0.0 && v != 1.0);
        if let Some(index) = wrong {
            return Err(Error::input(
                "attention_mask",
                format!(
                    "contains {} at [{}, {}], expected only 1 (keep) and 0 (drop)",
                    values[index],
                    index / seq,
                    index % seq
                ),
            ));
        }
        let keep = values.iter().map(|&v| v == 1.0).collect();
        Ok(Self { batch, seq, keep })
    }

    /// Returns the number of kept rows.
    pub fn count(&self) -> usize {
        self.keep.iter().filter(|&&kept| kept).count()
    }

    /// Returns the mask as a `u8` tensor `[batch, seq]` with zeros and ones, on the CPU.
    ///
    /// # Errors
    /// If candle returns one.
    pub fn to_mask(&self) -> Result<Tensor> {
        let mask: Vec<u8> = self.keep.iter().map(|&kept| u8::from(kept)).collect();
        Ok(Tensor::from_vec(
            mask,
            (self.batch, self.seq),
            &Device::Cpu,
        )?)
    }

    /// Returns a flag per row in a named tensor, true for kept rows, and the row length; `None` if the mask does not
    /// apply to the tensor and all its elements count.
    pub(super) fn rows_of(&self, name: &str, dims: &[usize]) -> Option<(&[bool], usize)> {
        let &[batch, seq, ref row @ ..] = dims else {
            return None;
        };
        let applies = names::is_per_token(name) && (batch, seq) == (self.batch, self.seq);
        applies.then(|| (self.keep.as_slice(), row.iter().product()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_gradient_is_whole_even_in_the_shape_of_the_mask() -> Result<()> {
        let mask = Tensor::from_slice(&[1u8, 0, 1, 1, 0, 0], (2, 3), &Device::Cpu)?;
        let rows = KeptRows::from_mask(&mask)?;
        assert_eq!(rows.count(), 3);
        assert_eq!(rows.rows_of("grads.w", &[2, 3, 4]), None);
        assert_eq!(rows.rows_of("layers.0.output", &[3, 2, 4]), None);
        let (keep, width) = rows.rows_of("grads.hidden_states", &[2, 3, 4]).unwrap();
        assert_eq!(
            (keep, width),
            (&[true, false, true, true, false, false][..], 4)
        );
        Ok(())
    }

    #[test]
    fn an_additive_mask_is_refused_with_the_place_of_its_first_wrong_value() -> Result<()> {
        let mask = Tensor::from_slice(&[0f32, 1., 0., -10000.], (2, 2), &Device::Cpu)?;
        let message = KeptRows::from_mask(&mask).unwrap_err().to_string();
        assert!(
            message.contains("-10000") && message.contains("[1, 1]"),
            "{message}"
        );
        Ok(())
    }
}
