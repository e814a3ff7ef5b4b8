//! Linear weights that stay quantized as in the files: dequantized for each product, or packed without dequantizing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::files::{Coding, Compute, TensorFiles};
use crate::checkpoint::loader::as_stored::{InsteadOfStored, not_as_stored};
use crate::checkpoint::plan::source::{StoredParameter, WORD_EMBEDDINGS};
use crate::error::{Error, Result};
use crate::layers::StoredMatrix;

/// A checkpoint's quantized matrices, by role.
#[derive(Debug)]
pub(crate) struct StoredMatrices {
    files: Arc<TensorFiles>,
    sources: HashMap<String, StoredParameter>,
    uses: Use,
}

/// The use of quantized matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// Frozen weights of layers that train: each product dequantizes them.
    Dequantized,
    /// Packed layers, which keep the quantized values.
    Packed,
}

impl StoredMatrices {
    /// Returns matrices that each product dequantizes. Reads the files into memory.
    ///
    /// # Errors
    /// If there are none.
    pub fn dequantized(checkpoint: &Checkpoint) -> Result<Self> {
        let Checkpoint { plan, files, .. } = checkpoint;
        // A tied parameter, such as token embeddings, stays one dense tensor.
        let is_kept = |source: &&StoredParameter| {
            source.is_quantized
                && source.shape.len() == 2
                && !plan.is_shared(&source.role)
                && !source.role.ends_with(WORD_EMBEDDINGS)
        };
        let kept = plan.sources.iter().filter(is_kept);
        let sources: HashMap<_, _> = kept.map(|s| (s.role.clone(), s.clone())).collect();
        if sources.is_empty() {
            let path = files.path().display();
            let reason = format!("{path} has no quantized weights; load it with Weights::Dense");
            return Err(Error::input("AsStored", reason));
        }
        Ok(Self {
            files: Arc::new(files.kept_in_memory()),
            sources,
            uses: Use::Dequantized,
        })
    }

    /// Returns matrices whose quantized values are packed.
    ///
    /// # Errors
    /// If there are none.
    pub fn packed(checkpoint: &Checkpoint) -> Result<Self> {
        let Checkpoint { plan, files, .. } = checkpoint;
        let is_coded = |source: &StoredParameter| -> Result<bool> {
            let coding = files.computed(&source.name).map(|of| of.coding(files));
            Ok(!matches!(coding.transpose()?, None | Some(Coding::Numbers)))
        };
        // An error also means a weight that is quantized in some way.
        if !plan
            .sources
            .iter()
            .any(|source| is_coded(source).unwrap_or(true))
        {
            return Err(nothing_packed(checkpoint));
        }
        let matrices = plan.sources.iter().filter(|source| source.is_multiplied());
        Ok(Self {
            files: Arc::new(files.clone()),
            sources: matrices.map(|s| (s.role.clone(), s.clone())).collect(),
            uses: Use::Packed,
        })
    }

    /// Returns whether a matrix with this role may be among them.
    pub fn has(&self, role: &str) -> bool {
        self.sources.contains_key(role)
    }

    /// Returns a role's matrix; `None` if the files contain a plain tensor.
    ///
    /// # Errors
    /// If its shape differs, or its quantized values cannot be packed directly. A matrix for [`Use::Dequantized`] is
    /// dequantized once here, so that an error in the file is found early.
    pub fn matrix(
        &self,
        role: &str,
        (d_out, d_in): (usize, usize),
    ) -> Result<Option<Arc<dyn StoredMatrix>>> {
        let Some(source) = self.sources.get(role) else {
            return Ok(None);
        };
        let Some(compute) = self.files.computed(&source.name) else {
            return Ok(None);
        };
        source.check_request(&[d_out, d_in], &self.files)?;
        let coding = match self.uses {
            Use::Dequantized => None,
            Use::Packed => match coding(&self.files, source)? {
                None => return Ok(None),
                coding => coding,
            },
        };
        let matrix = StoredWeight {
            files: self.files.clone(),
            compute: compute.clone(),
            source: source.clone(),
            coding,
        };
        if self.uses == Use::Dequantized {
            const CHECKED_AT_ONCE: usize = 1 << 20;
            let step = match matrix.comes_whole() {
                true => d_out.max(1),
                false => (CHECKED_AT_ONCE / d_in.max(1)).max(1),
            };
            for start in (0..d_out).step_by(step) {
                matrix.elements(start..d_out.min(start + step))?;
            }
        }
        Ok(Some(Arc::new(matrix)))
    }
}

