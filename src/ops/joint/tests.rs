use candle_core::{Device, Var};

use super::*;
use crate::ops::{self, Visible};

/// The parameters of two kinds of blocks.
struct Parts {
    x: Var,
    /// Weight and bias of query, key, value, output, up and down.
    linears: Vec<(Var, Var)>,
    norms: Vec<(Var, Var)>,
    keep: Tensor,
}

const BATCH: usize = 2;
const SEQ: usize = 5;
const WIDTH: usize = 12;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;

impl Parts {
    fn new(dtype: DType) -> Self {
        let mut salt = 0.0;
        let mut random = |dims: &[usize]| {
            salt += 0.1;
            let n = dims.iter().product::<usize>();
            let values: Vec<f64> = (0..n)
                .map(|i| (i as f64 * (0.7 + salt)).sin() + 0.1)
                .collect();
            let values = Tensor::from_vec(values, dims, &Device::Cpu).unwrap();
            Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap()
        };
        let kv_width = WIDTH / HEADS * KV_HEADS;
        let shapes = [
            (WIDTH, WIDTH),
            (kv_width, WIDTH),
            (kv_width, WIDTH),
            (WIDTH, WIDTH),
            (31, WIDTH),
            (WIDTH, 31),
        ];
        Self {
            x: random(&[BATCH, SEQ, WIDTH]),
            linears: shapes
                .map(|(d_out, d_in)| (random(&[d_out, d_in]), random(&[d_out])))
                .to_vec(),
            norms: vec![
                (random(&[WIDTH]), random(&[WIDTH])),
                (random(&[WIDTH]), random(&[WIDTH])),
            ],
            keep: Tensor::new(&[[1u8, 1, 1, 0, 0], [1, 1, 1, 1, 1]], &Device::Cpu).unwrap(),
        }
    }

    fn visible(&self) -> Visible<'_> {
        Visible {
            keep: Some(&self.keep),
            ..Visible::default()
        }
    }

    fn mix<'a>(&self, visible: &'a Visible<'a>) -> Mixing<'a> {
        Mixing {
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            scale: 0.6,
            visible,
        }
    }

    /// Norms before and behind the layers; the input is used four times.
    fn jointly(&self) -> Tensor {
        let (mut joint, x) = Joint::new(&self.x).unwrap();
        let norm = |joint: &mut Joint, x, i: usize| {
            let (weight, bias) = &self.norms[i];
            joint.norm(x, weight, Some(bias), &config()).unwrap()
        };
        let linear = |joint: &mut Joint, x, i: usize, residual| {
            let (weight, bias) = &self.linears[i];
            joint.linear(x, weight, Some(bias), residual).unwrap()
        };
        let input = norm(&mut joint, x, 0);
        let projections = [0, 1, 2].map(|i| linear(&mut joint, input, i, None));
        let visible = self.visible();
        let mixed = joint.mix(projections, &self.mix(&visible)).unwrap();
        let x = linear(&mut joint, mixed.unwrap(), 3, Some(x));
        let hidden = linear(&mut joint, x, 4, None);
        let hidden = joint.activate(hidden, Activation::Gelu);
        let sum = linear(&mut joint, hidden, 5, Some(x));
        norm(&mut joint, sum, 1);
        joint.run().unwrap()
    }

    fn one_by_one(&self) -> Tensor {
        let norm = |x: &Tensor, i: usize| {
            let (weight, bias) = &self.norms[i];
            ops::norm(x, weight, Some(bias), &config()).unwrap()
        };
        let linear = |x: &Tensor, i: usize| {
            let (weight, bias) = &self.linears[i];
            ops::linear(x, weight, Some(bias)).unwrap()
        };
        let input = norm(&self.x, 0);
        let [query, key, value] = [0, 1, 2].map(|i| linear(&input, i));
        let visible = self.visible();
        let mixed = ops::mix(&query, &key, &value, &self.mix(&visible)).unwrap();
        let x = (self.x.as_tensor() + linear(&mixed, 3)).unwrap();
        let hidden = ops::activate(&linear(&x, 4), Activation::Gelu).unwrap();
        norm(&(&x + linear(&hidden, 5)).unwrap(), 1)
    }

    fn all(&self) -> impl Iterator<Item = &Var> {
        let pairs = self.linears.iter().chain(&self.norms);
        pairs.flat_map(|(w, b)| [w, b]).chain([&self.x])
    }
}

