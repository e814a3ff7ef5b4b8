//! The examples that train, and the one that reads an image, do what they say.
//!
//! Their files are compiled into this program, and name each other as in the example: by its root.

#[cfg(feature = "media")]
#[path = "../shared/images.rs"]
mod images;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/weights.rs"]
mod weights;

#[path = "../../examples/train/arguments.rs"]
mod arguments;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../examples/fine_tune.rs"]
mod fine_tune;
#[allow(dead_code, reason = "its `main`")]
#[cfg(feature = "media")]
#[path = "../../examples/image_classification.rs"]
mod image_classification;
#[allow(dead_code, reason = "what only `main` asks")]
#[path = "../../examples/train/model.rs"]
mod model;
#[path = "../../examples/train/random.rs"]
mod random;
#[path = "../../examples/train/sample.rs"]
mod sample;
#[path = "../../examples/train/text.rs"]
mod text;
#[path = "../../examples/train/training.rs"]
mod training;

mod fine_tuning;
#[cfg(feature = "media")]
mod labels_of_images;
mod positions_run_out;
mod sampling;
mod train;