/// Returns the fewest bits for each element in a parameter when it is packed as stored.
pub(crate) fn least_bits(files: &TensorFiles, source: &StoredParameter) -> f64 {
    if !source.is_multiplied() {
        return 32.0;
    }
    match coding(files, source) {
        Ok(Some((format, _))) => format.bits(),
        // Elements with 16 bits, as which a matrix may be packed.
        Ok(None) => 16.0,
        Err(_) => 0.0, // reported when the parameter is read
    }
}

/// The format in which quantized values are packed, and the order of their inputs.
type Packable = (QuantizedFormat, Option<Arc<[u32]>>);

/// Returns how a matrix's quantized values are packed; `None` if the files contain a plain tensor.
///
/// # Errors
/// If its quantized values cannot be packed directly, or its shape differs.
fn coding(files: &TensorFiles, source: &StoredParameter) -> Result<Option<Packable>> {
    let Some(compute) = files.computed(&source.name) else {
        return Ok(None);
    };
    source.check_shape(files)?;
    match compute.coding(files)? {
        Coding::Numbers => Ok(None),
        Coding::Codes(format, order) => Ok(Some((format, order))),
        Coding::Refused(reason) => Err(refused(files, source, reason)),
    }
}

/// The error for files none of whose matrices can be packed as it is stored.
fn nothing_packed(checkpoint: &Checkpoint) -> Error {
    let quantized = not_as_stored(&checkpoint.plan, &checkpoint.files);
    let types: Vec<&str> = { quantized.iter() }
        .filter(|of| of.instead != InsteadOfStored::Elements)
        .map(|of| &of.tensor_type[..])
        .collect();
    let reason = match types.is_empty() {
        true => "these are not quantized".to_string(),
        false => format!("those of {} have no packed form", types.join(", ")),
    };
    Error::InvalidConfig(format!(
        "{}: AsStored packs quantized weights as they are stored, and {reason}; pack them in Int8, Int4, Bf16, F16 or F32",
        checkpoint.files.path().display()
    ))
}

fn refused(files: &TensorFiles, source: &StoredParameter, reason: String) -> Error {
    let reason = format!(
        "its quantized values cannot be packed directly: {reason} ({}); pack in Int8, Int4 or Bf16",
        source.path(files).display()
    );
    Error::input(&source.name, reason)
}

/// A matrix that stays quantized.
#[derive(Debug)]
struct StoredWeight {
    files: Arc<TensorFiles>,
    compute: Arc<dyn Compute>,
    source: StoredParameter,
    coding: Option<Packable>,
}

impl StoredWeight {
    fn elements(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let (source, files) = (&self.source, &*self.files);
        if self.comes_whole() {
            let elements = source.read(files)?.narrow(0, rows.start, rows.len())?;
            return Ok(elements.flatten_all()?.to_vec1()?);
        }
        let mut elements = Vec::new();
        for rows in source.rows_on_disk(rows) {
            let mut part = self.compute.rows(files, rows)?;
            match elements.is_empty() {
                true => elements = part,
                false => elements.append(&mut part),
            }
        }
        Ok(elements)
    }
}

impl StoredMatrix for StoredWeight {
    fn rows(&self, rows: Range<usize>) -> candle_core::Result<Vec<f32>> {
        Ok(self.elements(rows)?)
    }

