//! Grouped linear layers for experts, when only the device knows which expert a row has selected.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::{Array, Composed, Taped, blocks::Blocks};
use crate::config::Precision;
use crate::ops::constants::Constants;
use crate::ops::cpu::{Backend, Route, backend, route};
use crate::ops::slot::Slot;
use crate::ops::tape::Reads;
use crate::ops::{experts::ExpertColumns, value::Value};

/// Returns whether candle has a kernel that multiplies rows in this type by their experts' weights `[experts, d_out,
/// d_in]`. candle 0.11's kernel for f16 stores the bits of each result as if they were a number: `from_float(half&, float)`
/// in `candle-kernels/src/moe/moe_utils.cuh`, seen on an H200.
pub(crate) fn has_grouped_kernel(d_in: usize, (dtype, device): (DType, &Device)) -> bool {
    let is_cuda = route(device) == Route::Composed && backend(device) == Backend::Cuda;
    // It reads eight elements at a time.
    is_cuda && dtype == DType::BF16 && d_in > 0 && d_in.is_multiple_of(8)
}

/// The experts' linear layers, stacked.
#[derive(Clone, Debug)]
pub(crate) struct GroupedLinear {
    /// `[experts, d_out, d_in]`
    weights: Array,
    /// `[experts, d_out]`
    biases: Option<Array>,
}

impl GroupedLinear {
    /// Stacks weights `[d_out, d_in]` and biases `[d_out]`, which must all have equal shapes.
    pub fn new(weights: &[&Tensor], biases: Option<&[&Tensor]>) -> Result<Self> {
        let stacked = |all: &[&Tensor]| -> Result<Array> {
            let parts = all.iter().map(|one| Array::of(one).unsqueeze(0));
            let all = Array::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
            all.contiguous()?.at_its_beginning()
        };
        Ok(Self {
            weights: stacked(weights)?,
            biases: biases.map(stacked).transpose()?,
        })
    }

    /// Returns a view on one expert's weight.
    pub fn weight(&self, expert: usize) -> Result<Tensor> {
        self.weights.tensor().get(expert)
    }
}

/// The experts for all choices, and the method that moves rows to them.
#[derive(Clone)]
#[doc(hidden)]
pub enum Groups {
    /// candle's kernel, which reads rows in place.
    Kernel {
        experts: Array,
        /// The choices sorted by expert, and their experts.
        places: Array,
        in_order: Array,
    },
    /// Blocks, whose weights are copied for one product.
    Blocks(Blocks),
}

impl Groups {
    /// The maximum choice count for candle's kernel, limited by candle's sort.
    pub const MOST_FOR_KERNEL: usize = Array::SORTED;

    /// Groups choices among `n_experts` experts.
    pub(crate) fn of(
        choices: &ExpertColumns,
        n_experts: usize,
        by_kernel: bool,
        constants: &Constants,
    ) -> Result<Self> {
        let ExpertColumns::Device(choices) = choices else {
            bail!("experts on the host do not fit a selection on a device");
        };
        let n = choices.tensor().elem_count();
        let experts = choices.reshape(&[n])?;
        if !by_kernel {
            return Blocks::of(&experts, n_experts, constants).map(Self::Blocks);
        }
        let places = experts.argsort()?;
        let in_order = experts.gather(&places)?;
        Ok(Self::Kernel {
            experts,
            places,
            in_order,
        })
    }

    /// Moves one row per choice to its place.
    fn dealt(&self, rows: &Array) -> Result<Array> {
        match self {
            Self::Kernel { .. } => Ok(rows.clone()),
            Self::Blocks(blocks) => blocks.dealt(rows),
        }
    }

    fn collected(&self, rows: &Array) -> Result<Array> {
        match self {
            Self::Kernel { .. } => Ok(rows.clone()),
            Self::Blocks(blocks) => blocks.collected(rows),
        }
    }
}

impl Value {
    /// Repeats each row `times` times, consecutively.
    pub fn repeated(&self, times: usize) -> Result<Value> {
        Ok(composed(self)?.repeated(times)?.into())
    }

    /// Moves one row per choice to its place.
    pub fn dealt(&self, groups: &Groups) -> Result<Value> {
        let back = groups.clone();
        let dealt = |x: &Array| groups.dealt(x);
        let x = composed(self)?.moved(dealt, move |dy| back.collected(dy))?;
        Ok(x.into())
    }

