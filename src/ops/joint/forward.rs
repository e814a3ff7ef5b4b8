//! The forward pass of a joint: its steps in order.

use std::ops::Deref;

use candle_core::{CpuStorage, Layout, Result, Shape, Storage, Tensor};

use super::{
    super::{
        activation,
        attention::Heads,
        linear::selected_isa,
        storage::{Float, tensor_slice},
    },
    Joint, OP, Parameter, Step, Value,
};
use crate::cpu::{
    gemm::{self, Epilogue, Plain},
    parallel,
    recycled::{Buffer, Recycled},
    view::View,
};

/// The values of all steps but the last, and the last step's as a storage and shape for candle.
type Values<T> = (Vec<Buffer<T>>, (CpuStorage, Shape));

/// Computes all steps. Values that no later step reads are freed on the way, unless a backward pass may read
/// them.
pub fn forward<T: Float + Plain + Recycled>(joint: &Joint) -> Result<Values<T>> {
    let storages = storages(joint);
    let inputs = slices(&storages)?;
    let mut values: Vec<Buffer<T>> = Vec::with_capacity(joint.steps.len());
    let (last_uses, kept) = (joint.last_uses(), joint.tracked().contains(&true));
    parallel::with_team(crate::ops::threads(), || {
        for (i, step) in joint.steps.iter().enumerate() {
            let mut y = Buffer::new(joint.rows() * joint.widths[i + 1]);
            let known = Known {
                joint,
                inputs: &inputs,
                values: &values,
            };
            known.step(step, &mut y)?;
            values.push(y);
            if !kept {
                let done = (0..i).filter(|&before| last_uses[before + 1] == i);
                done.for_each(|before| values[before] = Buffer::new(0));
            }
        }
        Ok::<(), candle_core::Error>(())
    })?;
    let width = joint.widths[joint.steps.len()];
    let last = values.pop().map_or(Vec::new(), Buffer::into_vec);
    let shape = Shape::from((joint.batch, joint.seq, width));
    Ok((values, (T::to_cpu_storage_owned(last), shape)))
}

/// Read locks on the storages of all inputs, with their layouts.
pub fn storages(joint: &Joint) -> Vec<(impl Deref<Target = Storage>, &Layout)> {
    let inputs = joint.inputs.iter();
    inputs.map(Tensor::storage_and_layout).collect()
}

/// The inputs' elements. All are contiguous: [`Joint`] takes no others.
pub fn slices<'a, T: Float>(
    storages: &'a [(impl Deref<Target = Storage>, &Layout)],
) -> Result<Vec<&'a [T]>> {
    storages
        .iter()
        .map(|(storage, layout)| tensor_slice(OP, storage, layout))
        .collect()
}

/// What a step can read.
pub struct Known<'a, T: Recycled> {
    pub joint: &'a Joint,
    pub inputs: &'a [&'a [T]],
    pub values: &'a [Buffer<T>],
}

impl<'a, T: Float + Plain + Recycled> Known<'a, T> {
    /// The rows of a value, without gaps.
    pub fn value(&self, value: Value) -> &'a [T] {
        match value.0 {
            0 => self.inputs[0],
            step => &self.values[step - 1],
        }
    }

    pub fn parameter(&self, parameter: Parameter) -> &'a [T] {
        self.inputs[parameter.0]
    }

    /// A value as a matrix of its rows.
    pub fn matrix(&self, value: Value) -> View<'a, T> {
        rows(self.value(value), self.joint.widths[value.0])
    }

    /// A value as heads.
    pub fn heads(&self, value: Value, heads: usize) -> Result<Heads<'a, T>> {
        let Joint { batch, seq, .. } = *self.joint;
        Heads::of_rows(self.value(value), (batch, seq), heads)
    }

    fn step(&self, step: &Step, y: &mut [T]) -> Result<()> {
        let isa = selected_isa()?;
        match step {
            Step::Linear {
                x,
                weight,
                bias,
                residual,
            } => {
                let x = self.matrix(*x);
                let weight = rows(self.parameter(*weight), x.columns());
                let epilogue = Epilogue {
                    residual: residual.map(|value| self.value(value)),
                    ..Epilogue::bias(bias.map(|bias| self.parameter(bias)))
                };
                let threads = crate::ops::threads();
                gemm::multiply(isa, x, weight.transposed(), &epilogue, y, threads);
            }
            Step::Activate { x, activation } => {
                activation::forward(*activation, self.value(*x), y)?
            }
            Step::Norm {
                x,
                weight,
                bias,
                norm,
            } => {
                let bias = bias.map(|bias| self.parameter(bias));
                norm.forward(isa, self.value(*x), self.parameter(*weight), bias, y);
            }
            Step::Mix {
                query,
                key,
                value,
                mix,
            } => {
                let (n_heads, n_kv_heads) = mix.heads();
                let query = self.heads(*query, n_heads)?;
                let (key, value) = (
                    self.heads(*key, n_kv_heads)?,
                    self.heads(*value, n_kv_heads)?,
                );
                mix.with_task(query, key, value, |task| task.forward_all(y))?;
            }
        }
        Ok(())
    }
}

/// Rows without gaps as a matrix `[data.len() / width, width]`.
pub fn rows<T: Copy>(data: &[T], width: usize) -> View<'_, T> {
    View::new(data, (data.len() / width, width), (width, 1))
}
