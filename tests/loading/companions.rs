//! Tensors beside quantized weights: each is read, is ignored and in the report, or is refused by its name.
//! `weights/sweep/companions.py` has compressed-tensors as the judge of those that are read.

use std::collections::HashMap;
use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::{Checkpoint, CheckpointOptions, Result};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::weights::{is_present, weights};

const MODULE: &str = "model.layers.0.mlp.up_proj";

/// A tensor's name after the module's, type, shape and bytes.
type Companion<'n> = (&'n str, Dtype, Vec<usize>, Vec<u8>);

/// A copy of a committed format with tensors beside those of a module.
fn opened(format: &str, companions: &[Companion]) -> Result<(tempfile::TempDir, Checkpoint)> {
    let folder = weights("quantized").join(format);
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let mut tensors: HashMap<String, TensorView> = { SafeTensors::deserialize(&bytes).unwrap() }
        .tensors()
        .into_iter()
        .collect();
    for (name, dtype, shape, bytes) in companions {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        tensors.insert(format!("{MODULE}.{name}"), view);
    }
    let copy = tempfile::tempdir().unwrap();
    let bytes = safetensors::serialize(tensors, None).unwrap();
    fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    fs::copy(folder.join("config.json"), copy.path().join("config.json")).unwrap();
    let checkpoint = CheckpointOptions::default().whole().open(copy.path())?;
    checkpoint.trainable(DType::F32, &Device::Cpu).map(drop)?;
    Ok((copy, checkpoint))
}

/// The module's weight.
fn weight(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let weight = checkpoint
        .files()
        .read(&format!("{MODULE}.weight"))
        .unwrap();
    weight.to_vec2().unwrap()
}

