//! The factor on what a real-gated linear recurrence writes.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::rows::ActivationFunction;
use candle_core::Result;

use super::tape::Taped;
use super::value::{Value, on_either};

impl Value {
    /// Computes `√(1 - exp(-2x))` for x from 0 on. The root's slope is at most 1000, as in transformers' `SqrtBoundDerivative`.
    pub(crate) fn decay_complement(&self) -> Result<Value> {
        on_either!(self, x => Ok(x.decay_complement()?.into()))
    }
}

impl Taped<Cpu> {
    fn decay_complement(&self) -> Result<Self> {
        self.activate_by(ActivationFunction::DecayComplement)
    }
}
