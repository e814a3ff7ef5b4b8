use candle_core::{Device, Var};

use super::*;
use crate::{
    Visibility,
    ops::{attention_softmax, batched_product},
};

/// Attention composed of separate operations, all on `[batch, heads, seq, head_dim]`.
fn composed(query: &Tensor, key: &Tensor, value: &Tensor, mixing: &Mixing) -> Result<Tensor> {
    let (batch, heads, queries, head_dim) = query.dims4()?;
    let keys = key.dim(2)?;
    let rows = heads / mixing.n_kv_heads * queries;
    let stacked =
        query
            .affine(mixing.scale, 0.0)?
            .reshape((batch, mixing.n_kv_heads, rows, head_dim))?;
    let scores = batched_product(&stacked, &key.transpose(2, 3)?)?;
    let scores = scores.reshape((batch, heads, queries, keys))?;
    let weights = attention_softmax(&scores, mixing.visible)?;
    let weights = weights.reshape((batch, mixing.n_kv_heads, rows, keys))?;
    batched_product(&weights, value)?
        .reshape((batch, heads, queries, head_dim))?
        .transpose(1, 2)?
        .reshape((batch, queries, heads * head_dim))
}

fn bits(t: &Tensor) -> Vec<u32> {
    let values = t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn largest(a: &Tensor, b: &Tensor) -> f64 {
    let difference = (a - b).unwrap().abs().unwrap();
    difference.max_all().unwrap().to_scalar().unwrap()
}

const BATCH: usize = 2;

struct Shape4(usize, usize, usize, usize);

/// Numbers of heads, key/value heads, queries and keys.
const SHAPES: [Shape4; 5] = [
    Shape4(1, 1, 1, 1),
    Shape4(3, 3, 5, 5),
    Shape4(4, 2, 7, 9),
    Shape4(6, 1, 3, 17),
    Shape4(2, 2, 130, 140),
];

/// Every mask that so many queries and keys can have.
fn visibles(keep: &Tensor, queries: usize, keys: usize) -> Vec<Visible<'_>> {
    let causal = Visible {
        visibility: Visibility::Causal,
        first_query: keys - queries,
        ..Visible::default()
    };
    vec![
        Visible::default(),
        causal,
        Visible {
            keep: Some(keep),
            window: Some(4),
            ..causal
        },
    ]
}

/// The second sequence is padded, all of its first keys.
fn keep(keys: usize) -> Tensor {
    let marks = (0..BATCH * keys).map(|i| u8::from(i < keys || i % keys > keys / 2));
    Tensor::from_vec(marks.collect(), (BATCH, keys), &Device::Cpu).unwrap()
}

fn randn(dims: (usize, usize, usize, usize)) -> Tensor {
    Tensor::randn(0f64, 1.0, dims, &Device::Cpu).unwrap()
}

fn mixing<'a>((n_heads, n_kv_heads): (usize, usize), visible: &'a Visible) -> Mixing<'a> {
    Mixing {
        n_heads,
        n_kv_heads,
        scale: 0.3,
        visible,
    }
}

#[test]
fn the_bits_are_those_of_the_parts_in_either_form() {
    for Shape4(heads, kv, queries, keys) in SHAPES {
        let of = |n, seq| {
            randn((BATCH, n, seq, 8))
                .to_dtype(candle_core::DType::F32)
                .unwrap()
        };
        let (q, k, v) = (of(heads, queries), of(kv, keys), of(kv, keys));
        let flat = |t: &Tensor| {
            let (batch, heads, seq, head_dim) = t.dims4().unwrap();
            let t = t.transpose(1, 2).unwrap();
            t.reshape((batch, seq, heads * head_dim)).unwrap()
        };
        let keep = keep(keys);
        for visible in visibles(&keep, queries, keys) {
            let mixing = mixing((heads, kv), &visible);
            let expected = bits(&composed(&q, &k, &v, &mixing).unwrap());
            assert_eq!(bits(&mix(&q, &k, &v, &mixing).unwrap()), expected);
            let (q, k, v) = (flat(&q), flat(&k), flat(&v));
            assert_eq!(bits(&mix(&q, &k, &v, &mixing).unwrap()), expected);
        }
    }
}

#[test]
fn gradients_are_those_of_the_parts_for_views_too() {
    for Shape4(heads, kv, queries, keys) in SHAPES {
        // Heads as views of rows, so that the gradient goes back through the transpose.
        let of = |n: usize, seq: usize| Var::from_tensor(&randn((BATCH, seq, n, 8))).unwrap();
        let vars = [of(heads, queries), of(kv, keys), of(kv, keys)];
        let views = || vars.each_ref().map(|v| v.transpose(1, 2).unwrap());
        let flat = || vars.each_ref().map(|v| v.flatten_from(2).unwrap());
        let cotangent = Tensor::randn(0f64, 1.0, (BATCH, queries, heads * 8), &Device::Cpu);
        let cotangent = cotangent.unwrap();
        let keep = keep(keys);
        for visible in visibles(&keep, queries, keys) {
            let mixing = mixing((heads, kv), &visible);
            let gradients = |y: Tensor| {
                let loss = (y * &cotangent).unwrap().sum_all().unwrap();
                loss.backward().unwrap()
            };
            let [q, k, v] = views();
            let expected = gradients(composed(&q, &k, &v, &mixing).unwrap());
            for [q, k, v] in [views(), flat()] {
                let found = gradients(mix(&q, &k, &v, &mixing).unwrap());
                for var in &vars {
                    let error = largest(found.get(var).unwrap(), expected.get(var).unwrap());
                    assert!(error < 1e-12, "{heads} {kv} {queries} {keys}: {error}");
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_an_error_that_names_them() {
    let visible = Visible::default();
    let mixing = Mixing {
        n_heads: 2,
        n_kv_heads: 2,
        scale: 1.0,
        visible: &visible,
    };
    let (q, k) = (randn((1, 2, 3, 8)), randn((1, 2, 4, 8)));
    let short = randn((1, 2, 5, 8));
    let message = mix(&q, &k, &short, &mixing).unwrap_err().to_string();
    assert!(message.contains("[1, 2, 5, 8]"), "{message}");
    let other = randn((1, 3, 4, 8));
    let message = mix(&q, &other, &k, &mixing).unwrap_err().to_string();
    assert!(message.contains("2 heads"), "{message}");
}