    /// Returns choices' rows from their places.
    pub fn collected(&self, groups: &Groups) -> Result<Value> {
        let back = groups.clone();
        let collected = |x: &Array| groups.collected(x);
        let x = composed(self)?.moved(collected, move |dy| back.dealt(dy))?;
        Ok(x.into())
    }

    /// Applies each row's expert, a linear layer. `layers` holds each expert's weight `[d_out, d_in]` and bias
    /// `[d_out]`, in this order.
    pub(crate) fn grouped_linear(
        &self,
        linear: &GroupedLinear,
        layers: &[(&Tensor, Option<&Tensor>)],
        groups: &Groups,
    ) -> Result<Value> {
        let x = composed(self)?;
        let y = match groups {
            Groups::Kernel {
                experts,
                places,
                in_order,
            } => x.by_kernel(linear, experts, places, in_order)?,
            Groups::Blocks(blocks) => x.by_blocks(linear, layers, blocks)?,
        };
        Ok(y.into())
    }

    /// Computes `Σ weight · row` over `n` rows for each row `[rows, n]` in this matrix. Sums are in f32.
    pub fn weighted_sums(&self, rows: &Value) -> Result<Value> {
        let weights = composed(self)?;
        Ok(weights.weighted_sums(&weights.on_tape(rows)?)?.into())
    }
}

#[doc(hidden)]
pub fn composed(value: &Value) -> Result<&Taped<Composed>> {
    match value {
        Value::Composed(x) => Ok(x),
        Value::Kernels(_) => bail!("a grouped product does not support values on the CPU"),
    }
}

impl Taped<Composed> {
    fn repeated(&self, times: usize) -> Result<Self> {
        let (rows, width, slot) = (self.rows(), self.slot.columns.len(), self.slot.clone());
        let each = self.view()?.reshape(&[rows, 1, width])?;
        let all = each.broadcast(&[rows, times, width])?.contiguous()?;
        let dims = vec![rows * times, width];
        let all = all.reshape(&dims)?;
        Ok(self.computed((all, dims), &[slot.place], move |pass, dy| {
            // In f32, because a half type would round every sum.
            let sums = dy.reshape(&[rows, times, width])?.widened()?.sum(1)?;
            let sums = sums.reshape(&[rows, width])?.to_dtype(dy.dtype())?;
            pass.add(&slot, sums)
        }))
    }

    /// Moves rows, and their gradients back.
    fn moved(
        &self,
        there: impl Fn(&Array) -> Result<Array>,
        back: impl Fn(&Array) -> Result<Array> + Send + Sync + 'static,
    ) -> Result<Self> {
        let y = there(&self.view()?)?;
        let (dims, slot) = (y.dims().to_vec(), self.slot.clone());
        Ok(self.computed((y, dims), &[slot.place], move |pass, dy| {
            pass.add(&slot, back(&dy)?)
        }))
    }

    fn by_kernel(
        &self,
        linear: &GroupedLinear,
        experts: &Array,
        places: &Array,
        in_order: &Array,
    ) -> Result<Self> {
        if self.slot.place.is_some() {
            bail!("candle's product by experts has no gradient");
        }
        let y = self
            .view()?
            .matmul_by_expert(&linear.weights, places, in_order)?;
        let y = match &linear.biases {
            None => y,
            Some(biases) => y.add(&biases.select_rows(experts)?)?,
        };
        let dims = y.dims().to_vec();
        Ok(self.computed((y, dims), &[], |_, _| Ok(())))
    }

