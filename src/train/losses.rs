//! Losses for training embedding models, with the values and gradients of sentence-transformers.
//!
//! Each takes vectors `[batch, d]`, a row for each example, and returns a scalar for
//! [`AdamW::backward`](super::AdamW::backward). The formulas are those in
//! <https://github.com/huggingface/sentence-transformers/tree/v6.2.0/sentence_transformers/sentence_transformer/losses>.
//!
//! ```
//! use candle_blocks::candle_core::{Device, Tensor};
//! use candle_blocks::train::losses::{PairSimilarity, matryoshka, multiple_negatives};
//! let [queries, documents] = [(); 2].map(|()| Tensor::randn(0f32, 1., (4, 16), &Device::Cpu).unwrap());
//! let loss = matryoshka(&[queries, documents], &[(16, 1.0), (8, 0.5)], |short| {
//!     multiple_negatives(&short[0], &short[1..], PairSimilarity::Cosine, 20.0)
//! })?;
//! assert_eq!(loss.rank(), 0);
//! # Ok::<(), candle_blocks::Error>(())
//! ```

use std::ops::Range;

use candle_core::{D, DType, Tensor};

use crate::error::{Error, Result};
use crate::ops;

/// The square of the smallest length by which a vector is divided, 1e-12 as in PyTorch's `normalize`.
const LEAST_SQUARE: f64 = 1e-24;

/// The similarity of two vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairSimilarity {
    /// The cosine of the angle: `cos_sim`.
    #[default]
    Cosine,
    /// The dot product: `dot_score`.
    Dot,
}

/// The distance of two vectors: `TripletDistanceMetric`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TripletDistance {
    /// One minus the cosine.
    Cosine,
    /// The square root of the sum over squared differences.
    #[default]
    Euclidean,
    /// The sum over absolute differences.
    Manhattan,
}

/// Returns the loss of a query against the documents of its batch, `MultipleNegativesRankingLoss` (InfoNCE): the cross-entropy of
/// `scale` times each query's similarities with all documents, where the document with the query's row is right. `documents` are
/// the right ones `[batch, d]`, and then any number of hard negatives with the same shape. sentence-transformers' scale is 20.
///
/// # Errors
/// If there are no documents, or shapes do not match.
pub fn multiple_negatives(
    queries: &Tensor,
    documents: &[Tensor],
    similarity: PairSimilarity,
    scale: f64,
) -> Result<Tensor> {
    let Some(first) = documents.first() else {
        let reason = "missing; give the document of each query";
        return Err(Error::input("documents", reason));
    };
    same_shape("documents", queries, documents)?;
    let batch = first.dim(0)?;
    let documents = Tensor::cat(documents, 0)?;
    let scores = match similarity {
        PairSimilarity::Dot => queries.matmul(&documents.t()?)?,
        PairSimilarity::Cosine => unit(queries)?.matmul(&unit(&documents)?.t()?)?,
    }; // [batch, batch · (1 + n_negatives)]
    let right = Tensor::arange(0u32, batch as u32, queries.device())?;
    Ok(ops::cross_entropy(&(scores * scale)?, &right)?)
}

/// Returns `CoSENTLoss`: ln(1 + Σ exp(s_i − s_j)) over all pairs of examples where i has a smaller label than j; s is `scale`
/// times the cosine of an example's two vectors. sentence-transformers' scale is 20.
///
/// # Errors
/// If shapes do not match, or there is another number of labels.
pub fn cosent(first: &Tensor, second: &Tensor, labels: &[f32], scale: f64) -> Result<Tensor> {
    same_shape("second", first, std::slice::from_ref(second))?;
    let n = first.dim(0)?;
    if labels.len() != n {
        let reason = format!(
            "found {}, expected one for each of {n} examples",
            labels.len()
        );
        return Err(Error::input("labels", reason));
    }
    let scores = (pairwise(first, second, PairSimilarity::Cosine)? * scale)?;
    let (mut lower, mut higher) = (Vec::new(), Vec::new());
    for (i, low) in (0u32..).zip(labels) {
        for (j, high) in (0u32..).zip(labels) {
            if low < high {
                lower.push(i);
                higher.push(j);
            }
        }
    }
    let of = |rows: Vec<u32>| -> Result<Tensor> {
        let rows = Tensor::new(rows, scores.device())?;
        Ok(scores.index_select(&rows, 0)?)
    };
    // ln(1 + Σ exp(x)) is the cross-entropy of the logits 0, x .. whose first is right.
    let zero = scores.zeros_like()?.narrow(0, 0, 1)?;
    let logits = match lower.is_empty() {
        true => zero,
        false => Tensor::cat(&[zero, (of(lower)? - of(higher)?)?], 0)?,
    };
    let right = Tensor::new(&[0u32], scores.device())?;
    Ok(ops::cross_entropy(&logits.unsqueeze(0)?, &right)?)
}

