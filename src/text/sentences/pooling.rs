//! Combines a text's token vectors into one vector.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The method that combines a text's token vectors into one, as in sentence-transformers' `Pooling`:
/// <https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/models/Pooling.py>.
///
/// Parsed and written with the names in its files: `cls`, `max`, `mean`, `mean_sqrt_len_tokens`, `weightedmean`,
/// `lasttoken`; and with the names of the two kinds that BGE-M3 has besides, `lexical` and `each_token`.
///
/// Pass it to [`TextOptions::pooling`](crate::text::TextOptions::pooling).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The first token's vector (`[CLS]`).
    Cls,
    /// The maximum in each dimension.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// The mean with weights 1, 2, 3 .. by position.
    WeightedMean,
    /// The last token's vector.
    LastToken,
    /// The sum, which only sentence-transformers' `SpladePooling` has.
    Sum,
    /// A weight for each token of the vocabulary, by the folder's `sparse_linear.pt`: the largest of the places where the text
    /// has it. BGE-M3 has such vectors, which are compared by their dot product.
    Lexical,
    /// No pooling: a vector for each token but the first, by the folder's `colbert_linear.pt`.
    /// [`TextEmbedder::token_vectors`](crate::text::TextEmbedder::token_vectors) returns them.
    EachToken,
}

impl Pooling {
    /// The methods of `Pooling`, in the order in which sentence-transformers concatenates several.
    pub const ALL: [Self; 6] = [
        Self::Cls,
        Self::Max,
        Self::Mean,
        Self::MeanSqrtLen,
        Self::WeightedMean,
        Self::LastToken,
    ];

    /// The kinds that read a head beside the model's weights, and go with no other.
    pub const OF_HEADS: [Self; 2] = [Self::Lexical, Self::EachToken];

    /// Returns its name, that in sentence-transformers' files if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::MeanSqrtLen => "mean_sqrt_len_tokens",
            Self::WeightedMean => "weightedmean",
            Self::LastToken => "lasttoken",
            Self::Sum => "sum",
            Self::Lexical => "lexical",
            Self::EachToken => "each_token",
        }
    }

    /// Returns the key that older files set to true.
    pub(crate) fn old_key(self) -> String {
        let ending = match self {
            Self::Cls => "_token",
            Self::Max | Self::Mean | Self::WeightedMean => "_tokens",
            _ => "",
        };
        format!("pooling_mode_{self}{ending}")
    }

    /// Pools `rows` with `width` features and appends the result to `pooled`. The first `skipped` rows belong to a prompt.
    /// A kind that reads a head is not pooled here.
    pub(crate) fn pool(self, rows: &[f32], width: usize, skipped: usize, pooled: &mut Vec<f32>) {
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
            Self::LastToken if begin < n_rows => pooled.extend(row(n_rows - 1)),
            Self::LastToken => pooled.extend(vec![0.0; width]), // all tokens belong to the prompt
            Self::Sum => pooled.extend(weighted(|_| 1.0, |_| 1.0)),
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
            Self::Lexical | Self::EachToken => {}
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = || Self::ALL.into_iter().chain(Self::OF_HEADS);
        let found = all().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| {
            let known = all().map(Self::name).collect::<Vec<_>>().join(", ");
            Error::InvalidConfig(format!(
                "{name:?} is not a known pooling; known are {known}"
            ))
        })
    }
}
