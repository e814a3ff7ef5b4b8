//! Quantized weights are dequantized while they are read.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::{Conversion, files::TensorFiles};
use candle_blocks::model::ModelInput;
use candle_blocks::verify::{Expected, compare};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Weights};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::message::message;
use crate::weights::{is_present, weights};

/// A checkpoint with quantized weights, and its expected results.
pub struct Judged {
    pub name: String,
    pub checkpoint: Checkpoint,
    pub expected: TensorFiles,
}

/// Returns all of them: folders with safetensors, and GGUF files.
pub fn judged() -> Vec<Judged> {
    let mut found = Vec::new();
    for (kind, file, least) in [("quantized", "", 17), ("gguf", "model.gguf", 12)] {
        if !is_present(kind) {
            continue;
        }
        let entries = fs::read_dir(weights(kind)).unwrap();
        let folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(folders.len() >= least, "only {folders:?}");
        found.extend(folders.into_iter().map(|folder| Judged {
            name: folder.display().to_string(),
            checkpoint: open(folder.join(file)).unwrap_or_else(|e| panic!("{folder:?}: {e}")),
            expected: TensorFiles::open(folder.join("expected.safetensors")).unwrap(),
        }));
    }
    found
}

fn open(folder: impl AsRef<Path>) -> candle_blocks::Result<Checkpoint> {
    CheckpointOptions::default().whole().open(folder)
}

/// Returns the 64-bit FNV-1a hash.
pub fn hash(numbers: &[f32]) -> String {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn every_weight_has_the_bits_that_the_format_s_own_package_gives_it() {
    for Judged {
        name,
        checkpoint,
        expected,
    } in judged()
    {
        let hashes: HashMap<String, String> =
            serde_json::from_str(&expected.metadata()["weights"]).unwrap();
        let report = checkpoint.report();
        let vb = checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .var_builder();
        let mut n = 0;
        for used in report.used.iter().chain(&report.ends) {
            let is_dequantized = used.conversions.contains(&Conversion::Dequantized);
            assert_eq!(
                is_dequantized,
                hashes.contains_key(&used.name),
                "{name}: {}",
                used.name
            );
            // For several matrices in one tensor, the logits are compared instead.
            if used.conversions == [Conversion::Dequantized] {
                let weight = vb.get_unchecked(&used.roles[0]).unwrap();
                assert_eq!(
                    hash(&numbers(&weight)),
                    hashes[&used.name],
                    "{name}: {}",
                    used.name
                );
                n += 1;
            }
        }
        assert!(
            !hashes.is_empty() && n + 4 >= hashes.len(),
            "{name}: {n} of {}",
            hashes.len()
        );
    }
}

#[test]
fn results_are_those_of_transformers_on_the_dequantized_weights() {
    for Judged {
        name,
        checkpoint,
        expected,
    } in judged()
    {
        let read = |name: &str| expected.read(name).unwrap();
        let result = if expected.contains("logits") {
            "logits"
        } else {
            "last_hidden_state"
        };
        let exact = read(&format!("{result}.f64"));
        let judge = Expected::new(read(result), Some(exact)).unwrap();
        let input = ModelInput::tokens(&read("input_ids"));
        let models = [
            checkpoint
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .model()
                .unwrap(),
            checkpoint
                .load(Weights::Packed(Precision::F32))
                .model()
                .unwrap(),
        ];
        for model in models {
            let output = model.forward(&input).unwrap();
            let ours = output.logits.unwrap_or(output.last_hidden_state);
            let comparison = compare(result, &ours, &judge, None);
            assert!(comparison.passed(), "{name}: {comparison:?}");
        }
    }
}

#[test]
fn some_rows_are_those_of_the_whole() {
    for Judged {
        name, checkpoint, ..
    } in judged()
    {
        let files = checkpoint.files();
        let report = checkpoint.report();
        assert!(!report.used.is_empty(), "{name}");
        for used in &report.used {
            let whole = files.read(&used.name).unwrap();
            let n = whole.dims()[0];
            let rows = [n / 3..n / 3 + n / 2, 0..1, n..n];
            let found = files.read_rows(&used.name, &rows).unwrap();
            let parts = rows.map(|rows| whole.narrow(0, rows.start, rows.len()).unwrap());
            let expected = Tensor::cat(&parts, 0).unwrap();
            assert_eq!(numbers(&found), numbers(&expected), "{name}: {}", used.name);
        }
    }
}

#[test]
fn a_copy_is_saved_dense_and_reads_the_same() {
    for Judged {
        name, checkpoint, ..
    } in judged()
    {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("saved");
        checkpoint
            .save(&saved, HashMap::<String, Tensor>::new())
            .unwrap();
        let config = fs::read_to_string(saved.join("config.json")).unwrap();
        assert!(!config.contains("quantization"), "{name}: {config}");
        let copy = open(&saved).unwrap();
        let of = |checkpoint: &Checkpoint| {
            let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
            let vb = loader.var_builder();
            let roles = checkpoint
                .report()
                .used
                .into_iter()
                .flat_map(|used| used.roles);
            let read = |role: String| (numbers(&vb.get_unchecked(&role).unwrap()), role);
            roles.map(read).collect::<Vec<_>>()
        };
        assert_eq!(of(&checkpoint), of(&copy), "{name}");
    }
}

/// The tensors in a file, to be changed.
type Tensors = HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Returns the error from opening and reading a copy whose tensors were changed.
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
        Ok(checkpoint) => message(checkpoint.load(Weights::Packed(Precision::F32)).model()),
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
            "does not match",
        ),
        (
            "packed-4",
            "weight_shape",
            |t| t.2[0] = 255,
            "does not match",
        ),
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
    // 8-bit values without their scale are meaningless.
    let said = refusal("fp8", |tensors| {
        drop(tensors.remove(&name("weight_scale_inv")))
    });
    assert!(
        said.contains(&name("weight")) && said.contains("F8_E4M3"),
        "{said}"
    );
    // Every weight as before quantization, except for the configuration.
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
