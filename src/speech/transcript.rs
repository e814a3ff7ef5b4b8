//! Transcripts.

use serde::{Serialize, Serializer};

/// A clip's words.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Transcript {
    /// The whole text.
    pub text: String,
    /// The text in parts with times, if times were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<Chunk>,
}

/// A transcript's part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chunk {
    /// Its text.
    pub text: String,
    /// Its beginning and its end in seconds; `None` if the model wrote no time.
    #[serde(serialize_with = "pair")]
    pub timestamp: (Option<f64>, Option<f64>),
}

fn pair<S: Serializer>(
    (from, to): &(Option<f64>, Option<f64>),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    [from, to].serialize(serializer)
}
