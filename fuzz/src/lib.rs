//! Functions that all targets share: the tests' temporary directory, and checks on error messages.

use candle_blocks::{
    Checkpoint, Weights,
    candle_core::{DType, Device},
    checkpoint::files::TensorFiles,
};

#[path = "../../tests/shared/hostile.rs"]
pub mod hostile;
#[path = "../../tests/shared/torch_file.rs"]
pub mod torch_file;

pub use hostile::Folder;

/// The separator between an input's files.
const BORDER: &[u8] = b"\n--8<--\n";
/// More tensor bytes than any seed has.
const LARGE: usize = 1 << 24;

/// Splits an input into its files.
pub fn files(data: &[u8]) -> Vec<&[u8]> {
    let mut files = vec![];
    let mut rest = data;
    while let Some(at) = rest.windows(BORDER.len()).position(|part| part == BORDER) {
        files.push(&rest[..at]);
        rest = &rest[at + BORDER.len()..];
    }
    files.push(rest);
    files
}

/// Returns the value, or `None` for an error. The error may contain text from a file, but no control characters.
pub fn said<T>(result: candle_blocks::Result<T>) -> Option<T> {
    let error = match result {
        Ok(found) => return Some(found),
        Err(error) => error,
    };
    let text = error.to_string();
    let acts = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(acts), "{text:?}");
    assert!(text.len() < 100_000, "an error of {} bytes", text.len());
    None
}

/// Reads a whole checkpoint: all tensors, its blocks, and the model.
pub fn read(checkpoint: Checkpoint) {
    every_tensor(checkpoint.files());
    let n_bytes = |files: &TensorFiles| {
        let sizes = files.names().filter_map(|name| files.info(name));
        sizes.fold(0, |sum: usize, info| sum.saturating_add(info.n_bytes))
    };
    if n_bytes(checkpoint.files()) < LARGE {
        said(
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack()
                .map(drop),
        );
        said(
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()
                .map(drop),
        );
    }
}

/// Reads every tensor. Errors are allowed.
pub fn every_tensor(files: &TensorFiles) {
    for name in files.names() {
        if let Some(tensor) = said(files.read(name)) {
            assert_eq!(tensor.dims(), files.info(name).unwrap().shape);
        }
    }
}
