//! Whole models of images and of two stacks against transformers' fixtures: plain, packed and backward.

use std::path::PathBuf;

use candle_blocks::candle_core::DType;
use candle_blocks::checkpoint::scheme::StackPart;
use candle_blocks::trace::{self, TraceInput};
use candle_blocks::verify::{Comparer, Fixture, Scope};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision};

use crate::device::device;
use crate::double::has_f64;
use crate::weights::{is_present, weights};

/// A fixture of a whole model.
pub struct Whole {
    pub folder: PathBuf,
    pub label: String,
    pub fixture: Fixture,
}

/// Families that read images or have two stacks.
const MODEL_TYPES: [&str; 9] = [
    "vit",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "bart",
    "whisper",
    "t5",
    "mt5",
    "clip",
];

/// Every fixture of such a model; none in the package, which leaves them out.
pub fn all() -> Vec<Whole> {
    let mut all = Vec::new();
    for folder in ["families", "heads"].iter().filter(|name| is_present(name)) {
        let mut checkpoints: Vec<PathBuf> = std::fs::read_dir(weights(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        checkpoints.sort();
        all.extend(checkpoints.into_iter().flat_map(of_checkpoint));
    }
    assert!(all.is_empty() || all.len() >= 40, "only {}", all.len());
    all
}

fn of_checkpoint(folder: PathBuf) -> Vec<Whole> {
    let mut found = Vec::new();
    for name in ["whole", "whole.text", "whole.vision", "whole.resized"] {
        let path = folder.join(format!("{name}.safetensors"));
        if !path.exists() {
            continue;
        }
        let fixture = Fixture::open(&path).unwrap();
        let family = fixture.metadata()["family"].as_str();
        let is_tower = family.starts_with("clip") || family.starts_with("siglip");
        if is_tower || MODEL_TYPES.contains(&family) {
            found.push(Whole {
                label: path.display().to_string(),
                folder: folder.clone(),
                fixture,
            });
        }
    }
    found
}

impl Whole {
    pub fn open(&self) -> Checkpoint {
        let options = CheckpointOptions::default();
        let family = &self.fixture.metadata()["family"];
        let options = match family.rsplit_once('_') {
            _ if family.ends_with("_text_model") => options.part(StackPart::Text),
            _ if family.ends_with("_vision_model") => options.part(StackPart::Vision),
            _ => options.whole(),
        };
        let opened = options.open(&self.folder);
        opened.unwrap_or_else(|error| panic!("{}: {error}", self.label))
    }

    pub fn input(&self) -> TraceInput {
        TraceInput::new(|name| self.fixture.tensor(name).cloned()).unwrap()
    }

    #[track_caller]
    fn judge(
        &self,
        how: &str,
        stages: candle_blocks::Result<Vec<(String, candle_blocks::candle_core::Tensor)>>,
        scope: Scope,
    ) {
        let stages = stages.unwrap_or_else(|error| panic!("{} {how}: {error}", self.label));
        let produced = stages.into_iter().collect();
        let report = Comparer::new().verify(&self.fixture, &produced, scope);
        assert!(report.passed, "{} {how}\n{report}", self.label);
    }
}

#[test]
fn every_stage_and_gradient_of_a_whole_model_is_transformers() {
    for whole in all() {
        let (checkpoint, input) = (whole.open(), whole.input());
        let stages = trace::run(&checkpoint, &input, DType::F32, &device());
        whole.judge("plain", stages, Scope::Forward);
        let stages = trace::run_backward(&checkpoint, &input, DType::F32, &device());
        whole.judge("backward", stages, Scope::ForwardAndBackward);
    }
}

#[test]
fn a_packed_whole_model_is_transformers() {
    for whole in all() {
        let stages = trace::run_packed(&whole.open(), &whole.input(), DType::F32, Precision::F32);
        whole.judge("packed", stages, Scope::Forward);
    }
}

#[test]
fn in_double_precision_a_whole_model_is_the_twin() {
    if !has_f64("whole models in f64") {
        return;
    }
    for whole in all() {
        let stages = trace::run(&whole.open(), &whole.input(), DType::F64, &device()).unwrap();
        for (name, stage) in stages {
            let Some(exact) = whole.fixture.tensor(&format!("{name}.f64")) else {
                continue;
            };
            let kept = whole.fixture.tensor("attention_mask");
            let kept = kept.filter(|mask| stage.dims().get(..2) == Some(mask.dims()));
            let difference = ((stage - exact).unwrap().abs()).unwrap();
            let difference = match kept {
                Some(mask) => {
                    let mask = mask.to_dtype(DType::F64).unwrap().unsqueeze(2).unwrap();
                    difference.broadcast_mul(&mask).unwrap()
                }
                None => difference,
            };
            let largest: f64 = difference.max_all().unwrap().to_scalar().unwrap();
            assert!(largest < 1e-10, "{} {name}: {largest:e}", whole.label);
        }
    }
}

#[test]
fn a_whole_checkpoint_uses_every_tensor_of_its_file() {
    for whole in all() {
        let checkpoint = whole.open();
        let report = checkpoint.report();
        assert_eq!(report.missing, [""; 0], "{}", whole.label);
        assert_eq!(report.unused, [""; 0], "{}", whole.label);
        if checkpoint.other_stack().unwrap().is_none() {
            continue;
        }
        let ends: Vec<&str> = report.ends.iter().map(|used| used.name.as_str()).collect();
        let is_left = |name: &&String| !ends.contains(&name.as_str());
        let left: Vec<&String> = report.outside.iter().filter(is_left).collect();
        assert_eq!(left, [""; 0], "{}", whole.label);
    }
}
