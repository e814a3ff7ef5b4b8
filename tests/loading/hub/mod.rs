//! Checkpoints from the Hub, with a local server in its place.

mod cache;
mod downloads;
mod hostile;
mod server;
mod setup;
