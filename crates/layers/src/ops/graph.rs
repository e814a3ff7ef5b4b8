//! Operations with any number of inputs in candle's graph, whose own operations have at most three arguments.
//!
//! A chain of nodes runs through the tracked inputs, one node per input, and the operation follows the last one. In
//! the backward pass candle therefore reaches the operation first, which computes all gradients at once. Each node
//! in the chain then returns its input's gradient. The chain's tensors have no elements, so that no device computes
//! anything for it.
//!
//! ```text
//! [] → Input(a) → Input(b) → .. → Output → result          forward
//!         ↑          ↑
//!         a          b
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, DType, Device, Layout, MetalStorage, Result,
    Shape, Tensor, bail,
};

use super::recorder::record;

/// The operations' name in candle's graph.
const NAME: &str = "tape";

/// The forward pass for an operation with two tensors, the same on every device.
macro_rules! every_device {
    ($a:pat, $la:pat, $b:pat, $lb:pat => $result:expr) => {
        every_device!(cpu_fwd, CpuStorage, $a, $la, $b, $lb, $result);
        every_device!(cuda_fwd, CudaStorage, $a, $la, $b, $lb, $result);
        every_device!(metal_fwd, MetalStorage, $a, $la, $b, $lb, $result);
    };
    ($name:ident, $storage:ty, $a:pat, $la:pat, $b:pat, $lb:pat, $result:expr) => {
        fn $name(
            &self,
            $a: &$storage,
            $la: &Layout,
            $b: &$storage,
            $lb: &Layout,
        ) -> Result<($storage, Shape)> {
            $result
        }
    };
}

/// Computes an operation's gradients.
pub trait Backward: Send + Sync + 'static {
    /// Returns all inputs' gradients, given the result's gradient. `None` for inputs that need none.
    fn backward(&self, cotangent: &Tensor) -> Result<Vec<Option<Tensor>>>;
}

/// An operation's precomputed result.
pub enum NodeResult {
    /// On the CPU. The forward pass moves it out.
    Moved(Mutex<Option<(CpuStorage, Shape)>>),
    /// Without a graph, on any device. The forward pass copies it.
    Copied(Tensor),
}

impl NodeResult {
    pub fn moved(values: CpuStorage, shape: Shape) -> Self {
        Self::Moved(Mutex::new(Some((values, shape))))
    }
}

/// Returns the result of an operation on these inputs, as a tensor whose gradient is passed to `backward`.
pub fn recorded(inputs: &[Tensor], result: NodeResult, backward: impl Backward) -> Result<Tensor> {
    let found = Found::default();
    let device = match &result {
        NodeResult::Moved(_) => Device::Cpu,
        NodeResult::Copied(tensor) => tensor.device().clone(),
    };
    let mut chain = Tensor::zeros(0, DType::F32, &device)?;
    for (index, input) in inputs.iter().enumerate() {
        if input.track_op() {
            let found = found.clone();
            chain = chain.apply_op2(input, Input { index, found })?;
        }
    }
    let backward = Box::new(backward);
    match result {
        NodeResult::Moved(result) => chain.apply_op1(ResultNode {
            result,
            backward,
            found,
        }),
        NodeResult::Copied(tensor) => {
            let result = Mutex::default();
            record("copy", &tensor)?;
            chain.apply_op2(
                &tensor,
                ResultNode {
                    result,
                    backward,
                    found,
                },
            )
        }
    }
}

/// Copies a contiguous tensor's storage, which must start with the tensor.
fn copied<S: BackendStorage>(storage: &S, layout: &Layout) -> Result<(S, Shape)> {
    if !layout.is_contiguous() || layout.start_offset() != 0 {
        bail!("{NAME}: the result is a view");
    }
    Ok((storage.try_clone(layout)?, layout.shape().clone()))
}

/// Gradients on their way from the operation to the inputs' nodes, for each thread whose backward pass is between
/// the two. Several passes may run over one graph concurrently.
type Found = Arc<Mutex<HashMap<ThreadId, Vec<Option<Tensor>>>>>;

/// A node in the chain, which returns one input's gradient.
struct Input {
    index: usize,
    found: Found,
}

impl CustomOp2 for Input {
    fn name(&self) -> &'static str {
        NAME
    }

    every_device! { chain, layout, _, _ => {
        let shape = layout.shape();
        Ok((chain.device().zeros_impl(shape, DType::F32)?, shape.clone()))
    } }

    fn bwd(
        &self,
        before: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let before = before.track_op().then(|| grad.clone());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        // Empty if no other input needs a gradient, or all others were collected.
        let gradients = found.get_mut(&thread);
        let gradient = gradients.and_then(|gradients| gradients[self.index].take());
        if let Some(gradients) = found.get(&thread)
            && gradients.iter().all(Option::is_none)
        {
            found.remove(&thread);
        }
        if let Some(gradient) = &gradient {
            record("zeros", gradient)?;
            record("add", gradient)?;
        }
        Ok((before, gradient))
    }
}

