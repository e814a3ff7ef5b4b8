//! Checkpoints: files on disk, and the layers they hold.

pub mod files;
pub mod write;
