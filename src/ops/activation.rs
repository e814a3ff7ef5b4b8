//! Element-wise activations and gates.

use candle_blocks_kernels::rows::{self, elements};
use candle_core::{Result, Tensor, bail};

use super::tape::{Data, Slot, Step, Value, check_float};
use super::{backward::Pass, composed, numbers::Numbers};
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
        let slot = x.slot.clone();
        let dims = x.dims().to_vec();
        Ok(x.computed((y, dims), &[slot.place], |_| Activated {
            x: x.data.clone(),
            slot,
            kernel,
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
        let dims = gate.dims().to_vec();
        Ok(gate.computed((y, dims), &asks, |_| Gated {
            gate: gate.data.clone(),
            of_gate: gate.slot.clone(),
            up: up.data.clone(),
            of_up: up.slot.clone(),
            kernel,
        }))
    }
}

struct Activated {
    x: Data,
    slot: Slot,
    kernel: rows::ActivationFunction,
}

impl Step for Activated {
    fn backward(&self, pass: &mut Pass, mut dy: Numbers) -> Result<()> {
        let x = self.x.read();
        self.kernel.backward(pass.cpu, x.slice(), dy.slice_mut());
        pass.add(&self.slot, dy)
    }
}

struct Gated {
    gate: Data,
    of_gate: Slot,
    up: Data,
    of_up: Slot,
    kernel: rows::ActivationFunction,
}

impl Step for Gated {
    /// `d gate = dy · up · f'(gate)`, `d up = dy · f(gate)`, whose activation is computed again.
    fn backward(&self, pass: &mut Pass, mut dy: Numbers) -> Result<()> {
        let gate = self.gate.read();
        if self.of_up.place.is_some() {
            let mut dup = Numbers::new(dy.dtype(), dy.len())?;
            self.kernel.forward(pass.cpu, gate.slice(), dup.slice_mut());
            elements::multiply(pass.cpu, dup.slice_mut(), dy.slice());
            pass.add(&self.of_up, dup)?;
        }
        if self.of_gate.place.is_some() {
            elements::multiply(pass.cpu, dy.slice_mut(), self.up.read().slice());
            self.kernel.backward(pass.cpu, gate.slice(), dy.slice_mut());
            pass.add(&self.of_gate, dy)?;
        }
        Ok(())
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
