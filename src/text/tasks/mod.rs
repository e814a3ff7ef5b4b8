//! Whole tasks on texts, with the results that transformers' pipelines and sentence-transformers give.

pub(super) mod answers;
pub(super) mod entities;
pub(super) mod gliner;
pub(super) mod mask_filler;
pub(super) mod question_answerer;
pub(super) mod ranker;
pub(super) mod token_classifier;
pub(super) mod zero_shot;
