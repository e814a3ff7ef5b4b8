//! The examples that train do what they say.
//!
//! Their files are compiled into this program, and name each other as in the example: by its root.

#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/weights.rs"]
mod weights;

// Of an example, tests use a part.
#[allow(dead_code)]
#[path = "../../examples/train/arguments.rs"]
mod arguments;
#[allow(dead_code)]
#[path = "../../examples/fine_tune.rs"]
mod fine_tune;
#[allow(dead_code)]
#[path = "../../examples/train/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../../examples/train/random.rs"]
mod random;
#[allow(dead_code)]
#[path = "../../examples/train/sample.rs"]
mod sample;
#[allow(dead_code)]
#[path = "../../examples/train/text.rs"]
mod text;
#[allow(dead_code)]
#[path = "../../examples/train/training.rs"]
mod training;

mod fine_tuning;
mod sampling;
mod train;
