//! The report on a whole model's tensors.

use std::collections::HashSet;

use candle_blocks::config::HeadTask;

use crate::{cpu_only::cpu_only, whole::wholes};

/// Parts of a head that is not the model's: what is there beside one that was trained together with it.
const OF_OTHER_HEADS: [&str; 8] = [
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
    // Which parts of a protein touch, by all attention weights.
    "esm.contact_head.regression.weight",
    "esm.contact_head.regression.bias",
    // In place of hidden patches, in training alone.
    "mask_token",
    "embeddings.mask_token",
    "dinov2.embeddings.mask_token",
    "dinov2_with_registers.embeddings.mask_token",
];

/// Tensors that transformers saves and does not read: BART's shared embeddings, if each stack has its own.
const READ_BY_NONE: [(&str, &str); 1] = [("heads/bart-untied", "model.shared.weight")];
/// Modules for image embeddings beside a text model.
const IMAGES: [&str; 3] = ["vision_tower.", "multi_modal_projector.", "visual."];

#[test]
fn every_tensor_is_used_or_ignored_or_of_another_head() {
    cpu_only("names of tensors are read");
    for whole in wholes() {
        let checkpoint = whole.open();
        let report = checkpoint.report();
        assert_eq!(report.missing, [""; 0], "{}", whole.name);
        assert_eq!(report.unused, [""; 0], "{}", whole.name);
        let used = report.used.iter().chain(&report.ends);
        let mut known: HashSet<&str> = used.map(|used| used.name.as_str()).collect();
        known.extend(report.ignored.iter().map(String::as_str));
        known.extend(OF_OTHER_HEADS);
        for (folder, name) in READ_BY_NONE {
            if whole.name == folder {
                assert!(report.outside.iter().any(|outside| outside == name));
                known.insert(name);
            }
        }
        let of_images = |name: &str| IMAGES.iter().any(|module| name.contains(module));
        for name in checkpoint.files().names() {
            assert!(
                known.contains(name) || of_images(name),
                "{}: {name} is not used",
                whole.name
            );
        }
    }
}

#[test]
fn every_model_has_the_head_that_its_class_names() {
    cpu_only("config.json is read");
    for whole in wholes() {
        let checkpoint = whole.open();
        let head = &checkpoint.model_config().unwrap().head;
        let task = head.as_ref().map(|head| head.task.to_string());
        let expected = match whole.name.rsplit_once('-') {
            Some((folder, task)) if folder.starts_with("heads/") => match task {
                "tied" | "untied" | "cross" => HeadTask::CausalLm.to_string(),
                "base" | "both" | "end" => continue,
                task => task.to_string(),
            },
            _ => continue,
        };
        assert_eq!(task, Some(expected), "{}", whole.name);
    }
}
