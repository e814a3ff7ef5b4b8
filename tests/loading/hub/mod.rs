//! Checkpoints from the Hub, of which a server on this machine plays the part.

mod cache;
mod downloads;
mod hostile;
mod server;
mod setup;