    fn comes_whole(&self) -> bool {
        !self.source.has_rows()
    }

    fn coding(&self) -> Option<(QuantizedFormat, Option<&Arc<[u32]>>)> {
        let (format, order) = self.coding.as_ref()?;
        Some((*format, order.as_ref()))
    }

    fn coded_rows(&self, rows: Range<usize>) -> candle_core::Result<QuantizedWeightRows> {
        let Some((format, _)) = self.coding else {
            return Err(self
                .error("it is dequantized by each product".to_string())
                .into());
        };
        let source = &self.source;
        let features = source.features.as_ref();
        let per_item = features.map_or(source.shape[0], |features| features.total);
        let first = source.item.map_or(0, |item| item.index * per_item);
        let parts = source.rows_on_disk(rows);
        // Reads the whole span at once, because each read of a few rows might read all scales.
        let (Some(start), Some(end)) = (
            parts.iter().map(|part| part.start).min(),
            parts.iter().map(|part| part.end).max(),
        ) else {
            return Ok(QuantizedWeightRows::default());
        };
        let read = first + start..first + end;
        let found = self.compute.coded_rows(&self.files, read, format)?;
        Ok(match parts.len() {
            1 => found,
            _ => found.select(
                end - start,
                parts.into_iter().flatten().map(|row| row - start),
            ),
        })
    }

    fn error(&self, reason: String) -> Error {
        refused(&self.files, &self.source, reason)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use candle_core::{DType, Device};

    use super::*;
    use crate::CheckpointOptions;
    use crate::config::Precision;
    use crate::layers::packed::Packing;
    use crate::layers::{Linear, Stored, Weight};

    /// The committed files with quantized values, in safetensors folders and in GGUF.
    fn fixtures() -> Vec<PathBuf> {
        let weights = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("weights");
        let of = |kind: &str, file: &'static str| {
            let entries = std::fs::read_dir(weights.join(kind)).into_iter().flatten();
            entries
                .map(move |entry| entry.unwrap().path().join(file))
                .collect::<Vec<_>>()
        };
        [of("quantized", ""), of("gguf", "model.gguf")].concat()
    }

    #[test]
    fn a_weight_packed_from_quantized_values_is_that_of_the_dequantized_model() {
        let mut n_packed = 0;
        for path in fixtures() {
            let checkpoint = CheckpointOptions::default().whole().open(&path).unwrap();
            let Ok(stored) = StoredMatrices::packed(&checkpoint) else {
                continue;
            };
            for source in &checkpoint.plan.sources {
                let &[d_out, d_in] = &source.shape[..] else {
                    continue;
                };
                let role = &source.role;
                let Ok(Some(matrix)) = stored.matrix(role, (d_out, d_in)) else {
                    continue;
                };
                let kind = (DType::F32, &Device::Cpu);
                let weight = Stored::weight(matrix, (d_out, d_in), kind);
                let linear = Linear::from_weight(weight, None).unwrap();
                let packing = Packing::new(Precision::AsStored).unwrap();
                let packed = linear.packed(&packing);
                let packed = packed.unwrap_or_else(|error| panic!("{path:?} {role}: {error}"));
                assert!(matches!(packed.kept_weight(), Weight::Packed(_)));
                let found = packed.weight().unwrap().to_vec2::<f32>().unwrap();
                let expected = source.read(&checkpoint.files).unwrap();
                let expected = expected.to_vec2::<f32>().unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    let largest = expected.iter().fold(0f32, |most, w| most.max(w.abs()));
                    for (found, expected) in found.iter().zip(expected) {
                        // A 25-bit product may be rounded before the zero point is subtracted, or after.
                        let is_it = (found - expected).abs() <= 2.0 * f32::EPSILON * largest;
                        assert!(is_it, "{path:?} {role}: {found}, expected {expected}");
                    }
                }
                n_packed += 1;
            }
        }
        assert!(n_packed > 100, "only {n_packed}");
    }
}
