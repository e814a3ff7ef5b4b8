//! Speech to text: transformers' pipeline for speech is the judge.

#[path = "../shared/sounds.rs"]
mod sounds;
#[path = "../shared/weights.rs"]
mod weights;

mod ctc;
mod judged;
mod refused;
mod whisper;
