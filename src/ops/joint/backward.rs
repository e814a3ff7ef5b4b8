//! The backward pass of a joint: its steps in reverse.

use candle_core::{Result, Tensor};

use super::{
    super::{
        activation,
        attention::Heads,
        collected::handed_over,
        linear::selected_isa,
        many::Backward,
        storage::{Float, cotangent, tensor_slice},
    },
    Computed, OP, Parameter, Step, Value,
    forward::{Known, rows, slices, storages},
};
use crate::cpu::{
    bias::{add, column_sums},
    gemm::{self, Epilogue, Plain},
    isa::Isa,
    norm::Gradients,
    parallel,
    recycled::{Buffer, Recycled},
};

impl<T: Float + Plain + Recycled> Backward for Computed<T> {
    fn name(&self) -> &'static str {
        OP
    }

    fn backward(&self, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let grad = cotangent(OP, grad)?;
        let joint = &self.joint;
        let storages = storages(joint);
        let inputs = slices(&storages)?;
        let mut pass = BackwardPass {
            isa: selected_isa()?,
            known: Known {
                joint,
                inputs: &inputs,
                values: &self.values,
            },
            tracked: joint.tracked(),
            value_gradients: joint.widths.iter().map(|_| None).collect(),
            input_gradients: vec![None; joint.inputs.len()],
        };
        let (dy, layout) = grad.storage_and_layout();
        pass.value_gradients[joint.steps.len()] =
            Some(Buffer::copied(tensor_slice(OP, &dy, layout)?));
        parallel::with_team(crate::ops::threads(), || {
            for (i, step) in joint.steps.iter().enumerate().rev() {
                if let Some(dy) = pass.value_gradients[i + 1].take() {
                    pass.step(step, dy)?;
                }
            }
            Ok::<(), candle_core::Error>(())
        })?;
        if let Some(dx) = pass.value_gradients[0].take() {
            pass.input_gradients[0] = handed_over(dx, &joint.inputs[0])?;
        }
        Ok(pass.input_gradients)
    }
}

/// A backward pass under pass: the gradients found so far.
struct BackwardPass<'a, T: Recycled> {
    isa: Isa,
    known: Known<'a, T>,
    /// For each value, whether its gradient is needed.
    tracked: Vec<bool>,
    value_gradients: Vec<Option<Buffer<T>>>,
    input_gradients: Vec<Option<Tensor>>,
}

impl<T: Float + Plain + Recycled> BackwardPass<'_, T> {
    fn step(&mut self, step: &Step, mut dy: Buffer<T>) -> Result<()> {
        match step {
            Step::Linear {
                x,
                weight,
                bias,
                residual,
            } => self.linear(*x, *weight, *bias, *residual, dy),
            Step::Activate { x, activation } => {
                if self.tracked[x.0] {
                    activation::backward(*activation, self.known.value(*x), &mut dy)?;
                    self.add(*x, dy);
                }
                Ok(())
            }
            Step::Norm {
                x,
                weight,
                bias,
                norm,
            } => {
                let mut dx = Buffer::new(dy.len());
                let of_weight = self.known.parameter(*weight);
                let Gradients { dweight, dbias } =
                    norm.backward(self.isa, self.known.value(*x), of_weight, &dy, &mut dx);
                drop(dy);
                self.add(*x, dx);
                self.hand_over(*weight, |_| Buffer::copied(&dweight))?;
                match bias {
                    Some(bias) => self.hand_over(*bias, |_| Buffer::copied(&dbias)),
                    None => Ok(()),
                }
            }
            Step::Mix {
                query,
                key,
                value,
                mix,
            } => {
                let joint = self.known.joint;
                let (n_heads, n_kv_heads) = mix.heads();
                let heads = |value: &Value, n| self.known.heads(*value, n);
                let (q, k, v) = (
                    heads(query, n_heads)?,
                    heads(key, n_kv_heads)?,
                    heads(value, n_kv_heads)?,
                );
                let of_dy = Heads::of_rows(&dy, (joint.batch, joint.seq), n_heads)?;
                let mut gradients = [query, key, value]
                    .map(|value| Buffer::<T>::new(joint.rows() * joint.widths[value.0]));
                let to = gradients.each_mut().map(|gradient| &mut **gradient);
                mix.with_task(q, k, v, |task| task.backward_all(of_dy, to))?;
                drop(dy);
                for (value, gradient) in [query, key, value].into_iter().zip(gradients) {
                    self.add(*value, gradient);
                }
                Ok(())
            }
        }
    }

    /// `dx = dy·W` and `dW = dyᵀ·x`; the residual's gradient is `dy`.
    fn linear(
        &mut self,
        x: Value,
        weight: Parameter,
        bias: Option<Parameter>,
        residual: Option<Value>,
        dy: Buffer<T>,
    ) -> Result<()> {
        let (isa, threads) = (self.isa, crate::ops::threads());
        let of_x = self.known.matrix(x);
        let of_weight = rows(self.known.parameter(weight), of_x.columns());
        let of_dy = rows(&dy, of_weight.rows());
        self.hand_over(weight, |len| {
            let mut dweight = Buffer::new(len);
            let none = &Epilogue::NONE;
            gemm::multiply(isa, of_dy.transposed(), of_x, none, &mut dweight, threads);
            dweight
        })?;
        if let Some(bias) = bias {
            self.hand_over(bias, |len| Buffer::copied(&column_sums(&dy, len)))?;
        }
        if self.tracked[x.0] {
            let before = self.value_gradients[x.0].take();
            let mut dx = Buffer::new(of_x.rows() * of_x.columns());
            let epilogue = Epilogue {
                residual: before.as_deref(),
                ..Epilogue::NONE
            };
            gemm::multiply(isa, of_dy, of_weight, &epilogue, &mut dx, threads);
            self.value_gradients[x.0] = Some(dx);
        }
        if let Some(residual) = residual {
            self.add(residual, dy);
        }
        Ok(())
    }

    /// Adds to a value's gradient, if that is needed.
    fn add(&mut self, value: Value, gradient: Buffer<T>) {
        if !self.tracked[value.0] {
            return;
        }
        match &mut self.value_gradients[value.0] {
            Some(sum) => add(sum, &gradient),
            empty => *empty = Some(gradient),
        }
    }

    /// Hands over the gradient of a parameter, if it is needed; `find` computes it, given its number of
    /// elements.
    fn hand_over(
        &mut self,
        parameter: Parameter,
        find: impl FnOnce(usize) -> Buffer<T>,
    ) -> Result<()> {
        let tensor = &self.known.joint.inputs[parameter.0];
        if tensor.track_op() {
            let gradient = find(tensor.elem_count());
            self.input_gradients[parameter.0] = handed_over(gradient, tensor)?;
        }
        Ok(())
    }
}
