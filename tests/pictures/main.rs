//! Images to labels and vectors: PIL, torchvision and transformers are the judges (`weights/fixtures/pictures.py`).

#[path = "../shared/images.rs"]
mod images;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/weights.rs"]
mod weights;

mod bytes;
mod files;
mod pattern;
mod processors;
mod refused;
mod resized;
mod tasks;

use std::path::PathBuf;

/// Returns a path under `weights/pictures`.
fn pictures(local: &str) -> PathBuf {
    weights::weights("pictures").join(local)
}

/// Reads a JSON file under `weights/pictures`.
fn json<T: serde::de::DeserializeOwned>(local: &str) -> T {
    let text = std::fs::read_to_string(pictures(local)).unwrap();
    serde_json::from_str(&text).unwrap()
}
