//! Converts logits, and vectors of tokens, to scores.

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::config_json::ConfigJson;
use crate::config::Activation;
use crate::error::{Error, Result, from_name};
use crate::ops;
use crate::text::sentences::stages::VectorMap;

/// The similarity between two texts: between their vectors, or from each query token's largest dot product with a document's
/// token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Similarity {
    #[default]
    Cosine,
    Dot,
    /// The negative distance.
    Euclidean,
    /// The negative sum over absolute differences.
    Manhattan,
    /// The sum over tokens, as in ColBERT.
    MaxSim,
    /// The mean over tokens, as in FlagEmbedding.
    MeanMaxSim,
}

impl Similarity {
    /// Returns each query's similarity `[n, d]` with each document `[m, d]`, `[n, m]`.
    ///
    /// # Errors
    /// If the vectors have different widths, or the function compares tokens.
    pub fn of_vectors(self, queries: &Tensor, documents: &Tensor) -> Result<Tensor> {
        let dot = |a: &Tensor, b: &Tensor| Ok(a.matmul(&b.t()?)?);
        // Sums in f64: distances between near vectors are small differences.
        let distances = |term: fn(f64) -> f64, whole: fn(f64) -> f64| -> Result<Tensor> {
            let rows = |x: &Tensor| x.to_dtype(DType::F32)?.to_vec2::<f32>();
            let (queries, documents) = (rows(queries)?, rows(documents)?);
            let one = |a: &[f32], b: &[f32]| {
                let terms = a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b));
                -whole(terms.map(term).sum()) as f32
            };
            let all = queries.iter().map(|a| documents.iter().map(|b| one(a, b)));
            let shape = (queries.len(), documents.len());
            let all: Vec<f32> = all.flatten().collect();
            Ok(Tensor::from_vec(all, shape, &Device::Cpu)?)
        };
        let (d, other) = (queries.dims2()?.1, documents.dims2()?.1);
        if d != other {
            let reason = format!("have {other} features, but the queries have {d}");
            return Err(Error::input("documents", reason));
        }
        match self {
            Self::Dot => dot(queries, documents),
            Self::Cosine => {
                let unit = |x| VectorMap::Normalize.forward(x);
                dot(&unit(queries)?, &unit(documents)?)
            }
            Self::Euclidean => distances(|x| x * x, f64::sqrt),
            Self::Manhattan => distances(f64::abs, |sum| sum),
            Self::MaxSim | Self::MeanMaxSim => {
                let reason = "the model gives a vector for each token; use `max_sim`";
                Err(Error::InvalidConfig(reason.into()))
            }
        }
    }
}

/// Returns the index of the highest score, the first of equal ones.
pub(super) fn best(scores: &[f32]) -> usize {
    let indices = 1..scores.len();
    indices.fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

/// Returns the scores' indices, the highest first, and equal ones in their order.
pub(super) fn best_first(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Plus zero: -0 is no less than 0.
    order.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
    order
}

/// The function that converts logits to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScoreFunction {
    /// The same function for every logit.
    Each(Activation),
    Softmax,
}

/// A function that converts a classifier's logits to scores: transformers' `function_to_apply`.
///
/// Pass it to [`TextOptions::function_to_apply`](crate::text::TextOptions::function_to_apply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FunctionToApply {
    /// The sigmoid of each logit, for labels of which several may fit.
    Sigmoid,
    /// The softmax over all labels, of which one fits.
    Softmax,
    /// The logits are the scores.
    None,
}

from_name!(FunctionToApply, "function_to_apply",
    "sigmoid" => Self::Sigmoid,
    "softmax" => Self::Softmax,
    "none" => Self::None,
);

impl From<FunctionToApply> for ScoreFunction {
    fn from(function: FunctionToApply) -> Self {
        match function {
            FunctionToApply::Sigmoid => Self::Each(Activation::Sigmoid),
            FunctionToApply::Softmax => Self::Softmax,
            FunctionToApply::None => Self::Each(Activation::Identity),
        }
    }
}

impl ScoreFunction {
    /// Returns the function that transformers' `TextClassificationPipeline` applies
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/text_classification.py>).
    ///
    /// # Errors
    /// If `problem_type` is not one of transformers' three.
    pub fn of_pipeline(json: Option<&ConfigJson>, n_labels: usize) -> Result<Self> {
        const KEY: &str = "problem_type";
        let by_number = match n_labels {
            1 => Self::Each(Activation::Sigmoid),
            _ => Self::Softmax,
        };
        let Some(json) = json else {
            return Ok(by_number);
        };
        match json.text(&[KEY])?.as_deref() {
            Some("regression") => Ok(Self::Each(Activation::Identity)),
            Some("multi_label_classification") => Ok(Self::Each(Activation::Sigmoid)),
            Some("single_label_classification") | None => Ok(by_number),
            Some(other) => {
                let known = "\"regression\", \"single_label_classification\" and \"multi_label_classification\"";
                Err(json.error(&[KEY], format!("{other:?} is unknown; known are {known}")))
            }
        }
    }

    /// Returns the scores for one text's logits.
    pub fn scores(self, logits: &[f32]) -> Result<Vec<f32>> {
        match self {
            Self::Each(Activation::Identity) => Ok(logits.to_vec()),
            Self::Each(Activation::Sigmoid) => {
                let sigmoid = |&x: &f32| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32;
                Ok(logits.iter().map(sigmoid).collect())
            }
            Self::Each(activation) => {
                let logits = Tensor::new(logits, &Device::Cpu)?;
                Ok(ops::activate(&logits, activation)?.to_vec1()?)
            }
            Self::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exponential = |&x: &f32| f64::exp(f64::from(x) - f64::from(most));
                let total: f64 = logits.iter().map(exponential).sum();
                let scores = logits.iter().map(|x| (exponential(x) / total) as f32);
                Ok(scores.collect())
            }
        }
    }
}
