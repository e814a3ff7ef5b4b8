//! One vector of the vectors of a text's tokens.

use serde::{Deserialize, Serialize};

/// How the vectors of a text's tokens become one, as in sentence-transformers' `Pooling`:
/// <https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/models/Pooling.py>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The first token's (`[CLS]`).
    Cls,
    /// The largest value of each feature.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the number of tokens.
    #[serde(rename = "mean_sqrt_len_tokens")]
    MeanSqrtLen,
    /// The mean with weights 1, 2, 3 .. by position.
    #[serde(rename = "weightedmean")]
    WeightedMean,
    /// The last token's.
    #[serde(rename = "lasttoken")]
    LastToken,
}

impl Pooling {
    /// All, in the order in which sentence-transformers joins several.
    pub const ALL: [Self; 6] = [
        Self::Cls,
        Self::Max,
        Self::Mean,
        Self::MeanSqrtLen,
        Self::WeightedMean,
        Self::LastToken,
    ];

    /// Pools `rows` of `width` features, of which the first `skipped` are a prompt's, and adds the result to `pooled`.
    pub(super) fn pool(self, rows: &[f32], width: usize, skipped: usize, pooled: &mut Vec<f32>) {
        let n_rows = rows.len() / width;
        let begin = skipped.min(n_rows);
        let row = |i: usize| &rows[i * width..(i + 1) * width];
        let weighted = |weight: fn(usize) -> f64, divisor: fn(f64) -> f64| {
            let mut sums = vec![0f64; width];
            let mut total = 0.0;
            for i in begin..n_rows {
                let weight = weight(i);
                total += weight;
                for (sum, &value) in sums.iter_mut().zip(row(i)) {
                    *sum += weight * f64::from(value);
                }
            }
            let divisor = divisor(f64::max(total, 1e-9));
            sums.into_iter().map(move |sum| (sum / divisor) as f32)
        };
        match self {
            Self::Cls if begin < n_rows => pooled.extend(row(begin)),
            Self::Cls => pooled.extend(row(0)),
            Self::LastToken => pooled.extend(row(n_rows - 1)),
            Self::Mean => pooled.extend(weighted(|_| 1.0, |total| total)),
            Self::MeanSqrtLen => pooled.extend(weighted(|_| 1.0, f64::sqrt)),
            Self::WeightedMean => pooled.extend(weighted(|i| (i + 1) as f64, |total| total)),
            Self::Max => {
                let start = pooled.len();
                pooled.resize(start + width, f32::NEG_INFINITY);
                for i in begin..n_rows {
                    for (most, &value) in pooled[start..].iter_mut().zip(row(i)) {
                        *most = if value > *most || value.is_nan() {
                            value
                        } else {
                            *most
                        };
                    }
                }
            }
        }
    }
}

impl std::fmt::Display for Pooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}
