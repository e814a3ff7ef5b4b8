//! A checkpoint that is saved in few bits reads as itself, to within what the format costs; its bytes are those of the formats'
//! own tools where these round one way only.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors::load};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::checkpoint::{
    ExistingFiles, GgufType, Quantization, QuantizedTensor, files::TensorFiles,
};
use candle_blocks::{Checkpoint, CheckpointOptions, SaveOptions, Weights};
use serde_json::{Value, json};

use crate::weights::{is_present, weights};

const GGUF: [(GgufType, &str, f64); 4] = [
    (GgufType::Q8_0, "Q8_0", 0.01),
    (GgufType::Q4_0, "Q4_0", 0.12),
    (GgufType::Q4K, "Q4_K", 0.12),
    (GgufType::Q6K, "Q6_K", 0.03),
];

fn open(path: impl AsRef<Path>) -> Checkpoint {
    let path = path.as_ref();
    let opened = CheckpointOptions::default().whole().open(path);
    opened.unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn save(
    checkpoint: &Checkpoint,
    quantization: Quantization,
    path: &Path,
) -> candle_blocks::Result<Vec<QuantizedTensor>> {
    let mut told = vec![];
    let unchanged = HashMap::<String, Tensor>::new();
    let each = |tensor: &QuantizedTensor| {
        told.push(tensor.clone());
        Ok(())
    };
    SaveOptions::default().save_quantized(checkpoint, quantization, path, unchanged, each)?;
    Ok(told)
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns every parameter by role, including embeddings and heads.
fn parameters(checkpoint: &Checkpoint) -> HashMap<String, Vec<f32>> {
    let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    let (vb, report) = (loader.var_builder(), checkpoint.report());
    let roles = report.used.into_iter().chain(report.ends);
    let roles = roles.flat_map(|used| used.roles);
    let read = |role: String| {
        let parameter = vb.get_unchecked(&role);
        let parameter = parameter.unwrap_or_else(|error| panic!("{role}: {error}"));
        (role, numbers(&parameter))
    };
    roles.map(read).collect()
}

fn relative(original: &[f32], read: &[f32]) -> f64 {
    assert_eq!(original.len(), read.len());
    let square = |off: f32| f64::from(off) * f64::from(off);
    let off: f64 = { original.iter() }
        .zip(read)
        .map(|(a, b)| square(a - b))
        .sum();
    let all: f64 = original.iter().map(|&number| square(number)).sum();
    if off == 0.0 { 0.0 } else { (off / all).sqrt() }
}

/// Files of hybrids in `weights/gguf`.
const HYBRIDS: [&str; 5] = ["lfm2", "lfm2moe", "qwen35", "bamba", "nemotron-h"];

/// Returns checkpoints for every architecture that GGUF files may have.
fn of_gguf() -> Vec<PathBuf> {
    let mut found = vec![weights("tiny-gpt2"), weights("tiny-bert")];
    if is_present("families") {
        let families = [
            "llama",
            "llama-linear",
            "llama-llama3",
            "llama-yarn",
            "mixtral",
            "phi3",
            "phi3-longrope",
        ];
        found.extend(families.map(|name| weights("families").join(name)));
    }
    if is_present("gguf") {
        let files = std::fs::read_dir(weights("gguf")).unwrap();
        // Random blocks of few bits are further apart than others can tell. Hybrids are read and not written.
        let files: Vec<_> = files
            .map(|file| file.unwrap().path().join("model.gguf"))
            .filter(|file| {
                let left_out = ["few-bits", "few-values", "grids"];
                !{ left_out.iter().chain(&HYBRIDS) }
                    .any(|name| file.ends_with(format!("{name}/model.gguf")))
            })
            .collect();
        assert!(files.len() >= 12, "only {files:?}");
        found.extend(files);
    }
    found
}

#[test]
fn a_hybrid_is_not_written_as_gguf() {
    if !is_present("gguf") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in HYBRIDS {
        let checkpoint = open(weights("gguf").join(name).join("model.gguf"));
        let file = folder.path().join("model.gguf");
        let error = save(&checkpoint, Quantization::Gguf(GGUF[0].0), &file).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("cannot be saved as GGUF; these can: "),
            "{told}"
        );
        assert!(!file.exists(), "{name}");
    }
}

#[test]
fn a_gguf_file_of_every_architecture_reads_as_the_checkpoint_that_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    for (i, path) in of_gguf().into_iter().enumerate() {
        let checkpoint = open(&path);
        let original = parameters(&checkpoint);
        for (kind, name, bound) in GGUF {
            let file = folder.path().join(format!("{i}-{name}.gguf"));
            let told = save(&checkpoint, Quantization::Gguf(kind), &file)
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let read = open(&file);
            assert!(read.report().missing.is_empty() && read.report().unused.is_empty());
            let found = parameters(&read);
            for (role, numbers) in &found {
                let error = relative(&original[role], numbers);
                let is_vector = numbers.len() == original[role].len() && role.contains("norm");
                // Gemma's norms are written with one added.
                let bound = if is_vector { 1e-6 } else { bound };
                assert!(error <= bound, "{path:?} {name} {role}: {error}");
            }
            let left_out = |role: &&String| !found.contains_key(*role);
            let left_out: Vec<_> = original.keys().filter(left_out).collect();
            let is_told = told.iter().any(|tensor| tensor.kind == "left out");
            assert_eq!(is_told, !left_out.is_empty(), "{path:?}: {left_out:?}");
            let is_noted = |tensor: &QuantizedTensor| tensor.kind == name || tensor.note.is_some();
            assert!(told.iter().any(is_noted), "{path:?} {name}: {told:?}");
        }
    }
}

