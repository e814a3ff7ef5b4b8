//! The comparer, its tolerance, the fixtures it reads and the reports it writes: what every other test rests on.

#[path = "../../../../tests/shared/cases.rs"]
mod cases;

mod comparer;
mod fixtures;
mod gradients;
mod planted;
mod reports;
mod tolerance;
