//! Quantised weights are read as the numbers that their codes stand for.

use std::{collections::HashMap, fs, path::Path};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::{Conversion, files::TensorFiles};
use candle_blocks::model::ModelInput;
use candle_blocks::verify::{Expected, compare};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::message::message;
use crate::weights::{is_present, weights};

/// The formats under `weights/quantized`, sorted.
fn formats() -> Vec<String> {
    if !is_present("quantized") {
        return Vec::new();
    }
    let entries = fs::read_dir(weights("quantized")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(names.len() >= 17, "only {names:?}");
    names
}

fn open(folder: impl AsRef<Path>) -> candle_blocks::Result<Checkpoint> {
    CheckpointOptions::default().whole().open(folder)
}

/// FNV-1a of 64 bits.
fn hash(numbers: &[f32]) -> String {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// A hash of each weight, by its name.
fn expected_hashes(expected: &TensorFiles) -> HashMap<String, String> {
    serde_json::from_str(&expected.metadata()["weights"]).unwrap()
}

#[test]
fn every_weight_has_the_bits_that_the_format_s_own_package_gives_it() {
    for format in formats() {
        let folder = weights("quantized").join(&format);
        let hashes =
            expected_hashes(&TensorFiles::open(folder.join("expected.safetensors")).unwrap());
        let checkpoint = open(&folder).unwrap();
        let report = checkpoint.report();
        let quantized = report.used.iter();
        let quantized = quantized.filter(|used| used.conversions == [Conversion::Dequantized]);
        let vb = checkpoint
            .loader(DType::F32, &Device::Cpu)
            .unwrap()
            .var_builder();
        let mut n = 0;
        for used in quantized {
            let weight = vb.get_unchecked(&used.roles[0]).unwrap();
            assert_eq!(
                hash(&numbers(&weight)),
                hashes[&used.name],
                "{format}: {}",
                used.name
            );
            n += 1;
        }
        assert_eq!(n, hashes.len(), "{format}");
    }
}

#[test]
fn logits_are_those_of_transformers_on_the_dequantised_weights() {
    for format in formats() {
        let folder = weights("quantized").join(&format);
        let files = TensorFiles::open(folder.join("expected.safetensors")).unwrap();
        let read = |name: &str| files.read(name).unwrap();
        let expected = Expected::new(read("logits"), Some(read("logits.f64"))).unwrap();
        let input = ModelInput::tokens(&read("input_ids"));
        let checkpoint = open(&folder).unwrap();
        let models = [
            checkpoint.model(DType::F32, &Device::Cpu).unwrap(),
            checkpoint.packed_model(Precision::F32).unwrap(),
        ];
        for model in models {
            let logits = model.forward(&input).unwrap().logits.unwrap();
            let comparison = compare("logits", &logits, &expected, None);
            assert!(comparison.passed(), "{format}: {comparison:?}");
        }
    }
}

#[test]
fn a_copy_is_saved_dense_and_reads_the_same() {
    for format in formats() {
        let checkpoint = open(weights("quantized").join(&format)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("saved");
        checkpoint
            .save(&saved, HashMap::<String, Tensor>::new())
            .unwrap();
        let config = fs::read_to_string(saved.join("config.json")).unwrap();
        assert!(!config.contains("quantization"), "{format}: {config}");
        let copy = open(&saved).unwrap();
        let of = |checkpoint: &Checkpoint| {
            let loader = checkpoint.loader(DType::F32, &Device::Cpu).unwrap();
            let vb = loader.var_builder();
            let used = checkpoint.report().used;
            let numbers = used
                .iter()
                .map(|used| numbers(&vb.get_unchecked(&used.roles[0]).unwrap()));
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(of(&checkpoint), of(&copy), "{format}");
    }
}

/// The tensors of a file, to be changed.
type Tensors = HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// What opening and reading says of a copy of a format whose tensors were changed.
fn refusal(format: &str, change: impl Fn(&mut Tensors)) -> String {
    let folder = weights("quantized").join(format);
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (String, TensorView)| {
        (
            name,
            (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
        )
    };
    let mut tensors: Tensors = file.tensors().into_iter().map(owned).collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let changed = tempfile::tempdir().unwrap();
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(changed.path().join("model.safetensors"), bytes).unwrap();
    fs::copy(
        folder.join("config.json"),
        changed.path().join("config.json"),
    )
    .unwrap();
    match open(changed.path()) {
        Ok(checkpoint) => message(checkpoint.packed_model(Precision::F32)),
        Err(error) => error.to_string(),
    }
}

const MODULE: &str = "model.layers.0.mlp.up_proj";

#[test]
fn tensors_that_contradict_each_other_are_named() {
    if !is_present("quantized") {
        return;
    }
    let name = |part: &str| format!("{MODULE}.{part}");
    // A format, a part of it, what becomes of its bytes and shape, and what is said.
    type Change = fn(&mut (Dtype, Vec<usize>, Vec<u8>));
    let cases: [(&str, &str, Change, &str); 12] = [
        (
            "gptq-4",
            "g_idx",
            |t| t.2[..4].copy_from_slice(&9i32.to_le_bytes()),
            "the group 9, expected 0 to 1",
        ),
        (
            "gptq-4",
            "g_idx",
            |t| t.2[..4].copy_from_slice(&(-1i32).to_le_bytes()),
            "the group -1",
        ),
        ("gptq-4", "scales", |t| t.2[1] = 0x7c, "finite"),
        ("gptq-4", "scales", |t| t.1.reverse(), "expected"),
        ("gptq-4", "qzeros", |t| t.1 = vec![t.1[0] * t.1[1]], "shape"),
        (
            "gptq-8",
            "qweight",
            |t| t.0 = Dtype::F32,
            "expected [I32, U32]",
        ),
        ("awq", "qzeros", |t| t.1.reverse(), "expected"),
        (
            "packed-4",
            "weight_shape",
            |t| t.2[8..].copy_from_slice(&i64::MAX.to_le_bytes()),
            "do not fill",
        ),
        ("packed-4", "weight_shape", |t| t.2[0] = 255, "do not fill"),
        (
            "float8-blocks",
            "weight_scale",
            |t| t.1.reverse(),
            "block size",
        ),
        ("mxfp4", "weight_scale", |t| t.2[0] = 255, "finite"),
        (
            "bnb-nf4",
            "weight.absmax",
            |t| t.1 = vec![1, t.1[0]],
            "expected",
        ),
    ];
    for (format, part, change, words) in cases {
        let said = refusal(format, |tensors| {
            change(tensors.get_mut(&name(part)).unwrap())
        });
        assert!(
            said.contains(words) && said.contains(&name(part)),
            "{format} {part}: {said}"
        );
    }
    let said = refusal("gptq-4", |tensors| drop(tensors.remove(&name("qzeros"))));
    assert!(said.contains(&name("qzeros")), "{said}");
    // Bytes of eight bits without their scale are not numbers.
    let said = refusal("fp8", |tensors| {
        drop(tensors.remove(&name("weight_scale_inv")))
    });
    assert!(
        said.contains(&name("weight")) && said.contains("F8_E4M3"),
        "{said}"
    );
    // Every weight as it was before it was quantised, but the configuration.
    let said = refusal("gptq-4", |tensors| {
        tensors.retain(|name, _| !name.contains("proj"))
    });
    assert!(
        said.contains("quantization_config") && said.contains("qweight"),
        "{said}"
    );
}

#[test]
fn states_that_are_malformed_are_named() {
    if !is_present("quantized") {
        return;
    }
    let name = format!("{MODULE}.weight.quant_state.bitsandbytes__nf4");
    let shape = |a: usize, b: usize, block: usize| {
        format!(
            r#"{{"blocksize": {block}, "shape": [{a}, {b}], "nested_blocksize": 256, "nested_offset": 0.5}}"#
        )
    };
    let huge = usize::MAX;
    for state in [
        "",
        "[1",
        "{}",
        &shape(80, 48, 0),
        &shape(huge, 3, 64),
        &shape(80, 49, 64),
        &shape(huge, huge, huge),
    ] {
        let said = refusal("bnb-nf4", |tensors| {
            let bytes = state.as_bytes().to_vec();
            tensors.insert(name.clone(), (Dtype::U8, vec![bytes.len()], bytes));
        });
        assert!(
            said.contains(&name) && said.contains("malformed"),
            "{state}: {said}"
        );
    }
}