fn config() -> NormConfig {
    NormConfig::layer_norm(WIDTH, 1e-5)
}

fn values(t: &Tensor) -> Vec<f64> {
    let t = t.to_dtype(DType::F64).unwrap();
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// A loss whose gradient differs from element to element.
fn loss(y: &Tensor) -> Tensor {
    let n = y.elem_count();
    let weights: Vec<f64> = (0..n).map(|i| (i as f64 * 1.7).cos()).collect();
    let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu).unwrap();
    let weights = weights.to_dtype(y.dtype()).unwrap();
    (y * weights).unwrap().sum_all().unwrap()
}

#[test]
fn values_are_those_of_the_operations_one_by_one_to_the_bit() {
    for dtype in [DType::F32, DType::F64] {
        let parts = Parts::new(dtype);
        assert_eq!(values(&parts.jointly()), values(&parts.one_by_one()));
    }
}

#[test]
fn gradients_are_those_of_the_operations_one_by_one() {
    let parts = Parts::new(DType::F64);
    let ours = loss(&parts.jointly());
    let theirs = loss(&parts.one_by_one()).backward().unwrap();
    let (rest, collected) = ops::collecting(|| ours.backward()).unwrap();
    let directly = ours.backward().unwrap();
    for (i, var) in parts.all().enumerate() {
        let expected = values(theirs.get(var).unwrap());
        let largest = expected.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
        assert!(rest.get(var).is_none(), "{i}");
        for found in [collected[&var.id()].tensor(), directly.get(var).unwrap()] {
            for (found, expected) in values(found).iter().zip(&expected) {
                let error = (found - expected).abs();
                assert!(error < 1e-13 * largest.max(1.0), "{i}: {found} {expected}");
            }
        }
    }
}

#[test]
fn what_is_not_tracked_gets_no_gradient_and_changes_no_other() {
    let parts = Parts::new(DType::F64);
    let (x, (up, bias)) = (&parts.x, &parts.linears[4]);
    let run = |x: &Tensor, up: &Tensor, bias: &Tensor| {
        let (mut joint, x) = Joint::new(x).unwrap();
        let hidden = joint.linear(x, up, Some(bias), None).unwrap();
        joint.activate(hidden, Activation::Silu);
        joint.run().unwrap()
    };
    let constant = |var: &Var| var.as_detached_tensor();
    let all = loss(&run(x, up, bias)).backward().unwrap();
    let of_bias = run(&constant(x), &constant(up), bias);
    let of_bias = loss(&of_bias).backward().unwrap();
    assert!(of_bias.get(x).is_none() && of_bias.get(up).is_none());
    let [found, expected] = [of_bias, all].map(|store| values(store.get(bias).unwrap()));
    assert_eq!(found, expected);
    assert!(!run(&constant(x), &constant(up), &constant(bias)).track_op());
}

#[test]
fn what_does_not_fit_is_left_to_the_operations() {
    let parts = Parts::new(DType::F32);
    assert!(Joint::new(&parts.x.transpose(0, 1).unwrap()).is_none());
    assert!(Joint::new(&parts.x.to_dtype(DType::BF16).unwrap()).is_none());
    assert!(Joint::new(&parts.x.flatten(0, 1).unwrap()).is_none());
    let (mut joint, x) = Joint::new(&parts.x).unwrap();
    let (up, down) = (&parts.linears[4].0, &parts.linears[5].0);
    assert!(joint.linear(x, down, None, None).is_none());
    assert!(joint.linear(x, &down.t().unwrap(), None, None).is_none());
    assert!(joint.linear(x, up, None, Some(x)).is_none());
    let other = up.to_dtype(DType::F64).unwrap();
    assert!(joint.linear(x, &other, None, None).is_none());
    let (weight, _) = &parts.norms[0];
    assert!(joint.norm(x, weight, None, &config()).is_none());
    let visible = Visible {
        keep: Some(&parts.keep.t().unwrap()),
        ..Visible::default()
    };
    let mixed = joint.mix([x; 3], &parts.mix(&visible)).unwrap();
    assert!(mixed.is_none());
    assert!(joint.run().is_err());
}