/// The shape of a tensor of the module, as it is stored.
fn shape(format: &str, name: &str) -> Vec<usize> {
    let bytes = fs::read(weights(&format!("quantized/{format}/model.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensor(&format!("{MODULE}.{name}"))
        .unwrap()
        .shape()
        .to_vec()
}

#[track_caller]
fn assert_refused(format: &str, companion: Companion) {
    let name = format!("{MODULE}.{}", companion.0);
    let message = match opened(format, &[companion]) {
        Err(error) => error.to_string(),
        Ok((_folder, checkpoint)) => {
            let read = checkpoint.files().read(&format!("{MODULE}.weight"));
            read.map(drop).unwrap_err().to_string()
        }
    };
    assert!(message.contains(&name), "{format}: {message}");
}

const FORMATS: [&str; 13] = [
    "awq", "bnb-int8", "bnb-nf4", "float8", "fp8", "gptq-3", "gptq-4", "int8", "mlx", "modelopt",
    "mxfp4", "nvfp4", "packed-4",
];

#[test]
fn scales_of_activations_and_states_of_observers_are_ignored_or_refused() {
    if !is_present("quantized") {
        return;
    }
    for format in FORMATS {
        let (_folder, plain) = opened(format, &[]).unwrap();
        let expected = weight(&plain);
        let is_ignored =
            !["awq", "bnb-int8", "bnb-nf4", "gptq-3", "gptq-4", "mlx"].contains(&format);
        for name in [
            "input_scale",
            "input_zero_point",
            "input_global_scale",
            "output_scale",
            "weight_observer.min_vals",
            "input_observer.max_vals",
            "min_vals",
        ] {
            let one = (name, Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
            if !is_ignored {
                assert_refused(format, one);
                continue;
            }
            let (folder, checkpoint) = opened(format, &[one]).unwrap();
            assert_eq!(weight(&checkpoint), expected, "{format}: {name}");
            let report = checkpoint.report();
            let name = format!("{MODULE}.{name}");
            assert!(report.ignored.contains(&name), "{format}: {name}");
            // A dense copy has no use for them.
            if name.ends_with(".input_scale") {
                let saved = folder.path().join("saved");
                checkpoint
                    .save(&saved, HashMap::<String, Tensor>::new())
                    .unwrap();
                let saved = Checkpoint::open(&saved).unwrap();
                assert!(saved.report().unused.is_empty() && !saved.files().contains(&name));
            }
        }
        for name in ["perm", "smooth_scale", "weight_fake_quant.scale"] {
            let bytes = 1f32.to_le_bytes().to_vec();
            assert_refused(format, (name, Dtype::F32, vec![1], bytes));
        }
    }
}

/// The kernels of these methods round activations, which are not rounded here.
#[test]
fn settings_and_scales_that_round_activations_are_reported() {
    if !is_present("quantized") {
        return;
    }
    let one = || {
        (
            "input_scale",
            Dtype::F32,
            vec![1],
            1f32.to_le_bytes().to_vec(),
        )
    };
    let tensor = format!("{MODULE}.input_scale");
    for (format, own) in [
        ("fp8", &["activation_scheme"][..]),
        ("float8", &[]),
        ("modelopt", &[]),
    ] {
        let (_folder, plain) = opened(format, &[]).unwrap();
        assert_eq!(plain.report().unrounded, own, "{format}");
        let (folder, checkpoint) = opened(format, &[one()]).unwrap();
        let expected: Vec<&str> = own.iter().copied().chain([&tensor[..]]).collect();
        assert_eq!(checkpoint.report().unrounded, expected, "{format}");
        if format == "float8" {
            let path = folder.path().join("config.json");
            let text = fs::read_to_string(&path).unwrap();
            let rounded = text.replace(
                "\"input_activations\": null",
                "\"input_activations\": {\"num_bits\": 8}",
            );
            fs::write(&path, rounded).unwrap();
            let found = Checkpoint::open(folder.path()).unwrap().report().unrounded;
            assert_eq!(found, ["config_groups.group_0.input_activations", &tensor]);
        }
    }
    for format in ["fp8", "modelopt"] {
        let columns = weight(&opened(format, &[]).unwrap().1)[0].len();
        let groups = vec![0; 4 * columns];
        assert_refused(format, ("weight_g_idx", Dtype::I32, vec![columns], groups));
    }
}

#[test]
fn zero_points_are_taken_from_integers_and_refused_beside_other_values_unless_they_are_zero() {
    if !is_present("quantized") {
        return;
    }
    // Of whole numbers, unpacked: a zero point is a number of the scale that is taken from the weight.
    let scale_shape = shape("packed-3", "weight_scale");
    let n: usize = scale_shape.iter().product();
    let points: Vec<i8> = (0..n).map(|i| [-3, 0, 2, 1][i % 4]).collect();
    let bytes = points.iter().map(|point| *point as u8).collect();
    let (_folder, plain) = opened("packed-3", &[]).unwrap();
    let one = ("weight_zero_point", Dtype::I8, scale_shape.clone(), bytes);
    let (_folder, changed) = opened("packed-3", &[one]).unwrap();
    let scales = plain_scales("packed-3");
    let pairs = weight(&plain)
        .into_iter()
        .zip(weight(&changed))
        .zip(scales.iter().zip(&points));
    for ((before, after), (scale, point)) in pairs {
        for (before, after) in before.into_iter().zip(after) {
            let expected = (before / scale).round() - f32::from(*point);
            assert_eq!(after, expected * scale);
        }
    }
    let beyond = vec![100u8; n];
    assert_refused(
        "packed-3",
        ("weight_zero_point", Dtype::I8, scale_shape, beyond),
    );
    for format in ["float8", "float8-blocks", "nvfp4", "mxfp4"] {
        let shape = shape(format, "weight_scale");
        let n = shape.iter().product();
        let (_folder, plain) = opened(format, &[]).unwrap();
        for dtype in [Dtype::I8, Dtype::F8_E4M3] {
            let zeros = ("weight_zero_point", dtype, shape.clone(), vec![0; n]);
            let (_folder, same) = opened(format, &[zeros]).unwrap();
            assert_eq!(weight(&same), weight(&plain), "{format}");
            assert_refused(
                format,
                ("weight_zero_point", dtype, shape.clone(), vec![1; n]),
            );
        }
    }
}

/// The scale of each row of the module.
fn plain_scales(format: &str) -> Vec<f32> {
    let bytes = fs::read(weights(&format!("quantized/{format}/model.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let scales = file.tensor(&format!("{MODULE}.weight_scale")).unwrap();
    let numbers = scales.data().chunks_exact(4);
    numbers
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// FNV-1a of 64 bits.
fn hash(weight: &[Vec<f32>]) -> String {
    let bytes = weight
        .iter()
        .flatten()
        .flat_map(|number| number.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

/// Each column's group: equal groups, in a mixed order.
fn mixed(columns: usize, n_groups: usize) -> Vec<i32> {
    (0..columns)
        .map(|i| (i * 7 % columns * n_groups / columns) as i32)
        .collect()
}

#[test]
fn groups_of_columns_in_any_order_are_read_as_compressed_tensors_reads_them() {
    if !is_present("quantized") {
        return;
    }
    let (_folder, plain) = opened("packed-4", &[]).unwrap();
    let expected = weight(&plain);
    let (columns, n_groups) = (expected[0].len(), shape("packed-4", "weight_scale")[1]);
    let with = |groups: Vec<i32>| {
        let bytes = groups
            .iter()
            .flat_map(|group| group.to_le_bytes())
            .collect();
        ("weight_g_idx", Dtype::I32, vec![columns], bytes)
    };
    let (_folder, changed) = opened("packed-4", &[with(mixed(columns, n_groups))]).unwrap();
    // By compressed-tensors 0.11: `PackedQuantizationCompressor.decompress_weight` with these groups.
    let groups: Vec<i32> = (0..columns)
        .map(|i| (i * n_groups / columns) as i32)
        .collect();
    let [ordered, unset] = [groups, vec![-1; columns]].map(|groups| {
        let (_folder, checkpoint) = opened("packed-4", &[with(groups)]).unwrap();
        weight(&checkpoint)
    });
    assert!(ordered == expected && unset == expected);
    let text = fs::read_to_string(weights("column_groups.json"));
    let judged: HashMap<String, String> = serde_json::from_str(&text.unwrap()).unwrap();
    assert_eq!(hash(&weight(&changed)), judged["packed-4"]);
    assert_refused("packed-4", with(vec![n_groups as i32; columns]));
    assert_refused(
        "packed-4",
        ("weight_g_idx", Dtype::I32, vec![1], vec![0; 4]),
    );
    for format in ["awq", "mlx", "bnb-int8"] {
        assert_refused(
            format,
            ("g_idx", Dtype::I32, vec![columns], vec![0; 4 * columns]),
        );
    }
}
