//! GGUF files that llama.cpp's own converter made of small checkpoints: logits are those of transformers, and greedy tokens those
//! of llama.cpp. `weights/sweep/gguf_architectures.py` does the same for every architecture that is read.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::generate::{GenerationOptions, Generator, Sampler, Sampling};
use candle_blocks::model::ModelInput;
use candle_blocks::verify::{Expected, compare};
use candle_blocks::{CheckpointOptions, Precision, Weights};

use crate::weights::{is_present, weights};

const FOLDER: &str = "gguf-architectures";
/// The token that ends a text in all of these files.
const END: u32 = 2;

#[test]
fn every_architecture_gives_the_logits_of_transformers_and_the_tokens_of_llama_cpp() {
    if !is_present(FOLDER) {
        return;
    }
    let mut n = 0;
    for entry in fs::read_dir(weights(FOLDER)).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.display().to_string();
        let open = CheckpointOptions::default()
            .whole()
            .open(folder.join("model.gguf"));
        let checkpoint = open.unwrap_or_else(|error| panic!("{name}: {error}"));
        let report = checkpoint.report();
        assert!(report.missing.is_empty(), "{name}: {:?}", report.missing);
        let expected = TensorFiles::open(folder.join("expected.safetensors")).unwrap();
        let read = |name: &str| expected.read(name).unwrap();
        let result = match expected.contains("logits") {
            true => "logits",
            false => "last_hidden_state",
        };
        let exact = read(&format!("{result}.f64"));
        let judge = Expected::new(read(result), Some(exact)).unwrap();
        let input = ModelInput::tokens(&read("input_ids"));
        let packed = checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap();
        if expected.contains("tokens") {
            let tokens = read("tokens").to_vec2::<u32>().unwrap();
            let prompts = read("input_ids").to_vec2::<u32>().unwrap();
            let options = GenerationOptions::default().with_max_new_tokens(tokens[0].len());
            let generator = Generator::new(&packed, options).unwrap();
            let sampler = Sampler::new(Sampling::greedy()).unwrap();
            for (prompt, wanted) in prompts.into_iter().zip(tokens) {
                // llama.cpp ends a text at its last token, after which rows are filled up.
                let end = wanted.iter().position(|&token| token == END);
                let n = end.map_or(wanted.len(), |end| end + 1);
                let found = generator.generate(&[prompt], sampler).unwrap();
                assert_eq!(found[0][..n], wanted[..n], "{name}");
            }
        }
        let models = [
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()
                .unwrap(),
            packed.clone(),
        ];
        for model in models {
            let output = model.forward(&input).unwrap();
            let ours = output.logits.unwrap_or(output.last_hidden_state);
            let comparison = compare(result, &ours, &judge, None);
            assert!(comparison.passed(), "{name}: {comparison:?}");
        }
        n += 1;
    }
    assert!(n >= 42, "only {n}");
}
