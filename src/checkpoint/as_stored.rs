//! Parameters that are packed from their codes, for [`Precision::AsStored`](crate::Precision::AsStored).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_blocks_kernels::products::{CodeFormat, CodedRows};
use candle_core::Tensor;
use candle_nn::VarBuilder;

use crate::checkpoint::files::{Coding, Compute, TensorFiles};
use crate::checkpoint::source::Source;
use crate::checkpoint::{Checkpoint, Loader};
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::packed::stored::{StoredWeight, stand_in};

/// Weights that are packed from the codes of these files.
pub(super) struct Codes {
    files: Arc<TensorFiles>,
    /// Those that stand-ins were given for.
    held: Mutex<Vec<Arc<dyn StoredWeight>>>,
}

impl Codes {
    /// What stands for a parameter that is packed from its codes.
    pub(super) fn stand_in(&self, source: &Source) -> Result<Option<Tensor>> {
        let Some(weight) = stored_weight(&self.files, source)? else {
            return Ok(None);
        };
        let tensor = stand_in(&weight)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(weight);
        Ok(Some(tensor))
    }
}

impl<'c> Loader<'c> {
    /// As [`Self::build`], of layers that are packed in a precision.
    ///
    /// # Errors
    /// If codes are to be packed as they are, and the files have none.
    pub(crate) fn packing<T>(
        &self,
        precision: Precision,
        build: impl FnOnce(VarBuilder<'c>) -> candle_core::Result<T>,
    ) -> Result<T> {
        if precision != Precision::AsStored {
            return self.build(build);
        }
        let Checkpoint { plan, files, .. } = self.checkpoint();
        let is_coded = |source: &Source| -> Result<bool> {
            let coding = files.computed(&source.name).map(|of| of.coding(files));
            Ok(!matches!(coding.transpose()?, None | Some(Coding::Numbers)))
        };
        let mut sources = plan.sources.iter();
        // An error is one of a weight that is stored in some way or other.
        if !sources.any(|source| is_coded(source).unwrap_or(true)) {
            return Err(Error::InvalidConfig(format!(
                "{}: AsStored packs the codes of quantised weights, and these are numbers; pack them in Int8, Int4, Bf16, \
                 F16 or F32",
                files.path().display()
            )));
        }
        let codes = Codes {
            files: Arc::new(files.clone()),
            held: Mutex::default(),
        };
        self.built_with(Some(codes), build)
    }
}

/// The bits that a parameter's numbers have at least when they are packed as these files store them.
pub(super) fn least_bits(files: &TensorFiles, source: &Source) -> f64 {
    match coded(files, source) {
        Ok(Some(Coded { format, .. })) => format.bits(),
        // Numbers of a half type, of which a matrix may be made.
        Ok(None) if is_multiplied(&source.role) => 16.0,
        Ok(None) => 32.0,
        Err(_) => 0.0, // said where it is read
    }
}

/// A parameter, and the files that have its codes.
struct StoredCodes {
    files: Arc<TensorFiles>,
    source: Source,
    compute: Arc<dyn Compute>,
    format: CodeFormat,
    order: Option<Arc<[u32]>>,
    shape: [usize; 2],
}

/// A parameter as codes; errors and `None` as for [`coded`].
fn stored_weight(
    files: &Arc<TensorFiles>,
    source: &Source,
) -> Result<Option<Arc<dyn StoredWeight>>> {
    let (Some(coded), &[d_out, d_in]) = (coded(files, source)?, &source.shape[..]) else {
        return Ok(None);
    };
    Ok(Some(Arc::new(StoredCodes {
        files: files.clone(),
        source: source.clone(),
        compute: coded.compute.clone(),
        format: coded.format,
        order: coded.order,
        shape: [d_out, d_in],
    })))
}

/// What computes a parameter of codes, and how these are packed.
struct Coded<'f> {
    compute: &'f Arc<dyn Compute>,
    format: CodeFormat,
    order: Option<Arc<[u32]>>,
}

