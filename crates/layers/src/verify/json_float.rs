//! Floats in JSON. JSON has no infinity and no NaN, and an error may be either: they are written as the strings
//! `"inf"`, `"-inf"` and `"NaN"`, which Python's and Rust's float parsers accept. (`null` is a missing value, such
//! as PyTorch's error without an f64 twin.)

use serde::{Serialize, Serializer};

/// Serializes one float.
pub(super) fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else {
        serializer.serialize_str(&value.to_string())
    }
}

/// Serializes an optional float.
pub(super) fn option<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct FiniteNumber(#[serde(serialize_with = "number")] f64);

    value.map(FiniteNumber).serialize(serializer)
}
