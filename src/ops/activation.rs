//! Element-wise activations and gates.

use candle_blocks_kernels::rows::{self, elements};
use candle_core::{Result, Tensor, bail};

use super::tape::{Value, check_float};
use super::{composed, numbers::Numbers};
use crate::config::Activation;

const OP: &str = "activation";

/// Applies an activation to every element.
///
/// The formulas are documented at [`Activation`]; at a kink the gradient is PyTorch's (0 for `relu` at 0).
/// Equal to `ACT2FN[name](x)` of transformers
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/activations.py>).
///
/// # Shapes
/// Any; the result has the shape of `x`.
///
/// # Errors
/// If `x` is not of a float type.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    check_float(OP, x)?;
    Value::of(x)?.activate(activation)?.tensor()
}

impl Value {
    /// As [`activate`].
    pub fn activate(&self, activation: Activation) -> Result<Value> {
        if activation == Activation::Identity {
            return Ok(self.clone());
        }
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(composed::activate(x, activation)?)),
            Self::Taped(x) => x.whole()?,
        };
        let kernel = activation_kernel(activation);
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        kernel.forward(x.cpu(), x.data.read().slice(), y.slice_mut());
        let (data, slot) = (x.data.clone(), x.slot.clone());
        Ok(x.mapped(y, &[slot.place], move |pass, mut dy| {
            kernel.backward(pass.cpu, data.read().slice(), dy.slice_mut());
            pass.add(&slot, dy)
        }))
    }

    /// `activation(self) · up`: a gate.
    pub fn gate(&self, up: &Value, activation: Activation) -> Result<Value> {
        if self.dims() != up.dims() {
            bail!("gate: {:?} and up {:?}", self.dims(), up.dims());
        }
        let gate = match self {
            Self::Tensor(gate) => {
                let gate = composed::activate(gate, activation)?;
                return Ok(Self::Tensor((gate * up.clone().tensor()?)?));
            }
            Self::Taped(gate) => gate.whole()?,
        };
        let up = gate.on_tape(up)?.whole()?;
        let kernel = activation_kernel(activation);
        let mut y = Numbers::new(gate.dtype(), gate.elem_count())?;
        kernel.forward(gate.cpu(), gate.data.read().slice(), y.slice_mut());
        elements::multiply(gate.cpu(), y.slice_mut(), up.data.read().slice());
        let asks = [gate.slot.place, up.slot.place];
        let (of_gate, of_up) = (gate.slot.clone(), up.slot);
        let (gate_data, up) = (gate.data.clone(), up.data);
        // `d gate = dy · up · f'(gate)`, `d up = dy · f(gate)`, whose activation is computed again.
        Ok(gate.mapped(y, &asks, move |pass, mut dy| {
            let gate = gate_data.read();
            if of_up.place.is_some() {
                let mut dup = Numbers::new(dy.dtype(), dy.len())?;
                kernel.forward(pass.cpu, gate.slice(), dup.slice_mut());
                elements::multiply(pass.cpu, dup.slice_mut(), dy.slice());
                pass.add(&of_up, dup)?;
            }
            if of_gate.place.is_some() {
                elements::multiply(pass.cpu, dy.slice_mut(), up.read().slice());
                kernel.backward(pass.cpu, gate.slice(), dy.slice_mut());
                pass.add(&of_gate, dy)?;
            }
            Ok(())
        }))
    }
}

/// The kernel of an activation.
pub(crate) fn activation_kernel(activation: Activation) -> rows::ActivationFunction {
    macro_rules! same_names {
        ($($name:ident)*) => {
            match activation {
                $(Activation::$name => rows::ActivationFunction::$name,)*
            }
        };
    }
    same_names!(Gelu GeluTanh QuickGelu ClippedGelu Relu Relu2 Relu6 LeakyRelu Silu Mish HardSwish Sigmoid Tanh
        Laplace SqrtSoftplus Identity)
}
