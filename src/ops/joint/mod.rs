//! Several operations as one node of candle's graph.
//!
//! Between two nodes candle adds each gradient to a tensor of zeros that it makes for it, and every tensor is
//! newly allocated. Within a [`Joint`], gradients are added in a product's epilogue or not at all, and
//! activations and gradients lie in recycled memory. A joint is a list of steps, each of which makes one value
//! from earlier ones; the backward pass takes them in reverse. The values are those of the separate operations,
//! to the bit.
//!
//! ```text
//! value 0 = input   step 0 → value 1   step 1 → value 2   ..   last step → output
//! ```

mod backward;
mod forward;

use candle_core::{DType, Result, Tensor, bail};

use super::{
    attention::{Mix, Mixing},
    linear::with_product,
    many,
};
use crate::{
    Activation, NormConfig,
    cpu::{
        norm::Norm,
        recycled::{Buffer, Recycled},
    },
};

const OP: &str = "joint";

/// The input, number 0, or the rows that step number `i - 1` makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value(usize);

/// The index of a parameter among the inputs.
#[derive(Clone, Copy)]
struct Parameter(usize);

/// An operation that makes one value.
enum Step {
    /// `x·Wᵀ + b + residual`, the latter two optional.
    Linear {
        x: Value,
        weight: Parameter,
        bias: Option<Parameter>,
        residual: Option<Value>,
    },
    Activate {
        x: Value,
        activation: Activation,
    },
    Norm {
        x: Value,
        weight: Parameter,
        bias: Option<Parameter>,
        norm: Norm,
    },
    Mix {
        query: Value,
        key: Value,
        value: Value,
        mix: Mix,
    },
}

/// A list of steps, still to be computed.
pub(crate) struct Joint {
    /// The input `[batch, seq, width]`, and then all parameters.
    inputs: Vec<Tensor>,
    steps: Vec<Step>,
    /// The widths of all values: of the input, and of what each step makes.
    widths: Vec<usize>,
    batch: usize,
    seq: usize,
}

impl Joint {
    /// Starts from an input `[batch, seq, width]`. `None` if a joint cannot take it: if it is not f32 or f64,
    /// not on the CPU, not contiguous, or empty.
    pub fn new(x: &Tensor) -> Option<(Self, Value)> {
        let &[batch, seq, width] = x.dims() else {
            return None;
        };
        let joint = Self {
            inputs: vec![x.clone()],
            steps: Vec::new(),
            widths: vec![width],
            batch,
            seq,
        };
        (batch * seq > 0 && joint.takes(x)).then_some((joint, Value(0)))
    }

    fn takes(&self, tensor: &Tensor) -> bool {
        let dtype = self.inputs.first().map_or(tensor.dtype(), Tensor::dtype);
        tensor.device().is_cpu()
            && tensor.is_contiguous()
            && matches!(dtype, DType::F32 | DType::F64)
            && tensor.dtype() == dtype
    }

    /// Adds a parameter to the inputs; `None` if a joint cannot take it.
    fn parameter(&mut self, tensor: &Tensor, dims: &[usize]) -> Option<Parameter> {
        let fits = tensor.dims() == dims && self.takes(tensor) && tensor.elem_count() > 0;
        fits.then(|| {
            self.inputs.push(tensor.clone());
            Parameter(self.inputs.len() - 1)
        })
    }

    fn push(&mut self, step: Step, width: usize) -> Value {
        self.steps.push(step);
        self.widths.push(width);
        Value(self.steps.len())
    }

    /// As [`super::linear()`], with `residual` added to the result; `None` if something does not fit.
    pub fn linear(
        &mut self,
        x: Value,
        weight: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<Value>,
    ) -> Option<Value> {
        let &[d_out, d_in] = weight.dims() else {
            return None;
        };
        if self.widths[x.0] != d_in || residual.is_some_and(|r| self.widths[r.0] != d_out) {
            return None;
        }
        let weight = self.parameter(weight, &[d_out, d_in])?;
        let bias = match bias {
            Some(bias) => Some(self.parameter(bias, &[d_out])?),
            None => None,
        };
        let step = Step::Linear {
            x,
            weight,
            bias,
            residual,
        };
        Some(self.push(step, d_out))
    }