    fn by_blocks(
        &self,
        linear: &GroupedLinear,
        layers: &[(&Tensor, Option<&Tensor>)],
        blocks: &Blocks,
    ) -> Result<Self> {
        let (weights, slot) = (linear.weights.clone(), self.slot.clone());
        let (&[n_experts, d_out, d_in], &[n_rows, _]) = (weights.dims(), self.dims()) else {
            bail!("expected rows with rank 2 and weights with rank 3");
        };
        let (experts, size) = (blocks.experts.clone(), blocks.size);
        let n_blocks = n_rows / size;
        let dtype = self.dtype();
        let factors = match self.precision() {
            Precision::Bf16 => DType::BF16,
            _ => dtype,
        };
        // Copies the expert's weight for each block. The copy is temporary.
        let block_weights = move |experts: &Array| -> Result<Array> {
            let all = weights.reshape(&[n_experts, d_out * d_in])?;
            let chosen = all.select_rows(experts)?.to_dtype(factors)?;
            chosen.reshape(&[n_blocks, d_out, d_in])
        };
        let x = self.view()?.to_dtype(factors)?;
        let x = x.reshape(&[n_blocks, size, d_in])?;
        let y = x.matmul(&block_weights(&experts)?.transpose(1, 2)?)?;
        let mut y = y.to_dtype(dtype)?;
        if let Some(biases) = &linear.biases {
            y = y.add(&biases.select_rows(&experts)?.unsqueeze(1)?)?;
        }
        let dims = vec![n_rows, d_out];
        let y = y.reshape(&dims)?;
        let place = |of: Option<&Tensor>, reads| of.and_then(|of| self.place(of, reads));
        let (weight_places, bias_places): (Vec<_>, Vec<_>) = layers
            .iter()
            .map(|(weight, bias)| {
                let weight = place(Some(weight), Reads::Both);
                (weight, place(*bias, Reads::Forward))
            })
            .unzip();
        let first = |places: &[Option<usize>]| places.iter().flatten().next().copied();
        let (ask_weights, ask_biases) = (first(&weight_places), first(&bias_places));
        // Only the weights' gradients read the input.
        let x = ask_weights.map(|_| x);
        let asks = [slot.place, ask_weights, ask_biases];
        Ok(self.computed((y, dims), &asks, move |pass, dy| {
            let dy = dy.reshape(&[n_blocks, size, d_out])?;
            let rounded_dy = dy.to_dtype(factors)?;
            // The blocks' results, summed for each expert. Experts without blocks get 0, like transformers'
            // gradients.
            let mut by_expert = |parts: Array, places: &[Option<usize>], dims: &[usize]| {
                let width = dims.iter().product();
                let rows = parts.widened()?.reshape(&[n_blocks, width])?;
                let zeros = rows.zeros(&[n_experts, width])?;
                let sums = zeros.add_rows(&experts, &rows)?.to_dtype(dtype)?;
                for (expert, place) in places.iter().enumerate() {
                    if place.is_some() {
                        let sum = sums.narrow(0, expert, 1)?;
                        pass.add(
                            &Slot::whole(*place, dims[dims.len() - 1]),
                            sum.reshape(dims)?,
                        )?;
                    }
                }
                Ok::<_, candle_core::Error>(())
            };
            if let Some(x) = &x {
                by_expert(
                    rounded_dy.transpose(1, 2)?.matmul(x)?,
                    &weight_places,
                    &[d_out, d_in],
                )?;
            }
            if ask_biases.is_some() {
                by_expert(dy.widened()?.sum(1)?, &bias_places, &[d_out])?;
            }
            if slot.place.is_some() {
                let dx = rounded_dy
                    .matmul(&block_weights(&experts)?)?
                    .to_dtype(dtype)?;
                pass.add(&slot, dx.reshape(&[n_rows, d_in])?)?;
            }
            Ok(())
        }))
    }

    fn weighted_sums(&self, rows: &Self) -> Result<Self> {
        let (n_rows, n, width) = (self.rows(), self.slot.columns.len(), rows.slot.width);
        let factors = self.view()?.reshape(&[n_rows, 1, n])?;
        let each = rows.view()?.reshape(&[n_rows, n, width])?;
        let dims = vec![n_rows, width];
        let sums = factors.matmul(&each)?.reshape(&dims)?;
        let slots = [self.slot.clone(), rows.slot.clone()];
        let asks = [slots[0].place, slots[1].place];
        Ok(self.computed((sums, dims), &asks, move |pass, dy| {
            let dy = dy.reshape(&[n_rows, 1, width])?;
            if slots[0].place.is_some() {
                let dfactors = dy.matmul(&each.transpose(1, 2)?)?;
                pass.add(&slots[0], dfactors.reshape(&[n_rows, n])?)?;
            }
            if slots[1].place.is_some() {
                let drows = factors.transpose(1, 2)?.matmul(&dy)?;
                pass.add(&slots[1], drows.reshape(&[n_rows * n, width])?)?;
            }
            Ok(())
        }))
    }
}