/// Returns a Llama with the reference's matrix as one of its weights.
fn with_matrix(folder: &Path, matrix: &Tensor) -> Checkpoint {
    llama(folder, matrix, 2, json!({}))
}

fn llama(folder: &Path, matrix: &Tensor, head_dim: usize, rope_parameters: Value) -> Checkpoint {
    let drawn = |rows: usize, columns: usize| {
        let n = rows * columns;
        let numbers: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
        Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap()
    };
    let ones = Tensor::ones(512, DType::F32, &Device::Cpu).unwrap();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_string(), drawn(3, 512)),
        ("model.norm.weight".to_string(), ones.clone()),
        (layer("input_layernorm"), ones.clone()),
        (layer("post_attention_layernorm"), ones),
        (layer("self_attn.q_proj"), drawn(head_dim, 512)),
        (layer("self_attn.k_proj"), drawn(head_dim, 512)),
        (layer("self_attn.v_proj"), drawn(head_dim, 512)),
        (layer("self_attn.o_proj"), drawn(512, head_dim)),
        (layer("mlp.gate_proj"), drawn(4, 512)),
        (layer("mlp.up_proj"), matrix.clone()),
        (layer("mlp.down_proj"), drawn(512, 4)),
    ];
    write_safetensors(folder.join("model.safetensors"), &tensors, None).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": head_dim, "vocab_size": 3, "max_position_embeddings": 8,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_parameters": rope_parameters,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    open(folder)
}

