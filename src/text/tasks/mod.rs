//! Whole tasks on texts, with the results of transformers' pipelines.

pub(super) mod entities;
pub(super) mod mask_filler;
pub(super) mod token_classifier;
pub(super) mod zero_shot;
