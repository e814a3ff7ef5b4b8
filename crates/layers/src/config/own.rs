//! Configures layers that a single model family has; `layers/own` holds them.

use serde::{Deserialize, Serialize};

use super::{
    Activation, BlockConfig, NormPlacement, Topology, finite, positive, probability, size,
};
use crate::error::{Error, Result};

mod altup;
mod gemma;
mod layer_input;
mod xielu;
mod zamba;

pub use altup::AltUpConfig;
pub use gemma::GemmaConfig;
pub use layer_input::{LayerInputConfig, LayerInputTable};
pub use xielu::XieluConfig;
pub use zamba::{SharedTransformerConfig, ZambaConfig};

/// The parts that only one family's blocks have. Set them in [`BlockConfig::own`](crate::BlockConfig::own).
///
/// A serialized block has their settings beside its own: `"parallel_dropout": 0.1`. A block with settings of two
/// families is refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "OwnSettings", into = "OwnSettings")]
#[non_exhaustive]
pub enum OwnConfig {
    /// No such parts.
    #[default]
    None,
    /// Gemma 3n and Gemma 4: per-layer inputs, low-rank residuals and several streams.
    Gemma(GemmaConfig),
    /// Jina's embeddings of code: `norm(x + y)` after the attention sublayer, whose output is `y` and whose norm is
    /// placed after its sum ([`NormPlacement::Post`]).
    JinaCode,
    /// Muse Glimmer.
    MuseGlimmer {
        /// The `eps` for the norms of sublayers' outputs (the second in a sandwich).
        output_norm_eps: f64,
    },
    /// Falcon.
    Falcon {
        /// The dropout probability for the sum of a parallel block's two branches.
        parallel_dropout: f64,
    },
    /// wav2vec 2.0's adapters for languages (MMS): `x + down(relu(up(norm(x))))` after the feed-forward.
    Adapter {
        /// The width of the hidden features.
        width: usize,
    },
    /// Zamba 2: transformers that blocks share.
    Zamba(ZambaConfig),
}

impl OwnConfig {
    /// Returns the parts of a Gemma 3n or Gemma 4 block.
    #[must_use]
    pub fn gemma(&self) -> Option<&GemmaConfig> {
        match self {
            Self::Gemma(gemma) => Some(gemma),
            _ => None,
        }
    }

    /// Returns the parts of a Zamba 2 block.
    #[must_use]
    pub fn zamba(&self) -> Option<&ZambaConfig> {
        match self {
            Self::Zamba(zamba) => Some(zamba),
            _ => None,
        }
    }

    /// Returns the shared transformer that the block runs, if any.
    pub(crate) fn transformer(&self) -> Option<&SharedTransformerConfig> {
        self.zamba()?.transformer.as_deref()
    }

    pub(super) fn validate(&self, block: &BlockConfig) -> Result<()> {
        let failed = |reason: &str| Err(Error::InvalidConfig(reason.to_string()));
        match self {
            Self::None => Ok(()),
            Self::Gemma(gemma) => gemma.validate(block.topology),
            Self::JinaCode if block.attention_placement != NormPlacement::Post => {
                failed("JinaCode adds a norm after another; set attention_placement to Post")
            }
            Self::JinaCode => Ok(()),
            Self::MuseGlimmer { .. } => block.output_norm().validate(),
            Self::Adapter { width } => size("adapter width", *width),
            Self::Zamba(zamba) => zamba.validate(block),
            Self::Falcon { parallel_dropout } => {
                probability("parallel dropout", *parallel_dropout)?;
                match block.topology {
                    Topology::Parallel(_) => Ok(()),
                    Topology::Sequential => failed(
                        "parallel_dropout in a sequential block; expected Topology::Parallel",
                    ),
                }
            }
        }
    }
}

/// The settings of all families, as a serialized block has them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct OwnSettings {
    #[serde(flatten)]
    gemma: GemmaConfig,
    second_attention_norm: bool,
    output_norm_eps: Option<f64>,
    parallel_dropout: f64,
    adapter_width: Option<usize>,
    zamba: Option<ZambaConfig>,
}

impl From<OwnConfig> for OwnSettings {
    fn from(own: OwnConfig) -> Self {
        let mut settings = Self::default();
        match own {
            OwnConfig::None => {}
            OwnConfig::Gemma(gemma) => settings.gemma = gemma,
            OwnConfig::JinaCode => settings.second_attention_norm = true,
            OwnConfig::MuseGlimmer { output_norm_eps } => {
                settings.output_norm_eps = Some(output_norm_eps);
            }
            OwnConfig::Falcon { parallel_dropout } => settings.parallel_dropout = parallel_dropout,
            OwnConfig::Adapter { width } => settings.adapter_width = Some(width),
            OwnConfig::Zamba(zamba) => settings.zamba = Some(zamba),
        }
        settings
    }
}

impl TryFrom<OwnSettings> for OwnConfig {
    type Error = String;

    fn try_from(settings: OwnSettings) -> std::result::Result<Self, String> {
        let OwnSettings {
            gemma,
            second_attention_norm,
            output_norm_eps,
            parallel_dropout,
            adapter_width,
            zamba,
        } = settings;
        let is_gemma = gemma != GemmaConfig::default();
        let drops = parallel_dropout != 0.0;
        let eps = output_norm_eps.map(|output_norm_eps| Self::MuseGlimmer { output_norm_eps });
        let parts = [
            is_gemma.then_some(Self::Gemma(gemma)),
            second_attention_norm.then_some(Self::JinaCode),
            eps,
            drops.then_some(Self::Falcon { parallel_dropout }),
            adapter_width.map(|width| Self::Adapter { width }),
            zamba.map(Self::Zamba),
        ];
        let mut parts = parts.into_iter().flatten();
        match [parts.next(), parts.next()] {
            [None, _] => Ok(Self::None),
            [Some(part), None] => Ok(part),
            [Some(one), Some(other)] => Err(format!(
                "a block has the parts {one:?} and {other:?}; expected those of one family"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AttentionConfig, FeedForwardConfig, NormConfig};

    #[test]
    fn settings_are_serialized_beside_those_of_the_block() {
        let parts = [
            OwnConfig::None,
            OwnConfig::Gemma(GemmaConfig {
                laurel_rank: Some(2),
                ..GemmaConfig::default()
            }),
            OwnConfig::JinaCode,
            OwnConfig::MuseGlimmer {
                output_norm_eps: 0.5,
            },
            OwnConfig::Falcon {
                parallel_dropout: 0.1,
            },
            OwnConfig::Adapter { width: 3 },
            OwnConfig::Zamba(ZambaConfig::default()),
        ];
        let block = BlockConfig::new(
            AttentionConfig::with_head_dim(4, 1, 4),
            FeedForwardConfig::new(4),
            NormConfig::layer_norm(4, 1e-5),
            NormPlacement::Post,
        );
        let mut all = serde_json::to_value(block.clone()).unwrap();
        for own in parts {
            let block = block.clone().with_own(own);
            let json = serde_json::to_value(block.clone()).unwrap();
            let read: BlockConfig = serde_json::from_value(json).unwrap();
            assert_eq!(read, block);
        }
        all["laurel_rank"] = 2.into();
        all["parallel_dropout"] = 0.1.into();
        let error = serde_json::from_value::<BlockConfig>(all).unwrap_err();
        let error = error.to_string();
        let named = ["laurel_rank", "parallel_dropout", "one family"];
        assert!(named.iter().all(|name| error.contains(name)), "{error}");
    }
}