/// Returns the 64-bit FNV-1a hash.
fn hash(numbers: &[f32]) -> String {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

const ROLE: &str = "blocks.0.feed_forward.up.weight";

#[test]
fn gguf_blocks_are_those_of_its_package_or_nearer_than_llama_cpps() {
    let path = weights("reference/quantizers.safetensors");
    let (reference, hashes) = (
        load(&path, &Device::Cpu).unwrap(),
        TensorFiles::open(&path).unwrap(),
    );
    let weight = reference["weight"].to_dtype(DType::F32).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = with_matrix(folder.path(), &weight);
    for (kind, name, _) in GGUF {
        let file = folder.path().join(format!("{name}.gguf"));
        let told = save(&checkpoint, Quantization::Gguf(kind), &file).unwrap();
        let read = parameters(&open(&file)).remove(ROLE).unwrap();
        let reported = told
            .iter()
            .find(|tensor| tensor.name == "blk.0.ffn_up.weight")
            .unwrap();
        assert_eq!(reported.kind, name);
        assert!((reported.error / relative(&numbers(&weight), &read) - 1.0).abs() < 1e-9);
        if let Some(bytes) = reference.get(&format!("{name}.bytes")) {
            let ours = TensorFiles::open(&file)
                .unwrap()
                .read("blk.0.ffn_up.weight")
                .unwrap();
            let theirs: Vec<u8> = bytes.flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(ours.to_vec1::<u8>().unwrap(), theirs, "{name}");
            assert_eq!(hash(&read), hashes.metadata()[name], "{name}");
            continue;
        }
        let theirs: Vec<f64> = reference[&format!("{name}.error")].to_vec1().unwrap();
        let weight = numbers(&weight);
        let rows = weight.chunks(512).zip(read.chunks(512)).zip(theirs);
        for (row, ((weight, read), theirs)) in rows.enumerate() {
            let off = weight.iter().zip(read).map(|(a, b)| f64::from(a - b));
            let ours: f64 = off.map(|off| off * off).sum();
            println!("{name} row {row}: {ours:.5}, llama.cpp's {theirs:.5}");
            assert!(
                ours <= theirs,
                "{name} row {row}: {ours}, llama.cpp's {theirs}"
            );
        }
    }
}

#[test]
fn packed_values_and_scales_are_those_of_compressed_tensors() {
    let reference = load(weights("reference/quantizers.safetensors"), &Device::Cpu).unwrap();
    let weight = reference["weight"].to_dtype(DType::F32).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = with_matrix(folder.path(), &weight);
    for (bits, group_size) in [(4, 128), (4, 32), (8, 64)] {
        let path = folder.path().join(format!("int{bits}-{group_size}"));
        let quantization = Quantization::CompressedTensors { bits, group_size };
        let told = save(&checkpoint, quantization, &path).unwrap();
        let saved = TensorFiles::open(&path).unwrap();
        for (part, of_reference) in [("packed", "packed"), ("scale", "scale")] {
            let ours = saved
                .read(&format!("model.layers.0.mlp.up_proj.weight_{part}"))
                .unwrap();
            let theirs = &reference[&format!("int{bits}.{group_size}.{of_reference}")];
            assert_eq!((ours.dims(), ours.dtype()), (theirs.dims(), theirs.dtype()));
            let wide = |tensor: &Tensor| {
                let tensor = tensor.to_dtype(DType::F64).unwrap();
                tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap()
            };
            assert_eq!(wide(&ours), wide(theirs), "{part}, {bits} bits");
        }
        let read = parameters(&open(&path));
        let name = "model.layers.0.mlp.up_proj.weight";
        let reported = told.iter().find(|tensor| tensor.name == name).unwrap();
        let error = relative(&numbers(&weight), &read[ROLE]);
        assert!((reported.error / error - 1.0).abs() < 1e-9);
        // Two or four columns do not fill a group: such tensors are not packed, and the report says so.
        for name in ["self_attn.o_proj", "mlp.down_proj"] {
            let name = format!("model.layers.0.{name}.weight");
            let narrow = told.iter().find(|tensor| tensor.name == name).unwrap();
            let note = narrow.note.as_deref().unwrap_or_default();
            assert!(
                narrow.kind == "F32" && note.contains("whole groups"),
                "{narrow:?}"
            );
        }
        let config = std::fs::read_to_string(path.join("config.json")).unwrap();
        for ignored in [
            "lm_head",
            "model.embed_tokens",
            "model.layers.0.mlp.down_proj",
        ] {
            assert!(config.contains(&format!("\"{ignored}\"")), "{config}");
        }
    }
}

#[test]
fn inexpressible_settings_and_existing_files_are_refused_without_leftovers() {
    let gguf = Quantization::Gguf(GgufType::Q8_0);
    let int4 = |group_size| Quantization::CompressedTensors {
        bits: 4,
        group_size,
    };
    let mut cases = vec![
        ("tiny-gpt2", int4(32), "[d_in, d_out]"),
        ("tiny-bert", int4(48), "groups of 48"),
    ];
    if is_present("families") {
        cases.extend([
            ("families/qwen2", gguf, "attention.window is 3"),
            (
                "families/roberta",
                gguf,
                "\"roberta\", which cannot be saved as GGUF; these can: bert, gemma2",
            ),
            ("families/llama", int4(128), "whole groups of 128"),
        ]);
    }
    for (name, quantization, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let error = save(
            &open(weights(name)),
            quantization,
            &folder.path().join("saved"),
        );
        let said = error.unwrap_err().to_string();
        assert!(said.contains(words), "{name}: {said}");
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "{name}"
        );
    }
    // A file that is there stays, whatever it is.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let checkpoint = open(weights("tiny-bert"));
    save(&checkpoint, gguf, &file).unwrap();
    let before = std::fs::read(&file).unwrap();
    let said = save(&checkpoint, Quantization::Gguf(GgufType::Q4_0), &file)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("model.gguf") && said.contains("exists already"),
        "{said}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let replacing = SaveOptions::default().existing(ExistingFiles::Replace);
    let none = HashMap::<String, Tensor>::new;
    replacing
        .save_quantized(&checkpoint, gguf, &file, none(), |_| Ok(()))
        .unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "notes").unwrap();
    let said = replacing.save_quantized(&checkpoint, gguf, &text, none(), |_| Ok(()));
    assert!(said.unwrap_err().to_string().contains("not a GGUF file"));
    // An error of the caller's, such as after Ctrl-C, leaves no file.
    let stop =
        |_: &QuantizedTensor| Err(candle_blocks::Error::InvalidConfig("stopped".to_string()));
    let other = folder.path().join("other.gguf");
    let said = SaveOptions::default().save_quantized(&checkpoint, gguf, &other, none(), stop);
    assert!(said.unwrap_err().to_string().contains("stopped"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn factors_of_llama_3s_frequencies_are_transformers_own() {
    if !is_present("gguf") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let matrix = Tensor::ones((4, 512), DType::F32, &Device::Cpu).unwrap();
    // As in the neighboring file, whose factors transformers computed.
    let rope = json!({
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16, "rope_theta": 10000.0,
    });
    let checkpoint = llama(folder.path(), &matrix, 16, rope);
    let file = folder.path().join("model.gguf");
    save(&checkpoint, Quantization::Gguf(GgufType::Q8_0), &file).unwrap();
    let factors = |path: &Path| -> Vec<f32> {
        let bytes = TensorFiles::open(path)
            .unwrap()
            .read("rope_freqs.weight")
            .unwrap();
        let bytes: Vec<u8> = bytes.to_vec1().unwrap();
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect()
    };
    let (ours, theirs) = (factors(&file), factors(&weights("gguf/llama3/model.gguf")));
    assert_eq!(ours.len(), theirs.len());
    assert!(
        theirs.iter().any(|&factor| factor > 1.0 && factor < 4.0),
        "{theirs:?}"
    );
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // PyTorch's, in f32, are a quotient of powers: some ulp.
        assert!(
            (ours / theirs - 1.0).abs() < 8.0 * f32::EPSILON,
            "{ours}, {theirs}"
        );
    }
}
