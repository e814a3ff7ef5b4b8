//! Operations of an input, a weight and an optional bias, which candle's graph takes as two or three arguments.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::storage::cotangent;

/// A tensor as candle hands it to an operation: all of its storage, and where in it the tensor lies.
pub type Argument<'a> = (&'a CpuStorage, &'a Layout);

/// An operation on the CPU of `x`, a weight and an optional bias.
pub trait Weighted: Send + Sync + 'static {
    /// The operation's name in error messages.
    const NAME: &'static str;

    /// The result and its shape. The bias is contiguous; `x` and the weight are as they were given to
    /// [`apply`].
    fn forward(
        &self,
        x: Argument,
        weight: Argument,
        bias: Option<Argument>,
    ) -> Result<(CpuStorage, Shape)>;

    /// Gradients of `x`, weight and bias for a contiguous cotangent. Without a bias its gradient is ignored.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]>;
}

/// Applies the operation: the result is a node of candle's graph.
pub fn apply(
    op: impl Weighted,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    match bias {
        None => x.apply_op2(weight, Node(op)),
        Some(bias) => x.apply_op3(weight, &bias.contiguous()?, Node(op)),
    }
}

struct Node<O>(O);

impl<O: Weighted> CustomOp2 for Node<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.forward((x, x_layout), (weight, weight_layout), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(O::NAME, grad)?;
        let [dx, dweight, _] = self.0.backward(x, weight, None, &grad)?;
        Ok((dx, dweight))
    }
}

impl<O: Weighted> CustomOp3 for Node<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = Some((bias, bias_layout));
        self.0.forward((x, x_layout), (weight, weight_layout), bias)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let grad = cotangent(O::NAME, grad)?;
        let [dx, dweight, dbias] = self.0.backward(x, weight, Some(bias), &grad)?;
        Ok((dx, dweight, dbias))
    }
}
