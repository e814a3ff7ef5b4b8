//! A recorder for device operations: every candle operation that composed steps issue, while a recording runs.

use std::cell::RefCell;

use candle_core::{DType, Result, Tensor};

use super::cpu::{Route, rehearsed, route};

mod table;

/// An operation that was issued to a device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Operation {
    /// candle's name for it, or `upload` and `download` for a transfer.
    pub name: &'static str,
    /// The operands' types: `f32`, `u8:f32`; for a conversion `f32->bf16`.
    pub types: String,
    /// The operands' dimensions and strides, or the result's if there are no operands.
    pub layouts: Vec<(Vec<usize>, Vec<usize>)>,
    /// Bytes moved between host and device.
    pub bytes: usize,
}

/// A transfer's direction.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Up,
    /// The host waits for it.
    Down,
}

thread_local! {
    static RECORDED: RefCell<Option<Vec<Operation>>> = const { RefCell::new(None) };
}

/// Runs `work`. Returns its result, and the operations that this thread issued to devices: on CUDA and Metal, or on
/// the CPU if the environment variable `CANDLE_BLOCKS_REHEARSE` makes it emulate them.
pub fn recorded<R>(work: impl FnOnce() -> R) -> (R, Vec<Operation>) {
    /// Ends the recording, also in a panic.
    struct RecordingGuard;
    impl Drop for RecordingGuard {
        fn drop(&mut self) {
            RECORDED.take();
        }
    }
    let ending = RecordingGuard;
    RECORDED.set(Some(Vec::new()));
    let result = work();
    let operations = RECORDED.take().unwrap_or_default();
    drop(ending);
    (result, operations)
}

/// Records an operation on these operands, and the type to which it converts them.
///
/// # Errors
/// In an emulation, if the device's backend lacks the operation.
#[doc(hidden)]
pub fn issued(name: &'static str, operands: &[&Tensor], to: Option<DType>) -> Result<()> {
    push(|| {
        // Equal types once: `u8:f32` for a selection between two.
        let mut types: Vec<&str> = operands.iter().map(|of| of.dtype().as_str()).collect();
        types.dedup();
        Operation {
            name,
            types: match to {
                Some(to) => format!("{}->{}", types.join(":"), to.as_str()),
                None => types.join(":"),
            },
            layouts: operands
                .iter()
                .map(|of| (of.dims().to_vec(), of.stride().to_vec()))
                .collect(),
            bytes: 0,
        }
    })
}

/// Records a candle operation outside [`Array`](super::array::Array), in composed layers. Errors as for [`issued`].
pub(crate) fn record(name: &'static str, of: &Tensor) -> Result<()> {
    match route(of.device()) {
        Route::Kernels => Ok(()),
        Route::Composed => issued(name, &[of], None),
    }
}

/// Records a conversion outside [`Array`](super::array::Array). Errors as for [`issued`].
pub(crate) fn record_conversion(of: &Tensor, to: DType) -> Result<()> {
    match route(of.device()) {
        Route::Kernels => Ok(()),
        Route::Composed => issued("to_dtype", &[of], Some(to)),
    }
}

/// Records a transfer. Errors as for [`issued`].
#[doc(hidden)]
pub fn moved(direction: Transfer, tensor: &Tensor) -> Result<()> {
    push(|| Operation {
        name: match direction {
            Transfer::Up => "upload",
            Transfer::Down => "download",
        },
        types: tensor.dtype().as_str().to_string(),
        layouts: vec![(tensor.dims().to_vec(), tensor.stride().to_vec())],
        bytes: tensor.elem_count() * tensor.dtype().size_in_bytes(),
    })
}

fn push(operation: impl FnOnce() -> Operation) -> Result<()> {
    RECORDED.with_borrow_mut(|recorded| {
        if recorded.is_none() && rehearsed().is_none() {
            return Ok(());
        }
        let operation = operation();
        if let Some(backend) = rehearsed() {
            table::check(&operation, backend)?;
        }
        if let Some(recorded) = recorded {
            recorded.push(operation);
        }
        Ok(())
    })
}
