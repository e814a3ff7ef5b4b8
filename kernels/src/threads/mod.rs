//! Work divided among threads.

pub(crate) mod parallel;
pub(crate) mod shared;
pub(crate) mod target;
pub(crate) mod team;

pub use parallel::{
    for_chunk_pairs, for_chunks, for_pieces_of, for_tasks, part, threads_for, threads_worth,
    worthwhile,
};
pub use team::with_team;
