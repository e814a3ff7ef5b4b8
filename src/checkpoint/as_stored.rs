//! Parameters that are packed from their codes, for [`Precision::AsStored`](crate::Precision::AsStored).

use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{CodeFormat, CodedRows};
use candle_core::Tensor;

use crate::checkpoint::files::{Coding, Compute, TensorFiles};
use crate::checkpoint::source::Source;
use crate::error::{Error, Result};
use crate::packed::stored::StoredWeight;

/// A parameter, and the files that have its codes.
struct StoredCodes {
    files: Arc<TensorFiles>,
    source: Source,
    compute: Arc<dyn Compute>,
    format: CodeFormat,
    shape: [usize; 2],
}

/// A parameter as codes; `None`, if the files have it as numbers, or it is none that a product takes.
///
/// # Errors
/// If its codes cannot be packed as they are, or its shape is another.
pub(super) fn stored_weight(
    files: &Arc<TensorFiles>,
    source: &Source,
) -> Result<Option<Arc<dyn StoredWeight>>> {
    let (Some(compute), [d_out, d_in]) = (files.computed(&source.name), &source.shape[..]) else {
        return Ok(None);
    };
    if !is_multiplied(&source.role) {
        return Ok(None);
    }
    source.check_shape(files)?;
    let format = match compute.coding(files)? {
        Coding::Numbers => return Ok(None),
        Coding::Codes(format) => format,
        Coding::Refused(reason) => {
            return Err(refused(files, source, reason));
        }
    };
    Ok(Some(Arc::new(StoredCodes {
        files: files.clone(),
        source: source.clone(),
        compute: compute.clone(),
        format,
        shape: [*d_out, *d_in],
    })))
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

    fn rows(&self, rows: Range<usize>) -> Result<CodedRows> {
        let read = |rows| self.compute.coded_rows(&self.files, rows, self.format);
        let first = self
            .source
            .item
            .map_or(0, |item| item.index * self.shape[0]);
        let Some(features) = &self.source.features else {
            return read(first + rows.start..first + rows.end);
        };
        let (mut all, mut before) = (CodedRows::default(), 0);
        for range in &features.ranges {
            let within =
                |row: usize| row.clamp(before, before + range.len()) - before + range.start;
            let part = within(rows.start)..within(rows.end);
            if !part.is_empty() {
                all.append(read(part)?);
            }
            before += range.len();
        }
        Ok(all)
    }

    fn numbers(&self) -> Result<Tensor> {
        self.source.read(&self.files)
    }

    fn error(&self, reason: String) -> Error {
        refused(&self.files, &self.source, reason)
    }
}