/// A parameter that is packed from its codes; `None`, if the files have it as numbers, or it is none that a
/// product takes.
///
/// # Errors
/// If its codes cannot be packed as they are, or its shape is another.
fn coded<'f>(files: &'f TensorFiles, source: &Source) -> Result<Option<Coded<'f>>> {
    let is_matrix = source.shape.len() == 2 && is_multiplied(&source.role);
    let Some(compute) = files.computed(&source.name).filter(|_| is_matrix) else {
        return Ok(None);
    };
    source.check_shape(files)?;
    match compute.coding(files)? {
        Coding::Numbers => Ok(None),
        Coding::Codes(format, order) => Ok(Some(Coded {
            compute,
            format,
            order,
        })),
        Coding::Refused(reason) => Err(refused(files, source, reason)),
    }
}

/// Whether a parameter is the weight of a linear layer, or the table of words, whose rows a packed weight gives too. Other
/// tables are read as numbers.
fn is_multiplied(role: &str) -> bool {
    role.ends_with(".weight")
        && (!role.contains("embeddings.") || role.ends_with("embeddings.word.weight"))
}

fn refused(files: &TensorFiles, source: &Source, reason: String) -> Error {
    let reason = format!(
        "its codes cannot be packed as they are: {reason} ({}); pack in Int8, Int4 or Bf16",
        source.path(files).display()
    );
    Error::input(&source.name, reason)
}

impl StoredWeight for StoredCodes {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn format(&self) -> CodeFormat {
        self.format
    }

    fn order(&self) -> Option<&Arc<[u32]>> {
        self.order.as_ref()
    }

    fn rows(&self, rows: Range<usize>) -> Result<CodedRows> {
        let read = |rows| self.compute.coded_rows(&self.files, rows, self.format);
        let features = self.source.features.as_ref();
        let of_item = features.map_or(self.shape[0], |features| features.total);
        let first = self.source.item.map_or(0, |item| item.index * of_item);
        let parts = self.source.rows_on_disk(rows);
        // At once, as each reading of some rows may read all scales: with what lies between them.
        let (Some(start), Some(end)) = (
            parts.iter().map(|part| part.start).min(),
            parts.iter().map(|part| part.end).max(),
        ) else {
            return Ok(CodedRows::default());
        };
        let found = read(first + start..first + end)?;
        Ok(match parts.len() {
            1 => found,
            _ => found.select(
                end - start,
                parts.into_iter().flatten().map(|row| row - start),
            ),
        })
    }

    fn numbers(&self) -> Result<Tensor> {
        self.source.read(&self.files)
    }

    fn error(&self, reason: String) -> Error {
        refused(&self.files, &self.source, reason)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::CheckpointOptions;
    use crate::layers::{Linear, WeightRows};
    use crate::packed::{PackedLinear, Packing};

    /// The committed files of codes, in folders of safetensors and in GGUF.
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
    fn a_weight_packed_from_codes_is_that_of_the_dequantised_model() {
        let mut n_packed = 0;
        for path in fixtures() {
            let checkpoint = CheckpointOptions::default().whole().open(&path).unwrap();
            let files = Arc::new(checkpoint.files.clone());
            for source in &checkpoint.plan.sources {
                let Ok(Some(weight)) = stored_weight(&files, source) else {
                    continue;
                };
                let (role, n_rows) = (&source.role, weight.shape()[0]);
                let linear = Linear::from_parts(stand_in(&weight).unwrap(), None).unwrap();
                let packing = Packing::of_file(Precision::AsStored).unwrap();
                let packed = PackedLinear::new(&packing, &linear);
                let packed = packed.unwrap_or_else(|error| panic!("{path:?} {role}: {error}"));
                let rows: Vec<u32> = (0..n_rows as u32).collect();
                let found = packed.weight_rows(&rows).unwrap().to_vec2::<f32>().unwrap();
                let expected = weight.numbers().unwrap().to_vec2::<f32>().unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    let largest = expected.iter().fold(0f32, |most, w| most.max(w.abs()));
                    for (found, expected) in found.iter().zip(expected) {
                        // A product of 25 bits may be rounded before the zero point is taken from it, or behind.
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
