//! Falcon Mamba: Mamba with norms without weights over the keys, the queries and the rows from which steps are projected.
//!
//! transformers' `FalconMambaMixer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/falcon_mamba/modeling_falcon_mamba.py>

use super::mamba::{stack, table};
use super::prelude::*;

pub(super) fn family() -> Family {
    table("falcon_mamba", |json| {
        let norm = NormConfig::rms_norm(1, json.number(&["mixer_rms_eps"], 1e-6)?);
        stack(json, Some(norm.with_weight(NormWeight::Absent)))
    })
}
