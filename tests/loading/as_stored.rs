//! Quantized weights that are packed as stored.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::InsteadOfStored;
use candle_blocks::model::{Model, ModelInput};
use candle_blocks::{Checkpoint, Precision, Stack, Weights};

use super::quantized::{Judged, judged};
use crate::weights::{is_present, weights};

/// Tensors that are not a scale times an integer plus an offset, and words in the error.
const REFUSED: [(&str, &str); 10] = [
    ("mlx-experts", "FP8"),
    ("mlx-mixed", "groups have 16 columns"),
    ("packed-4", "groups have 16 columns"),
    ("bnb-fp4", "nf4 or fp4"),
    ("bnb-nf4", "nf4 or fp4"),
    ("float8", "FP8"),
    ("float8-blocks", "FP8"),
    ("fp8", "FP8"),
    ("modelopt", "FP8"),
    ("nvfp4", "FP8"),
];

/// The error relative to what is exact, by root mean squares.
fn error(found: &Tensor, exact: &Tensor) -> f64 {
    let [found, exact] =
        [found, exact].map(|x| x.to_dtype(DType::F64).unwrap().flatten_all().unwrap());
    let squares = |x: &Tensor| {
        x.sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f64>()
            .unwrap()
    };
    let difference = (&found - &exact).unwrap();
    (squares(&difference) / squares(&exact)).sqrt()
}

#[test]
fn results_err_by_no_more_than_rounding_the_rows_makes() {
    let mut packed = 0;
    for Judged {
        name,
        checkpoint,
        expected,
    } in judged()
    {
        let format = name.rsplit(['/', '\\']).next().unwrap();
        let refused = REFUSED
            .iter()
            .find(|(of, _)| *of == format && name.contains("quantized"));
        let model = match (
            checkpoint
                .load(Weights::Packed(Precision::AsStored))
                .model(),
            refused,
        ) {
            (Ok(model), None) => model,
            (Err(error), Some((_, reason))) => {
                let message = error.to_string();
                let is_cured = message.contains("pack in Int8, Int4 or Bf16");
                assert!(is_cured && message.contains(reason), "{name}: {message}");
                continue;
            }
            (Err(error), None) => panic!("{name}: {error}"),
            (Ok(_), Some(_)) => panic!("{name} was to be refused"),
        };
        let of = |name: &str| expected.read(name).unwrap();
        let logits = expected.contains("logits");
        let exact = of(if logits {
            "logits.f64"
        } else {
            "last_hidden_state.f64"
        });
        let input = ModelInput::tokens(&of("input_ids"));
        let err = |model: &Model| {
            let output = model.forward(&input).unwrap();
            error(&output.logits.unwrap_or(output.last_hidden_state), &exact)
        };
        let as_stored = err(&model);
        // For int8, weights are rounded as well; rows are rounded to the same number of steps, with one scale if all values
        // have the same sign.
        let in_int8 = err(&checkpoint
            .load(Weights::Packed(Precision::Int8))
            .model()
            .unwrap());
        assert!(
            as_stored < 1.3 * in_int8,
            "{name}: {as_stored:.4}, in int8 {in_int8:.4}"
        );
        assert!(as_stored < 0.04, "{name}: {as_stored:.4}");
        packed += 1;
    }
    assert!(packed >= 22 || !is_present("quantized"), "only {packed}");
}

#[test]
fn unquantized_files_and_layers_in_memory_are_refused_with_the_cure() {
    let checkpoint = Checkpoint::open(weights("tiny-bert")).unwrap();
    let refused = checkpoint
        .load(Weights::Packed(Precision::AsStored))
        .model()
        .unwrap_err();
    let message = refused.to_string();
    let is_cured = message.contains("pack them in Int8, Int4, Bf16, F16 or F32");
    assert!(is_cured && message.contains("tiny-bert"), "{message}");
    let block = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .block(0)
        .unwrap();
    let message = block.pack(Precision::AsStored).unwrap_err().to_string();
    assert!(message.contains("Weights::Packed"), "{message}");
    // Without a checkpoint, the stack finds out for itself.
    let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    let stack = Stack::packed(
        checkpoint.config(),
        loader.var_builder(),
        Precision::AsStored,
    );
    let message = stack.unwrap_err().to_string();
    assert!(message.contains("no weight is quantized"), "{message}");
}