/// Returns `TripletLoss`: the mean of max(0, distance to the positive − distance to the negative + `margin`).
/// sentence-transformers' distance is the Euclidean one, and its margin 5.
///
/// # Errors
/// If shapes do not match.
pub fn triplet(
    anchors: &Tensor,
    positives: &Tensor,
    negatives: &Tensor,
    distance: TripletDistance,
    margin: f64,
) -> Result<Tensor> {
    let others = [positives.clone(), negatives.clone()];
    same_shape("positives or negatives", anchors, &others)?;
    let to = |other: &Tensor| -> Result<Tensor> {
        Ok(match distance {
            TripletDistance::Cosine => {
                let cosine = pairwise(anchors, other, PairSimilarity::Cosine)?;
                (1.0 - cosine)?
            }
            TripletDistance::Euclidean => length((anchors - other)?.sqr()?.sum(D::Minus1)?)?,
            TripletDistance::Manhattan => (anchors - other)?.abs()?.sum(D::Minus1)?,
        })
    };
    let excess = ((to(positives)? - to(negatives)?)? + margin)?;
    Ok(excess.relu()?.mean_all()?)
}

/// Returns `MarginMSELoss`: the mean squared error of a query's dot product with its positive minus that with each negative, against
/// `margins` `[batch, n_negatives]`, a teacher's differences.
///
/// # Errors
/// If there are no negatives, or shapes do not match.
pub fn margin_mse(
    queries: &Tensor,
    positives: &Tensor,
    negatives: &[Tensor],
    margins: &Tensor,
) -> Result<Tensor> {
    same_shape("positives", queries, std::slice::from_ref(positives))?;
    same_shape("negatives", queries, negatives)?;
    let expected = [queries.dim(0)?, negatives.len()];
    if negatives.is_empty() || margins.dims() != expected {
        let found = margins.dims();
        let reason =
            format!("found {found:?}, expected [batch, n_negatives], which is {expected:?}");
        return Err(Error::input("margins", reason));
    }
    let right = pairwise(queries, positives, PairSimilarity::Dot)?;
    let differences = negatives.iter().map(|negative| {
        let wrong = pairwise(queries, negative, PairSimilarity::Dot)?;
        Ok((&right - wrong)?)
    });
    let differences = differences.collect::<Result<Vec<_>>>()?;
    let differences = Tensor::stack(&differences, 1)?;
    Ok(ops::mse(&differences, margins)?)
}

/// Returns `MatryoshkaLoss`: the sum of `loss` for vectors that keep their first features and are then normalized, for each number of
/// features with its weight.
///
/// # Errors
/// If a number of features is 0 or larger than the vectors', or `loss` fails.
pub fn matryoshka(
    vectors: &[Tensor],
    dims: &[(usize, f64)],
    mut loss: impl FnMut(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for &(dim, weight) in dims {
        let short = vectors.iter().map(|vectors| {
            let width = vectors.dim(D::Minus1)?;
            if dim == 0 || dim > width {
                let reason =
                    format!("found {dim}, expected 1 to {width}, the features of a vector");
                return Err(Error::input("dims", reason));
            }
            unit(&vectors.narrow(D::Minus1, 0, dim)?)
        });
        let one = (loss(&short.collect::<Result<Vec<_>>>()?)? * weight)?;
        total = Some(match total {
            Some(total) => (total + one)?,
            None => one,
        });
    }
    let missing = || Error::input("dims", "missing; name at least one number of features");
    total.ok_or_else(missing)
}

/// The gradient of a loss by all vectors of a large batch, which is then passed on in parts (GradCache,
/// <https://arxiv.org/abs/2101.06983>): sentence-transformers' `Cached..` losses.
///
/// Activations exist for one part at a time. A step computes all vectors in parts without a gradient, the cache from them, and
/// then each part again with a gradient:
///
/// ```
/// use candle_blocks::candle_core::{Device, Tensor, Var};
/// use candle_blocks::train::{Gradients, losses::{GradCache, PairSimilarity, multiple_negatives}};
/// let variable = Var::randn(0f32, 1., (6, 3), &Device::Cpu)?;
/// let parameters = [("weight".to_string(), variable.clone())];
/// let [x, y] = [(); 2].map(|()| Tensor::randn(0f32, 1., (8, 6), &Device::Cpu).unwrap());
/// let vectors = |rows: &Tensor| rows.matmul(&variable); // your model, with the same dropout both times
/// let all = [vectors(&x)?.detach(), vectors(&y)?.detach()]; // in parts
/// let cache = GradCache::new(&all, |all| multiple_negatives(&all[0], &all[1..], PairSimilarity::Cosine, 20.0))?;
/// let mut gradients: Option<Gradients> = None;
/// for (which, texts) in [&x, &y].into_iter().enumerate() {
///     for part in [0..4, 4..8] {
///         let again = vectors(&texts.narrow(0, part.start, part.len())?)?;
///         let passed = Gradients::backward(&parameters, &cache.surrogate(which, part, &again)?)?;
///         match &mut gradients {
///             Some(gradients) => gradients.accumulate(passed)?,
///             None => gradients = Some(passed),
///         }
///     }
/// }
/// assert!(gradients.is_some() && cache.loss() > 0.0);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GradCache {
    loss: f64,
    gradients: Vec<Tensor>,
}

