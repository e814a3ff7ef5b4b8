//! Elementwise activations and gates.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::rows::{self, elements};
use candle_core::{Result, Tensor, bail};

use super::numbers::Numbers;
use super::tape::{Taped, check_float};
use super::value::{Value, on_either};
use crate::config::{Activation, GateClamp};

const OP: &str = "activation";

/// Applies an activation elementwise.
///
/// The formulas are documented at [`Activation`]. At a kink the gradient is PyTorch's (0 for `relu` at 0). Equal to
/// `ACT2FN[name](x)` in transformers
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/activations.py>).
///
/// # Shapes
/// Any. The result has `x`'s shape.
///
/// # Errors
/// If `x` has no float type.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    check_float(OP, x)?;
    Value::of(x)?.activate(activation)?.tensor()
}

impl Value {
    /// Like [`activate`].
    pub fn activate(&self, activation: Activation) -> Result<Value> {
        if activation == Activation::Identity {
            return Ok(self.clone());
        }
        on_either!(self, x => Ok(x.activate(activation)?.into()))
    }

    /// Computes the gate `activation(self) · up`, clamped if `clamp` is given.
    pub fn gate(
        &self,
        up: &Value,
        activation: Activation,
        clamp: Option<GateClamp>,
    ) -> Result<Value> {
        if let Some(GateClamp { limit, offset }) = clamp {
            let gate = self.clamp([f64::NEG_INFINITY, limit])?;
            let up = up.clamp([-limit, limit])?.shift(offset)?;
            return gate.gate(&up, activation, None);
        }
        if self.dims() != up.dims() {
            bail!("gate: {:?} and up {:?}", self.dims(), up.dims());
        }
        on_either!(self, gate => Ok(gate.gate(&gate.on_tape(up)?, activation)?.into()))
    }
}

impl Taped<Cpu> {
    fn activate(&self, activation: Activation) -> Result<Self> {
        self.activate_by(activation_kernel(activation))
    }

    pub(super) fn activate_by(&self, kernel: rows::ActivationFunction) -> Result<Self> {
        let x = self.whole()?;
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        kernel.forward(x.engine(), x.data.read().slice(), y.slice_mut());
        let (data, slot) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            kernel.backward(pass.engine, data.read().slice(), dy.slice_mut());
            pass.add(&slot, dy)
        }))
    }

    fn gate(&self, up: &Self, activation: Activation) -> Result<Self> {
        let (gate, up) = (self.whole()?, up.whole()?);
        let kernel = activation_kernel(activation);
        let mut y = Numbers::new(gate.dtype(), gate.elem_count())?;
        kernel.forward(gate.engine(), gate.data.read().slice(), y.slice_mut());
        elements::multiply(gate.engine(), y.slice_mut(), up.data.read().slice());
        let asks = [gate.slot.place, up.slot.place];
        let (gate_slot, up_slot) = (gate.slot.clone(), up.slot);
        let (gate_data, up) = (gate.data.clone(), up.data);
        // `d gate = dy · up · f'(gate)`, `d up = dy · f(gate)`, where the activation is recomputed.
        Ok(gate.mapped(y, &asks, move |pass, mut dy| {
            let gate = gate_data.read();
            if up_slot.place.is_some() {
                let mut dup = Numbers::new(dy.dtype(), dy.len())?;
                kernel.forward(pass.engine, gate.slice(), dup.slice_mut());
                elements::multiply(pass.engine, dup.slice_mut(), dy.slice());
                pass.add(&up_slot, dup)?;
            }
            if gate_slot.place.is_some() {
                elements::multiply(pass.engine, dy.slice_mut(), up.read().slice());
                kernel.backward(pass.engine, gate.slice(), dy.slice_mut());
                pass.add(&gate_slot, dy)?;
            }
            Ok(())
        }))
    }
}

/// Returns the kernel for an activation.
pub(crate) fn activation_kernel(activation: Activation) -> rows::ActivationFunction {
    macro_rules! same_names {
        ($($name:ident)*) => {
            match activation {
                $(Activation::$name => rows::ActivationFunction::$name,)*
            }
        };
    }
    same_names!(Gelu GeluTanh QuickGelu ClippedGelu Relu Relu2 Relu6 LeakyRelu Silu Mish HardSwish Sigmoid Tanh
        Laplace Softplus SqrtSoftplus Identity)
}
