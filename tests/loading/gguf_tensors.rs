//! Tensors in a GGUF file in the forms that llama.cpp reads beside its converter's. `weights/sweep/gguf_tensors.py` removes and adds
//! every tensor that llama.cpp reads, and compares the results.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::config::{Position, RotaryScaling};
use candle_blocks::model::ModelInput;
use candle_blocks::{CheckpointOptions, Precision, Weights};

use crate::gguf_file::{GgufFile, StoredTensor, flag, number, whole, with_keys, with_tensors};
use crate::weights::{is_present, weights};

const FOLDER: &str = "gguf-architectures";

/// Returns an architecture's committed file.
fn bytes(name: &str) -> Vec<u8> {
    fs::read(weights(&format!("{FOLDER}/{name}/model.gguf"))).unwrap()
}

/// Returns the logits, or the hidden states, for a few tokens.
#[track_caller]
fn result(bytes: &[u8], name: &str) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let checkpoint = CheckpointOptions::default().whole().open(&path);
    let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = checkpoint.report();
    assert!(report.missing.is_empty(), "{name}: {:?}", report.missing);
    assert!(report.unused.is_empty(), "{name}: {:?}", report.unused);
    let ids = Tensor::new(&[[5u32, 3, 17, 8, 30, 12]], &Device::Cpu).unwrap();
    let input = ModelInput::tokens(&ids);
    let of = |output: candle_blocks::model::ModelOutput| {
        let result = output.logits.unwrap_or(output.last_hidden_state);
        result.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let plain = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    let packed = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let [plain, packed] = [plain, packed].map(|model| of(model.forward(&input).unwrap()));
    let furthest = plain.iter().zip(&packed).map(|(a, b)| (a - b).abs());
    assert!(furthest.fold(0.0, f32::max) < 1e-4, "{name}");
    plain
}

/// Replaces `attn_qkv` by its parts; one row in `share` is a key's.
fn parted(tensors: &mut Vec<StoredTensor>, share: usize) {
    let mut made = vec![];
    for tensor in tensors.drain(..) {
        if !tensor.name.contains("attn_qkv") {
            made.push(tensor);
            continue;
        }
        let n = tensor.shape[0];
        let key = n / share;
        let parts = [0..n - 2 * key, n - 2 * key..n - key, n - key..n];
        for (part, rows) in ["attn_q", "attn_k", "attn_v"].iter().zip(parts) {
            let mut shape = tensor.shape.clone();
            shape[0] = rows.len();
            made.push(StoredTensor {
                name: tensor.name.replace("attn_qkv", part),
                shape,
                kind: tensor.kind,
                bytes: tensor.rows(rows),
            });
        }
    }
    *tensors = made;
}

/// Joins queries, keys and values.
fn joined(tensors: &mut Vec<StoredTensor>) {
    let all = tensors.clone();
    let find = |name: String| all.iter().find(|tensor| tensor.name == name).cloned();
    tensors.retain(|tensor| {
        !["attn_k.", "attn_v."]
            .iter()
            .any(|part| tensor.name.contains(part))
    });
    for tensor in tensors
        .iter_mut()
        .filter(|tensor| tensor.name.contains("attn_q."))
    {
        for part in ["attn_k.", "attn_v."] {
            let other = find(tensor.name.replace("attn_q.", part)).unwrap();
            tensor.shape[0] += other.shape[0];
            tensor.bytes.extend(other.bytes);
        }
        tensor.name = tensor.name.replace("attn_q.", "attn_qkv.");
    }
}

#[test]
fn queries_keys_and_values_may_be_one_tensor_or_three() {
    if !is_present(FOLDER) {
        return;
    }
    let apart = [
        ("nomic-bert", 3),
        ("nomic-bert-moe", 3),
        ("jina-bert-v3", 3),
        ("modern-bert", 3),
        ("gptneox", 3),
        ("mpt", 3),
        ("falcon-40b", 4), // two queries for each key
    ];
    for (name, share) in apart {
        let file = bytes(name);
        let changed = with_tensors(&file, |tensors| parted(tensors, share));
        assert_ne!(changed.len(), file.len(), "{name}");
        assert_eq!(result(&changed, name), result(&file, name), "{name}");
    }
    for name in [
        "jina-bert-v2",
        "jina-bert-v2-code",
        "apertus",
        "qwen35",
        "qwen3next",
        "granitehybrid",
    ] {
        let file = bytes(name);
        let changed = with_tensors(&file, joined);
        assert_ne!(changed.len(), file.len(), "{name}");
        assert_eq!(result(&changed, name), result(&file, name), "{name}");
    }
}

#[test]
fn a_vector_may_have_leading_dimensions_of_one() {
    if !is_present(FOLDER) {
        return;
    }
    let mut n = 0;
    for entry in fs::read_dir(weights(FOLDER)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let file = bytes(&name);
        let changed = with_tensors(&file, |tensors| {
            for tensor in tensors {
                let is_vector = [".bias", "norm"]
                    .iter()
                    .any(|part| tensor.name.contains(part));
                match tensor.shape[..] {
                    [_] if is_vector => tensor.shape.insert(0, 1),
                    [1, _] if tensor.name.contains("exp_probs_b") => drop(tensor.shape.remove(0)),
                    _ => continue,
                }
                n += 1;
            }
        });
        assert_eq!(result(&changed, &name), result(&file, &name), "{name}");
    }
    assert!(n > 200, "only {n}");
}