impl GradCache {
    /// Computes a loss of all vectors and its gradients by them.
    ///
    /// # Errors
    /// If `loss` or its backward pass fails.
    pub fn new(vectors: &[Tensor], loss: impl FnOnce(&[Tensor]) -> Result<Tensor>) -> Result<Self> {
        let named = vectors.iter().enumerate();
        let variables = named.map(|(i, vectors)| {
            let variable = candle_core::Var::from_tensor(&vectors.detach())?;
            Ok((i.to_string(), variable))
        });
        let variables = variables.collect::<Result<Vec<_>>>()?;
        let leaves = variables.iter();
        let leaves: Vec<Tensor> = leaves.map(|(_, leaf)| leaf.as_tensor().clone()).collect();
        let loss = loss(&leaves)?;
        let value = super::loss_value(&loss)?;
        let found = super::Gradients::backward(&variables, &loss)?;
        let gradients = variables.iter().map(|(name, leaf)| {
            let gradient = found.get(name)?;
            Ok(gradient.map_or_else(|| leaf.zeros_like(), Ok)?.detach())
        });
        Ok(Self {
            loss: value,
            gradients: gradients.collect::<Result<_>>()?,
        })
    }

    /// Returns the value of the loss.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// Returns a scalar whose gradient is that of the loss, given some rows of the vectors with the index `which`, computed again
    /// with a gradient. Its value means nothing.
    ///
    /// # Errors
    /// If there are no such vectors or rows, or shapes do not match.
    pub fn surrogate(&self, which: usize, rows: Range<usize>, again: &Tensor) -> Result<Tensor> {
        let fail = |reason: String| Err(Error::input("which", reason));
        let Some(gradient) = self.gradients.get(which) else {
            let n = self.gradients.len();
            return fail(format!(
                "found {which}, expected the index of one of {n} tensors"
            ));
        };
        if rows.start > rows.end || rows.end > gradient.dim(0)? {
            return fail(format!(
                "{which} has no rows {rows:?}: its shape is {:?}",
                gradient.shape()
            ));
        }
        let gradient = gradient.narrow(0, rows.start, rows.len())?;
        if gradient.shape() != again.shape() {
            let (found, expected) = (again.shape(), gradient.shape());
            return fail(format!("{which} found {found:?}, expected {expected:?}"));
        }
        let gradient = gradient.to_dtype(again.dtype())?;
        Ok((again * gradient)?.to_dtype(DType::F32)?.sum_all()?)
    }
}

/// Returns each row's similarity with the row of another tensor, `[batch]`.
fn pairwise(a: &Tensor, b: &Tensor, similarity: PairSimilarity) -> Result<Tensor> {
    let product = match similarity {
        PairSimilarity::Dot => (a * b)?,
        PairSimilarity::Cosine => (unit(a)? * unit(b)?)?,
    };
    Ok(product.sum(D::Minus1)?)
}

/// Returns rows divided by their lengths.
fn unit(rows: &Tensor) -> Result<Tensor> {
    let squares = rows.sqr()?.sum_keepdim(D::Minus1)?;
    Ok(rows.broadcast_div(&length(squares)?)?)
}

/// Returns the lengths for sums over squares. At 0 its gradient is 0, as in PyTorch.
fn length(squares: Tensor) -> Result<Tensor> {
    Ok(squares.maximum(LEAST_SQUARE)?.sqrt()?)
}

/// Checks that tensors are rows of the same shape.
fn same_shape(name: &str, rows: &Tensor, others: &[Tensor]) -> Result<()> {
    rows.dims2()?;
    match others.iter().find(|other| other.shape() != rows.shape()) {
        Some(other) => {
            let reason = format!("found {:?}, expected {:?}", other.dims(), rows.dims());
            Err(Error::input(name, reason))
        }
        None => Ok(()),
    }
}
