//! Converts logits, and vectors of tokens, to scores.

use std::str::FromStr;

use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::config::Activation;
use crate::error::{Error, Result};
use crate::ops;

/// The similarity of two texts with a vector for each token, from the largest dot product of each of the query's vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TokenSimilarity {
    /// The mean, as in FlagEmbedding.
    #[default]
    Mean,
    /// The sum (MaxSim), as in ColBERT.
    Sum,
}

impl TokenSimilarity {
    /// Reads sentence-transformers' `similarity_fn_name` for a model with a vector for each token.
    ///
    /// # Errors
    /// If it names another function.
    pub fn open(json: &ConfigJson) -> Result<Self> {
        const KEY: &str = "similarity_fn_name";
        const MEAN: &str = "meanmaxsim";
        json.only(KEY, &["maxsim".into(), MEAN.into(), Value::Null])?;
        Ok(match json.text(&[KEY])?.as_deref() {
            Some(MEAN) => Self::Mean,
            _ => Self::Sum,
        })
    }
}

/// The function that converts logits to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScoreFunction {
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

impl FromStr for FunctionToApply {
    type Err = Error;

    /// Reads transformers' name.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is not one.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "sigmoid" => Ok(Self::Sigmoid),
            "softmax" => Ok(Self::Softmax),
            "none" => Ok(Self::None),
            _ => {
                let reason = format!("{name:?} is unknown; expected sigmoid, softmax or none");
                Err(Error::input("function_to_apply", reason))
            }
        }
    }
}

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
