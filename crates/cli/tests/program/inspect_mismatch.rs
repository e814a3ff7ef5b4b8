//! `inspect` refuses weights that do not match the configuration at all.

use serde_json::json;

use crate::{scratch::Scratch, scratch::load, weights::weights};

#[test]
fn another_models_configuration_is_refused() {
    let scratch = Scratch::of("tiny-bert");
    let config = weights("tiny-gpt2/config.json");
    let config = config.to_str().unwrap();
    for flags in [&["--config", config][..], &["--config", config, "--json"]] {
        scratch.inspect(flags).assert_refused(&[
            "none of the 34 parameters of gpt2",
            config,
            "model.safetensors: no tensor for blocks.0.",
            "tried ",
        ]);
    }
}

/// The missing tensors of a matching checkpoint are shown with the rest.
#[test]
fn a_checkpoint_that_lacks_a_tensor_is_inspected() {
    let scratch = Scratch::of("tiny-bert");
    let n_tensors = load(&scratch.weights()).len();
    scratch.set_config(json!({"num_hidden_layers": 4}));
    let inspected = scratch.inspect(&["--json"]);
    inspected.assert_status(0);
    let tensors = &inspected.json()["tensors"];
    assert_eq!(tensors["missing"].as_array().unwrap().len(), 16);
    assert!(tensors["used"].as_array().unwrap().len() < n_tensors);
    assert!(scratch.inspect(&[]).stdout.contains("missing: blocks.3."));
}