/// A type, the form that its matrices have instead, and their number.
type Otherwise = (&'static str, InsteadOfStored, usize);

/// Types of the files' matrices that are not packed as stored, as `weights/fixtures` wrote them.
const OTHERWISE: [(&str, &[Otherwise]); 11] = [
    ("gguf/few-bits/model.gguf", &[]),
    (
        "gguf/few-values/model.gguf",
        &[
            ("NVFP4", InsteadOfStored::Dequantized, 3),
            ("Q1_0", InsteadOfStored::Dequantized, 2),
            ("TQ1_0", InsteadOfStored::Dequantized, 1),
            ("TQ2_0", InsteadOfStored::Dequantized, 1),
            ("TQ2_0", InsteadOfStored::F32, 1),
        ],
    ),
    (
        "gguf/llama3/model.gguf",
        &[("BF16", InsteadOfStored::Elements, 1)],
    ),
    // Its table has F16, and is a tensor in every precision.
    ("gguf/llama/model.gguf", &[]),
    // The attention's output. The router has f32 in every precision.
    (
        "gguf/mixtral/model.gguf",
        &[("F32", InsteadOfStored::Elements, 1)],
    ),
    ("gguf/gpt2/model.gguf", &[]),
    ("gguf/qwen35/model.gguf", &[]),
    ("gguf/bamba/model.gguf", &[]),
    (
        "quantized/gptq-3",
        &[
            ("3-bit values", InsteadOfStored::MoreBits(4), 7),
            ("F32", InsteadOfStored::Elements, 1),
        ],
    ),
    ("quantized/gptq-4", &[("F32", InsteadOfStored::Elements, 1)]),
    ("quantized/awq", &[("F32", InsteadOfStored::Elements, 1)]),
];

#[test]
fn the_report_lists_every_matrix_that_is_not_packed_as_it_is_stored() {
    for (path, expected) in OTHERWISE {
        if !is_present(path.split('/').next().unwrap()) {
            continue;
        }
        let report = Checkpoint::open(weights(path)).unwrap().report();
        let of_type = |of: &candle_blocks::checkpoint::NotAsStored| {
            (of.tensor_type.clone(), of.instead, of.matrices.len())
        };
        let mut found: Vec<_> = report.not_as_stored.iter().map(of_type).collect();
        found.sort_by_key(|(of, instead, _)| (of.clone(), format!("{instead:?}")));
        let expected: Vec<_> = { expected.iter() }
            .map(|(of, instead, n)| (of.to_string(), *instead, *n))
            .collect();
        assert_eq!(found, expected, "{path}");
        let said = report.to_string();
        for of_type in &report.not_as_stored {
            assert!(said.contains(&of_type.to_string()), "{path}: {said}");
        }
    }
}

#[test]
fn a_file_of_types_without_a_packed_form_is_refused_by_their_names() {
    if !is_present("gguf") {
        return;
    }
    // The only matrix with another type gets one of these; this number of bytes is enough for it.
    let mut bytes = fs::read(weights("gguf/few-values/model.gguf")).unwrap();
    let name = b"blk.0.attn_output.weight";
    let at = { bytes.windows(name.len()) }
        .position(|found| found == name)
        .unwrap();
    let kind = at + name.len() + 4 + 2 * 8;
    let [q8_0, nvfp4] = [8u32, 40].map(u32::to_le_bytes);
    assert_eq!(bytes[kind..kind + 4], q8_0);
    bytes[kind..kind + 4].copy_from_slice(&nvfp4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let refused = checkpoint
        .load(Weights::Packed(Precision::AsStored))
        .model()
        .unwrap_err();
    let message = refused.to_string();
    for part in [
        "NVFP4",
        "Q1_0",
        "TQ1_0",
        "TQ2_0",
        "no packed form",
        "pack them in Int8",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}
