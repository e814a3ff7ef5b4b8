//! What devices are asked to do: every operation of candle's that the composed form issues, where somebody records.

use std::cell::RefCell;

use candle_core::{DType, Result, Tensor};

use super::cpu::{Route, rehearsed, route};

mod table;

/// Something that a device was asked to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Operation {
    /// candle's name of it, or `upload` and `download` for a transfer.
    pub name: &'static str,
    /// The types of its operands: `f32`, `u8:f32`; of a conversion `f32->bf16`.
    pub types: String,
    /// The dimensions and strides of its operands; of a result, where there are none.
    pub layouts: Vec<(Vec<usize>, Vec<usize>)>,
    /// Bytes moved between host and device.
    pub bytes: usize,
}

/// The direction of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Up,
    /// The host waits for it.
    Down,
}

thread_local! {
    static LEDGER: RefCell<Option<Vec<Operation>>> = const { RefCell::new(None) };
}

/// Runs `work`; returns with its result what this thread asked devices to do: on CUDA and Metal, or where the environment
/// variable `CANDLE_BLOCKS_REHEARSE` has the CPU compute as they do.
pub fn recorded<R>(work: impl FnOnce() -> R) -> (R, Vec<Operation>) {
    /// Ends the recording, also in a panic.
    struct Ending;
    impl Drop for Ending {
        fn drop(&mut self) {
            LEDGER.take();
        }
    }
    let ending = Ending;
    LEDGER.set(Some(Vec::new()));
    let result = work();
    let operations = LEDGER.take().unwrap_or_default();
    drop(ending);
    (result, operations)
}

/// Takes down an operation on these operands, and the type that it converts them to.
///
/// # Errors
/// In a rehearsal, if the device's back end lacks it.
pub(crate) fn issued(name: &'static str, operands: &[&Tensor], to: Option<DType>) -> Result<()> {
    take_down(|| {
        // Equal types once: `u8:f32` of a choice between two.
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

/// Takes down what candle is asked for outside of [`Array`](super::array::Array), where layers are composed; errors as for
/// [`issued`].
pub(crate) fn asked(name: &'static str, of: &Tensor) -> Result<()> {
    match route(of.device()) {
        Route::Kernels => Ok(()),
        Route::Composed => issued(name, &[of], None),
    }
}

/// Takes down a transfer; errors as for [`issued`].
pub(crate) fn moved(direction: Transfer, tensor: &Tensor) -> Result<()> {
    take_down(|| Operation {
        name: match direction {
            Transfer::Up => "upload",
            Transfer::Down => "download",
        },
        types: tensor.dtype().as_str().to_string(),
        layouts: vec![(tensor.dims().to_vec(), tensor.stride().to_vec())],
        bytes: tensor.elem_count() * tensor.dtype().size_in_bytes(),
    })
}

fn take_down(operation: impl FnOnce() -> Operation) -> Result<()> {
    LEDGER.with_borrow_mut(|ledger| {
        if ledger.is_none() && rehearsed().is_none() {
            return Ok(());
        }
        let operation = operation();
        if let Some(backend) = rehearsed() {
            table::check(&operation, backend)?;
        }
        if let Some(ledger) = ledger {
            ledger.push(operation);
        }
        Ok(())
    })
}
