//! Additional fixtures for whole models: each tower alone, and images with another size than in training.

use std::path::PathBuf;

use candle_blocks::candle_core::{DType, Tensor};
use candle_blocks::checkpoint::scheme::StackPart;
use candle_blocks::trace::{self, TraceInput};
use candle_blocks::verify::{Comparer, Fixture, Scope};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision};

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::weights::{is_present, weights};
use crate::whole::of_whole;

/// A fixture beside `whole.safetensors`.
struct Variant {
    folder: PathBuf,
    label: String,
    fixture: Fixture,
}

/// All there are; none in the package, which leaves them out.
fn variants() -> Vec<Variant> {
    let mut found = Vec::new();
    for folder in ["families", "heads"] {
        if !is_present(folder) {
            return found;
        }
        for entry in std::fs::read_dir(weights(folder)).unwrap() {
            let folder = entry.unwrap().path();
            for name in ["text", "vision", "resized"] {
                let path = folder.join(format!("whole.{name}.safetensors"));
                if path.exists() {
                    found.push(Variant {
                        label: path.display().to_string(),
                        fixture: Fixture::open(&path).unwrap(),
                        folder: folder.clone(),
                    });
                }
            }
        }
    }
    assert!(found.len() >= 20, "only {}", found.len());
    found
}

impl Variant {
    fn open(&self) -> Checkpoint {
        let options = CheckpointOptions::default();
        let family = &self.fixture.metadata()["family"];
        let options = match family {
            _ if family.ends_with("_text_model") => options.part(StackPart::Text),
            _ if family.ends_with("_vision_model") => options.part(StackPart::Vision),
            _ => options.whole(),
        };
        let opened = options.open(&self.folder);
        opened.unwrap_or_else(|error| panic!("{}: {error}", self.label))
    }

    fn input(&self) -> TraceInput {
        TraceInput::new(|name| self.fixture.tensor(name).cloned()).unwrap()
    }

    #[track_caller]
    fn judge(&self, how: &str, stages: candle_blocks::Result<Vec<(String, Tensor)>>, scope: Scope) {
        let stages = stages.unwrap_or_else(|error| panic!("{} {how}: {error}", self.label));
        let produced = stages.into_iter().collect();
        let report = Comparer::new().verify(&self.fixture, &produced, scope);
        // As in `parity`.
        let mut judged = report.comparisons.iter();
        let passed = judged
            .all(|c| c.passed() || c.name.starts_with("grads.") && c.share_used <= of_whole());
        let n_compared = report.comparisons.len();
        // A model without pooler and head gives these alone.
        let of_every_model = ["embeddings", "last_hidden_state"];
        let further = ["pooler_output", "logits", "text_embeds", "image_embeds"];
        let outputs = of_every_model.iter().chain(&further);
        let n_outputs = outputs
            .filter(|&&name| self.fixture.tensor(name).is_some())
            .count();
        assert!(n_outputs >= of_every_model.len(), "{}", self.label);
        assert!(
            passed && n_compared >= n_outputs,
            "{} {how}\n{report}",
            self.label
        );
    }
}

#[test]
fn towers_alone_and_images_of_every_size_give_transformers_results_and_gradients() {
    for variant in variants() {
        let (checkpoint, input) = (variant.open(), variant.input());
        let stages = trace::run_backward(&checkpoint, &input, DType::F32, &device());
        variant.judge("backward", stages, Scope::ForwardAndBackward);
    }
}

#[test]
fn packed_they_give_transformers_results() {
    cpu_only("packed weights");
    for variant in variants() {
        let (checkpoint, input) = (variant.open(), variant.input());
        let stages = trace::run_packed(&checkpoint, &input, DType::F32, Precision::F32);
        variant.judge("packed", stages, Scope::Forward);
    }
}
