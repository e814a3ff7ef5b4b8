//! The properties by which other parts of a model know a mixer.

use super::{AttentionConfig, Visibility};
use crate::config::{Position, RotaryAxes};

/// The properties by which other parts of a model know a mixer.
/// [`MixerConfig::facts`](crate::config::MixerConfig::facts) returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MixerFacts {
    /// The width of the input and the output.
    pub d_model: usize,
    /// True if no position reads a later one. A cache requires this.
    pub is_causal: bool,
    /// True if the output depends on the tokens' indices.
    pub reads_positions: bool,
    /// The earlier layer whose keys and values the mixer reads.
    pub shares_from: Option<usize>,
    /// How a packed stack treats padding.
    pub padding: PaddedRows,
    /// How many elements a recurrent mixer's state has for one sequence. `None` if a cache grows with every position.
    pub state: Option<usize>,
    /// The heads, if the mixer has any.
    pub heads: Option<HeadLayout>,
}

/// How a packed stack treats padding: [`MixerFacts::padding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaddedRows {
    /// The input may lack padded rows. The other rows keep their values.
    LeftOut,
    /// The input has padded rows, and a mask.
    Masked,
}

/// A mixer's heads: [`MixerFacts::heads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadLayout {
    /// The query heads.
    pub n_heads: usize,
    /// The key and value heads.
    pub n_kv_heads: usize,
    /// A query's width.
    pub head_dim: usize,
}

impl MixerFacts {
    /// Returns the properties of a recurrent mixer whose state has this many elements.
    pub(super) fn recurrent(d_model: usize, state: usize) -> Self {
        Self {
            state: Some(state),
            ..Self::row_by_row(d_model)
        }
    }

    /// Returns the properties of this mixer after an attention that the block runs, as wide as it likes.
    pub(crate) fn after(self, attention: Option<&AttentionConfig>) -> Self {
        let Some(of) = attention.map(AttentionConfig::facts) else {
            return self;
        };
        Self {
            d_model: self.d_model,
            state: self.state,
            padding: match self.padding {
                PaddedRows::LeftOut => of.padding,
                PaddedRows::Masked => PaddedRows::Masked,
            },
            ..of
        }
    }

    /// Returns the properties of a block in which no position reads another.
    pub(crate) fn row_by_row(d_model: usize) -> Self {
        Self {
            d_model,
            is_causal: true,
            reads_positions: false,
            shares_from: None,
            padding: PaddedRows::LeftOut,
            state: None,
            heads: None,
        }
    }
}

impl AttentionConfig {
    /// Returns the properties by which other parts of a model know this attention.
    #[doc(hidden)]
    pub fn facts(&self) -> MixerFacts {
        let counts_keys = matches!(self.position, Position::Alibi(alibi) if !alibi.both_sides);
        MixerFacts {
            d_model: self.d_model,
            is_causal: self.visibility == Visibility::Causal,
            reads_positions: match &self.position {
                Position::Rotary(rotary) => !matches!(rotary.axes, Some(RotaryAxes::Patches(_))),
                _ => false,
            },
            shares_from: self.shared_keys,
            padding: match counts_keys || self.shared_keys.is_some() {
                true => PaddedRows::Masked,
                false => PaddedRows::LeftOut,
            },
            state: None,
            heads: Some(HeadLayout {
                n_heads: self.n_heads,
                n_kv_heads: self.n_kv_heads,
                head_dim: self.head_dim,
            }),
        }
    }
}
