//! Distribution of work among threads.

pub(crate) mod parallel;
mod primitives;
pub(crate) mod shared;
pub(crate) mod target;
pub(crate) mod team;

pub use parallel::{for_chunks, for_pieces_of, threads_for};
pub(crate) use shared::Shared;
pub(crate) use target::Target;
pub use team::with_team;