    /// As [`super::activate`].
    pub fn activate(&mut self, x: Value, activation: Activation) -> Value {
        match activation {
            Activation::Identity => x,
            _ => self.push(Step::Activate { x, activation }, self.widths[x.0]),
        }
    }

    /// As [`super::norm()`]; `None` if something does not fit.
    pub fn norm(
        &mut self,
        x: Value,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &NormConfig,
    ) -> Option<Value> {
        let width = self.widths[x.0];
        if config.d_model != width || config.bias != bias.is_some() {
            return None;
        }
        let weight = self.parameter(weight, &[width])?;
        let bias = match bias {
            Some(bias) => Some(self.parameter(bias, &[width])?),
            None => None,
        };
        let step = Step::Norm {
            x,
            weight,
            bias,
            norm: super::norm_kernel(config),
        };
        Some(self.push(step, width))
    }

    /// As [`super::mix`], of projections; `None` if something does not fit.
    pub fn mix(
        &mut self,
        [query, key, value]: [Value; 3],
        mixing: &Mixing,
    ) -> Result<Option<Value>> {
        let [of_query, of_key, of_value] = [query, key, value].map(|v| self.widths[v.0]);
        let (heads, kv_heads) = (mixing.n_heads, mixing.n_kv_heads);
        let keep_fits = mixing.visible.keep.is_none_or(|keep| {
            keep.dims() == [self.batch, self.seq]
                && keep.dtype() == DType::U8
                && keep.device().is_cpu()
        });
        let fits = heads % kv_heads == 0
            && of_query % heads == 0
            && of_key % kv_heads == 0
            && of_query / heads == of_key / kv_heads
            && of_value % kv_heads == 0
            && keep_fits;
        if !fits {
            return Ok(None);
        }
        let step = Step::Mix {
            query,
            key,
            value,
            mix: Mix::new(mixing)?,
        };
        Ok(Some(self.push(step, heads * (of_value / kv_heads))))
    }

    /// Whether there are no steps yet.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Computes all steps; returns the last one's value as a tensor `[batch, seq, width]`.
    pub fn run(self) -> Result<Tensor> {
        if self.steps.is_empty() {
            bail!("{OP}: there is no step");
        }
        let inputs = self.inputs.clone();
        with_product!(OP, inputs[0].dtype(), T => {
            let (values, result) = forward::forward::<T>(&self)?;
            many::recorded(&inputs, result, Computed { joint: self, values })
        })
    }

    fn rows(&self) -> usize {
        self.batch * self.seq
    }

    /// For each value, the number of the last step that reads it.
    fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.widths.len()];
        for (i, step) in self.steps.iter().enumerate() {
            let used = match *step {
                Step::Linear { x, residual, .. } => [Some(x), residual, None],
                Step::Activate { x, .. } | Step::Norm { x, .. } => [Some(x), None, None],
                Step::Mix {
                    query, key, value, ..
                } => [query, key, value].map(Some),
            };
            for value in used.into_iter().flatten() {
                last[value.0] = i;
            }
        }
        last
    }

    /// For each value, whether it depends on a tracked tensor.
    fn tracked(&self) -> Vec<bool> {
        let of = |parameter: &Parameter| self.inputs[parameter.0].track_op();
        let mut tracked = vec![self.inputs[0].track_op()];
        for step in &self.steps {
            let from = |value: &Value| tracked[value.0];
            tracked.push(match step {
                Step::Linear {
                    x,
                    weight,
                    bias,
                    residual,
                } => {
                    from(x)
                        || residual.as_ref().is_some_and(from)
                        || of(weight)
                        || bias.as_ref().is_some_and(of)
                }
                Step::Activate { x, .. } => from(x),
                Step::Norm {
                    x, weight, bias, ..
                } => from(x) || of(weight) || bias.as_ref().is_some_and(of),
                Step::Mix {
                    query, key, value, ..
                } => from(query) || from(key) || from(value),
            });
        }
        tracked
    }
}

/// A computed joint, with what its backward pass reads.
struct Computed<T: Recycled> {
    joint: Joint,
    /// The values of all steps but the last.
    values: Vec<Buffer<T>>,
}

#[cfg(test)]
mod tests;
