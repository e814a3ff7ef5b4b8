//! Checkpoints from the Hub, with a local server in its place.

mod cache;
mod downloads;
mod hostile;
#[path = "../../shared/hub_server.rs"]
mod server;
mod setup;