/// The operation's own node.
struct ResultNode {
    /// Moved out by the forward pass. `None` if it copies.
    result: Mutex<Option<(CpuStorage, Shape)>>,
    backward: Box<dyn Backward>,
    found: Found,
}

impl CustomOp1 for ResultNode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        match result.take() {
            Some(result) => Ok(result),
            None => bail!("{NAME}: computed twice"),
        }
    }

    fn bwd(&self, chain: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        self.of_chain(chain, grad)
    }
}

impl CustomOp2 for ResultNode {
    fn name(&self) -> &'static str {
        NAME
    }

    every_device! { _, _, result, layout => copied(result, layout) }

    fn bwd(
        &self,
        chain: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.of_chain(chain, grad)?, None))
    }
}

impl ResultNode {
    /// Computes all gradients, which the chain's nodes return. The chain's own gradient is 0.
    fn of_chain(&self, chain: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let gradients = self.backward.backward(grad)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(thread::current().id(), gradients);
        chain.zeros_like().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    /// `Σ k · input_k` for scalars.
    struct WeightedSum(Vec<Tensor>);

    impl Backward for WeightedSum {
        fn backward(&self, cotangent: &Tensor) -> Result<Vec<Option<Tensor>>> {
            let gradient = |(k, input): (usize, &Tensor)| {
                let tracked = input.track_op().then(|| cotangent.affine(k as f64, 0.0));
                tracked.transpose()
            };
            self.0.iter().enumerate().map(gradient).collect()
        }
    }

    fn weighted(inputs: &[Tensor]) -> Tensor {
        let value = |t: &Tensor| t.to_scalar::<f64>().unwrap();
        let terms = inputs.iter().enumerate().map(|(k, t)| k as f64 * value(t));
        let result = NodeResult::moved(CpuStorage::F64(vec![terms.sum()]), Shape::from(()));
        recorded(inputs, result, WeightedSum(inputs.to_vec())).unwrap()
    }

    #[test]
    fn every_tracked_input_gets_its_gradient_in_each_backward_pass() {
        let vars: Vec<Var> = (0..6)
            .map(|i| Var::new(f64::from(i) + 0.5, &Device::Cpu).unwrap())
            .collect();
        // A constant, variables, a variable twice, and a value computed from one.
        let inputs = [
            vars[0].detach(),
            vars[1].as_tensor().clone(),
            vars[2].as_tensor().clone(),
            vars[1].as_tensor().clone(),
            vars[3].sqr().unwrap(),
        ];
        let y = weighted(&inputs);
        let z = weighted(&[y.clone(), y]).sqr().unwrap();
        let value = 1.5 + 2.0 * 2.5 + 3.0 * 1.5 + 4.0 * 3.5 * 3.5;
        assert_eq!(z.to_scalar::<f64>().unwrap(), value * value);
        for _ in 0..2 {
            let store = z.backward().unwrap();
            let slopes = [None, Some(4.0), Some(2.0), Some(4.0 * 2.0 * 3.5), None];
            for (var, slope) in vars.iter().zip(slopes) {
                let found = store.get(var).map(|g| g.to_scalar::<f64>().unwrap());
                assert_eq!(found, slope.map(|slope| 2.0 * value * slope));
            }
        }
    }

    #[test]
    fn concurrent_backward_passes_do_not_mix() {
        let (x, y) = (
            Var::new(3.0, &Device::Cpu).unwrap(),
            Var::new(5.0, &Device::Cpu).unwrap(),
        );
        let sum = weighted(&[
            x.as_tensor().clone(),
            x.as_tensor().clone(),
            y.as_tensor().clone(),
        ]);
        let start = std::sync::Barrier::new(4);
        // A thread that stopped at the first difference would leave the others at the barrier.
        let differences = |factor: f64| {
            let loss = (&sum * factor).unwrap();
            let pass = |_| {
                start.wait();
                let store = loss.backward().unwrap();
                let found = |var| store.get(var).map(|g| g.to_scalar::<f64>().unwrap());
                found(&x) != Some(factor) || found(&y) != Some(2.0 * factor)
            };
            (0..200).map(pass).filter(|&differs| differs).count()
        };
        std::thread::scope(|scope| {
            let threads = [1.0, 2.0, 3.0, 4.0].map(|factor| {
                scope.spawn({
                    let differences = &differences;
                    move || differences(factor)
                })
            });
            let counts = threads.map(|thread| thread.join().unwrap());
            assert_eq!(counts, [0; 4]);
        });
    }

    #[test]
    fn an_operation_on_constants_is_a_constant() {
        let inputs = [1.0, 2.0].map(|x| Tensor::new(x, &Device::Cpu).unwrap());
        assert!(!weighted(&inputs).track_op());
    }
}
