//! Cross-entropy, the loss for classification and language models.

use candle_blocks_kernels::{Cpu, rows::cross_entropy as kernel};
use candle_core::{DType, Device, Result, Tensor, bail};

use super::cpu::{Route, route};
use super::numbers::Numbers;
use super::recorder::{Transfer, moved};
use super::tape::{Taped, check_float};
use super::value::{Value, on_either};

const OP: &str = "cross_entropy";

/// The target that marks a row to ignore, as in PyTorch (`ignore_index`) and transformers.
const IGNORE_INDEX: i64 = -100;

/// Computes the mean over each row's `-ln p`, where `p` is the target's softmax probability:
/// `torch.nn.functional.cross_entropy(logits, targets)`.
///
/// Rows with target -100 are ignored: they do not count in the mean, and get no gradient. [`n_targets`] returns the
/// number of other rows. Do not average the means of batches with different target counts without weights. On
/// the CPU the loss takes one pass over the logits on all threads, forward and backward, and keeps nothing of their
/// size.
///
/// # Shapes
/// `logits` are `[.., classes]`, `targets` (u32, or i64 if some are -100) are `[..]`. The result is a scalar in the
/// logits' type.
///
/// # Errors
/// If shapes or types do not match, a target is not a class, or all targets are ignored.
///
/// ```
/// use candle_blocks::ops;
/// use candle_core::{Device, Tensor};
///
/// let logits = Tensor::new(&[[0f32, 0.], [3., 0.]], &Device::Cpu)?;
/// let targets = Tensor::new(&[1i64, -100], &Device::Cpu)?;
/// let loss = ops::cross_entropy(&logits, &targets)?.to_scalar::<f32>()?;
/// assert_eq!(loss, std::f32::consts::LN_2);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    check_float(OP, logits)?;
    let classes = classes(logits, targets)?;
    let counted = classes.iter().flatten().count();
    if classes.is_empty() {
        bail!(
            "{OP}: the batch is empty, and has no target to take the mean of; leave such batches out"
        );
    }
    if counted == 0 {
        bail!(
            "{OP}: there is no target to take the mean of: all {} are {IGNORE_INDEX}; leave such batches out",
            classes.len()
        );
    }
    on_either!(Value::of(logits)?, x => x.cross_entropy(classes, counted)?.finish())
}

/// Returns the number of targets that count in [`cross_entropy`]'s mean: all except -100. For a batch in several
/// parts, weight each part's gradients by it
/// (`Gradients::accumulate_mean`).
///
/// # Errors
/// If the targets are not u32 or i64.
pub fn n_targets(targets: &Tensor) -> Result<usize> {
    let targets = integers(targets)?;
    Ok(targets
        .iter()
        .filter(|&&target| target != IGNORE_INDEX)
        .count())
}

impl Taped<Cpu> {
    fn cross_entropy(&self, classes: Vec<Option<usize>>, counted: usize) -> Result<Self> {
        let mut losses = vec![0.0; classes.len()];
        kernel::losses(
            self.engine(),
            self.data.read().slice(),
            &classes,
            &mut losses,
        );
        let mean = Numbers::of_scalar(self.dtype(), losses.iter().sum::<f64>() / counted as f64)?;
        let (data, slot) = (self.data.clone(), self.slot.clone());
        Ok(
            self.computed((mean, vec![]), &[slot.place], move |pass, dy| {
                let x = data.read();
                let factor = dy.scalar() / counted as f64;
                let mut dx = Numbers::new(dy.dtype(), x.slice().len())?;
                kernel::gradient(pass.engine, x.slice(), &classes, factor, dx.slice_mut());
                pass.add(&slot, dx)
            }),
        )
    }
}

/// Returns each row's class, or `None` for a row to ignore, after checking them against the logits.
fn classes(logits: &Tensor, targets: &Tensor) -> Result<Vec<Option<usize>>> {
    let Some((&n_classes, rows)) = logits.dims().split_last() else {
        bail!("{OP}: the logits are a scalar; expected [.., classes]");
    };
    if targets.dims() != rows {
        bail!(
            "{OP}: targets have shape {:?}, expected {rows:?} for logits of {:?}",
            targets.dims(),
            logits.dims()
        );
    }
    let class = |(row, target): (usize, i64)| match usize::try_from(target) {
        Ok(class) if class < n_classes => Ok(Some(class)),
        _ if target == IGNORE_INDEX => Ok(None),
        _ => bail!(
            "{OP}: target {row} is {target}; expected a class below {n_classes}, or {IGNORE_INDEX} for none"
        ),
    };
    integers(targets)?
        .into_iter()
        .enumerate()
        .map(class)
        .collect()
}

/// Returns the targets on the host.
fn integers(targets: &Tensor) -> Result<Vec<i64>> {
    if !matches!(targets.dtype(), DType::U32 | DType::I64) {
        let dtype = targets.dtype();
        bail!("{OP}: targets are {dtype:?}; expected U32, or I64 with {IGNORE_INDEX} for none");
    }
    if route(targets.device()) == Route::Composed {
        moved(Transfer::Down, targets)?;
    }
    targets
        .to_device(&Device::Cpu)?
        .flatten_all()?
        .to_dtype(DType::I64)?
        .to_vec1()
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::config::Precision;

    /// Other devices' operations, run on the CPU.
    #[test]
    fn the_composed_loss_and_its_gradient_are_the_kernels() {
        let values: Vec<f64> = (0..7 * 5)
            .map(|i| 9.0 * (f64::from(i) * 0.7).sin())
            .collect();
        let logits = Tensor::from_vec(values, (7, 5), &Device::Cpu).unwrap();
        let logits = Var::from_tensor(&logits).unwrap();
        let targets = Tensor::new(&[4i64, 0, -100, 2, 2, -100, 1], &Device::Cpu).unwrap();
        let all = classes(&logits, &targets).unwrap();
        let Value::Composed(x) = Value::on(Route::Composed, Precision::F32, &logits).unwrap()
        else {
            panic!("composed");
        };
        let both = [
            cross_entropy(&logits, &targets).unwrap(),
            x.cross_entropy(all, 5).unwrap().finish().unwrap(),
        ];
        let numbers = both.map(|loss| {
            let gradients = loss.backward().unwrap();
            let gradient = gradients.get(&logits).unwrap().flatten_all().unwrap();
            let mut numbers = gradient.to_vec1::<f64>().unwrap();
            numbers.push(loss.to_scalar().unwrap());
            numbers
        });
        for (kernel, composed) in numbers[0].iter().zip(&numbers[1]) {
            assert!((kernel - composed).abs() < 1e-15, "{kernel} {composed}");
        }
    }
}