/// llama.cpp adds nothing in their place.
#[test]
fn an_absent_bias_or_embedding_of_token_types_is_zero() {
    if !is_present(FOLDER) {
        return;
    }
    let zeroed = |name: &str, end: &'static str| {
        let is_one = move |tensor: &StoredTensor| tensor.name.ends_with(end);
        let file = bytes(name);
        let absent = with_tensors(&file, |tensors| tensors.retain(|tensor| !is_one(tensor)));
        let zero = with_tensors(&file, |tensors| {
            let all = tensors.iter_mut().filter(|tensor| is_one(tensor));
            all.for_each(|tensor| tensor.bytes.fill(0));
        });
        assert!(absent.len() < file.len(), "{name} {end}");
        assert_eq!(result(&absent, name), result(&zero, name), "{name} {end}");
    };
    for (name, end) in [
        ("apertus", "attn_k.bias"),
        ("apertus", "attn_output.bias"),
        ("jina-bert-v2", "attn_q.bias"),
        ("jina-bert-v3", "ffn_down.bias"),
        ("jina-bert-v3", "token_types.weight"),
        ("nomic-bert", "token_types.weight"),
        ("glm4moe", "exp_probs_b.bias"),
        ("ernie4_5-moe", "exp_probs_b.bias"),
    ] {
        zeroed(name, end);
    }
    // Without it llama.cpp opens no such file.
    let file = with_tensors(&bytes("gptneox"), |tensors| {
        tensors.retain(|tensor| !tensor.name.ends_with("ffn_up.bias"));
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, file).unwrap();
    let opened = CheckpointOptions::default().whole().open(&path);
    let report = opened.unwrap().report();
    assert!(!report.missing.is_empty());
}

/// Newer converters write such stacks.
#[test]
fn gates_and_other_projections_of_experts_may_be_one_tensor() {
    if !is_present(FOLDER) {
        return;
    }
    for name in [
        "glm4moe",
        "deepseek2",
        "granitemoe-shared",
        "ernie4_5-moe",
        "qwen35moe",
        "qwen3next",
        "granitehybrid-experts",
    ] {
        let file = bytes(name);
        let changed = with_tensors(&file, |tensors| {
            let all = tensors.clone();
            tensors.retain(|tensor| !tensor.name.contains("ffn_up_exps"));
            let gates = tensors
                .iter_mut()
                .filter(|t| t.name.contains("ffn_gate_exps"));
            for gate in gates {
                let name = gate.name.replace("ffn_gate_exps", "ffn_up_exps");
                let up = all.iter().find(|tensor| tensor.name == name).unwrap();
                let experts = (0..gate.shape[0]).map(|i| i..i + 1);
                let pairs = experts.map(|i| [gate.rows(i.clone()), up.rows(i)].concat());
                gate.bytes = pairs.flatten().collect();
                gate.shape[1] *= 2;
                gate.name = gate.name.replace("ffn_gate_exps", "ffn_gate_up_exps");
            }
        });
        assert_ne!(changed.len(), file.len(), "{name}");
        assert_eq!(result(&changed, name), result(&file, name), "{name}");
    }
}

/// llama.cpp turns by the base alone where the file has no factors, and transformers' class has a scaling by default.
#[test]
fn apertus_without_factors_rotates_by_its_base_alone() {
    if !is_present(FOLDER) {
        return;
    }
    let file = with_tensors(&bytes("apertus"), |tensors| {
        tensors.retain(|tensor| tensor.name != "rope_freqs.weight");
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, &file).unwrap();
    let checkpoint = CheckpointOptions::default().open(&path).unwrap();
    match &checkpoint.config().blocks[0].attention().unwrap().position {
        Position::Rotary(rotary) => assert_eq!(rotary.scaling, RotaryScaling::None),
        other => panic!("{other:?}"),
    }
}

/// The key repeats that the model is an encoder.
#[test]
fn an_encoder_of_t5_may_say_that_it_is_not_causal() {
    let values = |shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let values = (0..n).map(|i| (((i * 7 + seed * 5) % 13) as f32 - 6.0) / 9.0);
        values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    let key = |key: &str| format!("t5encoder.{key}");
    let mut file = GgufFile::new("t5encoder");
    for (name, size) in [
        ("block_count", 1),
        ("embedding_length", 8),
        ("attention.head_count", 2),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
        ("feed_forward_length", 12),
        ("context_length", 64),
        ("attention.relative_buckets_count", 8),
    ] {
        file = file.key(&key(name), whole(size));
    }
    file = file.key(&key("attention.layer_norm_rms_epsilon"), number(1e-6));
    for (seed, (name, shape)) in [
        ("token_embd", &[41, 8][..]),
        ("enc.output_norm", &[8]),
        ("enc.blk.0.attn_norm", &[8]),
        ("enc.blk.0.attn_q", &[8, 8]),
        ("enc.blk.0.attn_k", &[8, 8]),
        ("enc.blk.0.attn_v", &[8, 8]),
        ("enc.blk.0.attn_o", &[8, 8]),
        ("enc.blk.0.attn_rel_b", &[8, 2]),
        ("enc.blk.0.ffn_norm", &[8]),
        ("enc.blk.0.ffn_up", &[12, 8]),
        ("enc.blk.0.ffn_down", &[8, 12]),
    ]
    .into_iter()
    .enumerate()
    {
        file = file.tensor(&format!("{name}.weight"), shape, 0, values(shape, seed));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain.gguf");
    file.write(&path);
    let plain = fs::read(&path).unwrap();
    let said = with_keys(plain.clone(), &[(&key("attention.causal"), flag(false))]);
    assert_eq!(result(&said, "said"), result(&plain, "plain"));
}
