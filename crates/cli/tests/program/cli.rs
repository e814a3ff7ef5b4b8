//! The program with valid input: the files that it writes, its output, its exit status.

use std::{fs, io};

use candle_blocks::{
    Checkpoint,
    candle_core::{DType, Device, Tensor},
    verify::{Comparer, Expected},
};
use serde_json::{Value, json};

use crate::{
    committed::present,
    scratch::{Scratch, Tensors, answer, load, program},
    synthetic::{Sizes, write_bert},
};

/// Committed checkpoints and the flags that they ask for.
const CHECKPOINTS: [(&str, &[&str]); 5] = [
    ("tiny-bert", &[]),
    ("tiny-gpt2", &[]),
    ("tiny-bert-bf16", &["--dtype", "bf16"]),
    ("tiny-gpt2-f16", &["--dtype", "f16"]),
    ("minilm-block0", &[]),
];

fn dims(tensors: &Tensors) -> Vec<(String, Vec<usize>)> {
    let dims = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dims().to_vec());
    tensors.iter().map(dims).collect()
}

/// The stages that `run` promises, sorted.
fn promised(checkpoint: &Checkpoint, shape: &[usize]) -> Vec<(String, Vec<usize>)> {
    let mut names = vec!["last_hidden_state".to_string()];
    for i in 0..checkpoint.config().blocks.len() {
        for stage in ["feed_forward.input", "feed_forward.output", "output"] {
            names.push(format!("layers.{i}.{stage}"));
        }
    }
    names.sort();
    names
        .into_iter()
        .map(|name| (name, shape.to_vec()))
        .collect()
}

#[test]
fn run_writes_the_promised_names_and_shapes_in_the_requested_type() {
    for (name, flags) in present(CHECKPOINTS, |c| c.0) {
        let scratch = Scratch::of(name);
        let answer = scratch.run(flags);
        answer.assert_status(0);
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
        let stages = load(&scratch.output());
        let shape = load(&scratch.input())["hidden_states"].dims().to_vec();
        let checkpoint = Checkpoint::open(scratch.model()).unwrap();
        assert_eq!(dims(&stages), promised(&checkpoint, &shape), "{name}");
        let requested = flags.last().copied().unwrap_or("f32");
        assert!(
            stages.values().all(|t| t.dtype().as_str() == requested),
            "{name}"
        );
    }
}

#[test]
fn run_backward_adds_every_gradient_under_its_name_and_in_its_layout_on_disk() {
    for (name, flags) in present(CHECKPOINTS, |c| c.0) {
        let scratch = Scratch::of(name);
        scratch
            .run(&[flags, &["--backward"]].concat())
            .assert_status(0);
        let written = load(&scratch.output());
        let shape = load(&scratch.input())["hidden_states"].dims().to_vec();
        let checkpoint = Checkpoint::open(scratch.model()).unwrap();
        let mut expected = promised(&checkpoint, &shape);
        expected.push(("grads.hidden_states".to_string(), shape));
        for used in checkpoint.report().used {
            if !used.roles[0].starts_with("final_norm") {
                let stored = checkpoint.files().info(&used.name).unwrap();
                expected.push((format!("grads.{}", used.name), stored.shape.clone()));
            }
        }
        expected.sort();
        assert_eq!(dims(&written), expected, "{name}");
    }
}

#[test]
fn an_older_output_is_replaced() {
    let scratch = Scratch::of("tiny-bert");
    fs::write(scratch.output(), "an older result").unwrap();
    scratch.run(&[]).assert_status(0);
    assert!(!load(&scratch.output()).is_empty());
    assert_eq!(scratch.written(), ["stages.safetensors"]);
}

/// A sequence with length 1 is a single row: the same row, alone in a batch with padding, must be equal.
#[test]
fn a_sequence_of_one_equals_its_row_in_a_padded_batch() {
    for (name, position) in [("tiny-bert", 0), ("tiny-gpt2", 3)] {
        let run = |dtype: DType, change: &dyn Fn(&mut Tensors)| {
            let scratch = Scratch::of(name);
            scratch.change_input(|tensors| change(tensors));
            scratch.run(&["--dtype", dtype.as_str()]).assert_status(0);
            load(&scratch.output())
        };
        // The first row of three sequences, alone and among three rows of padding.
        let rows = |tensors: &Tensors| tensors["hidden_states"].narrow(1, 1, 1).unwrap();
        let alone = |tensors: &mut Tensors| {
            *tensors = Tensors::from([("hidden_states".to_string(), rows(tensors))]);
        };
        let padded = |tensors: &mut Tensors| {
            let row = rows(tensors);
            let (batch, _, _) = row.dims3().unwrap();
            let (before, after) = (position, 3 - position);
            let x = row.pad_with_same(1, before, after).unwrap();
            let mask: Vec<i64> = (0..4).map(|i| i64::from(i == position)).collect();
            let mask = Tensor::new(vec![mask; batch], &Device::Cpu).unwrap();
            *tensors = Tensors::from([
                ("hidden_states".to_string(), x),
                ("attention_mask".to_string(), mask),
            ]);
        };
        let (single, long) = (run(DType::F32, &alone), run(DType::F32, &padded));
        let exact = run(DType::F64, &alone);
        for (stage, single) in single {
            let same_row = long[&stage].narrow(1, position, 1).unwrap();
            let expected = Expected::new(single, Some(exact[&stage].clone())).unwrap();
            let comparison = Comparer::new().compare(&stage, &same_row, &expected);
            assert!(comparison.passed(), "{name}: {comparison:#?}");
        }
    }
}

#[test]
fn verify_passes_on_every_committed_checkpoint_as_text_and_as_json() {
    for (name, flags) in present(CHECKPOINTS, |c| c.0) {
        let scratch = Scratch::of(name);
        let flags = [flags, &["--backward"]].concat();
        let text = scratch.verify(&flags);
        text.assert_status(0);
        let json = scratch.verify(&[flags, vec!["--json"]].concat());
        json.assert_status(0);
        assert_eq!((text.stderr.as_str(), json.stderr.as_str()), ("", ""));
        let json = json.json();
        assert_eq!(
            (&json["passed"], &json["first_divergence"]),
            (&json!(true), &Value::Null)
        );

        let fixture = load(&scratch.input());
        let inputs = [
            "hidden_states",
            "attention_mask",
            "input_ids",
            "grad_output",
        ];
        let is_result =
            |name: &&String| !name.ends_with(".f64") && !inputs.contains(&name.as_str());
        let comparisons = json["comparisons"].as_array().unwrap();
        let mut compared: Vec<&str> = comparisons
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        compared.sort_unstable();
        let results: Vec<&String> = fixture.keys().filter(is_result).collect();
        assert_eq!(compared, results, "{name}");
        let verdict = format!("ok: {0} of {0} tensors within tolerance\n", results.len());
        assert!(text.stdout.ends_with(&verdict), "{}", text.stdout);
        for comparison in comparisons {
            for key in ["max_abs", "max_rel", "share_used"] {
                assert!(comparison[key].is_number(), "{name}: {key} of {comparison}");
            }
        }
    }
}

#[test]
fn verify_names_the_first_place_where_a_changed_model_or_fixture_diverges() {
    let add = |tensors: &mut Tensors, name: &str| {
        let changed = (&tensors[name] + 0.01).unwrap();
        tensors.insert(name.to_string(), changed);
    };
    let model = Scratch::of("tiny-bert");
    model.change_weights(|tensors| add(tensors, "encoder.layer.1.intermediate.dense.bias"));
    let fixture = Scratch::of("tiny-gpt2");
    fixture.change_input(|tensors| {
        for name in ["layers.1.output", "layers.1.output.f64"] {
            add(tensors, name);
        }
    });
    for (scratch, first) in [
        (model, "layers.1.feed_forward.output"),
        (fixture, "layers.1.output"),
    ] {
        let text = scratch.verify(&[]);
        text.assert_status(1);
        let verdict = text.stdout.lines().last().unwrap();
        assert!(verdict.starts_with("FAIL: "), "{verdict}");
        assert!(
            verdict.ends_with(&format!("the first is {first}")),
            "{verdict}"
        );
        assert_eq!(text.stderr, "");
        let json = scratch.verify(&["--json"]);
        json.assert_status(1);
        let json = json.json();
        assert_eq!(
            (&json["passed"], &json["first_divergence"]),
            (&json!(false), &json!(first))
        );
    }
}

#[test]
fn a_model_may_be_a_file_or_an_index_with_its_config_elsewhere() {
    let scratch = Scratch::of("tiny-gpt2");
    scratch.shard();
    let config = scratch.path("elsewhere.json");
    fs::rename(scratch.config(), &config).unwrap();
    let mut command = program();
    command.arg("verify").arg("--model").arg(scratch.index());
    command
        .arg("--config")
        .arg(config)
        .arg("--fixture")
        .arg(scratch.input());
    answer(&mut command).assert_status(0);
}

#[test]
fn inspect_tells_the_promised_things_in_json() {
    let scratch = Scratch::of("tiny-gpt2");
    let answer = scratch.inspect(&["--json"]);
    answer.assert_status(0);
    let json = answer.json();
    assert_eq!(
        (&json["family"], &json["n_blocks"]),
        (&json!("gpt2"), &json!(2))
    );
    let block = &json["config"]["blocks"][0];
    assert_eq!(block["attention"]["visibility"], json!("causal"));
    assert_eq!(block["feed_forward"]["d_ff"], json!(40));
    // 24·72+72 and 24·24+24; 24·40+40 and 40·24+24; two norms with 2·24 in each of two blocks, and a final one.
    let (attention, feed_forward, norms) = (2 * 2400, 2 * 1984, 2 * 96 + 48);
    let in_blocks = attention + feed_forward + norms;
    let outside = (16 + 11) * 24;
    let parameters = &json["parameters"];
    for (key, expected) in [
        ("attention", attention),
        ("feed_forward", feed_forward),
        ("norms", norms),
        ("outside", outside),
        ("total", in_blocks + outside),
    ] {
        assert_eq!(parameters[key], json!(expected), "{key}");
    }
    let share = f64::from(feed_forward) / f64::from(in_blocks);
    assert_eq!(parameters["feed_forward_share"], json!(share));
    let tensors = &json["tensors"];
    assert_eq!(tensors["used"].as_array().unwrap().len(), 26);
    let mut used = tensors["used"].as_array().unwrap().iter();
    let fused = used.find(|tensor| tensor["name"] == "h.0.attn.c_attn.weight");
    let roles = ["query", "key", "value"].map(|role| format!("blocks.0.attention.{role}.weight"));
    let conversions = ["transposed", "split"];
    assert_eq!(
        fused.unwrap(),
        &json!({"name": "h.0.attn.c_attn.weight", "roles": roles, "conversions": conversions})
    );
    assert_eq!(tensors["outside"], json!(["wpe.weight", "wte.weight"]));
    for key in ["ignored", "unused", "missing"] {
        assert_eq!(tensors[key], json!([]), "{key}");
    }
}

/// Inspecting is how one finds out what is wrong, so it does not refuse.
#[test]
fn inspect_lists_missing_and_unknown_tensors() {
    let scratch = Scratch::of("tiny-bert");
    scratch.change_weights(|tensors| {
        let tensor = tensors.remove("encoder.layer.1.output.dense.bias").unwrap();
        tensors.insert("encoder.layer.1.output.dens.bias".to_string(), tensor);
    });
    let text = scratch.inspect(&[]);
    text.assert_status(0);
    for line in [
        "family     bert",
        "47 used (0 converted), 7 outside the blocks, 0 ignored, 1 unused, 1 missing",
        "  unused: encoder.layer.1.output.dens.bias",
        "  missing: blocks.1.feed_forward.down.bias",
    ] {
        assert!(text.stdout.contains(line), "no {line:?} in {}", text.stdout);
    }
    let tensors = &scratch.inspect(&["--json"]).json()["tensors"];
    assert_eq!(
        tensors["missing"],
        json!(["blocks.1.feed_forward.down.bias"])
    );
    assert_eq!(
        tensors["unused"],
        json!(["encoder.layer.1.output.dens.bias"])
    );
}

/// BERT-base as published, but for its values: the file is sparse, so that only headers can be read quickly.
#[test]
fn inspect_shows_that_in_bert_base_the_feed_forward_is_twice_the_attention() {
    let scratch = Scratch::of("tiny-bert");
    let sizes = Sizes {
        d_model: 768,
        d_ff: 3072,
        n_blocks: 12,
    };
    write_bert(&scratch.model(), sizes, 30522);
    let text = scratch.inspect(&[]);
    text.assert_status(0);
    assert!(
        text.stdout.contains("feed-forward / attention = 2.00"),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout.contains("192 used (0 converted)"),
        "{}",
        text.stdout
    );
    let parameters = &scratch.inspect(&["--json"]).json()["parameters"];
    let attention = 12 * 4 * (768 * 768 + 768);
    let feed_forward = 12 * (2 * 768 * 3072 + 3072 + 768);
    assert_eq!(parameters["attention"], json!(attention));
    assert_eq!(parameters["feed_forward"], json!(feed_forward));
    assert_eq!(parameters["outside"], json!(30522 * 768));
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let scratch = Scratch::of("tiny-bert");
    let closed = || {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        writer
    };
    for command in ["inspect", "verify"] {
        for format in [&[] as &[&str], &["--json"]] {
            let mut process = program();
            process.arg(command);
            match command {
                "inspect" => process.arg(scratch.model()),
                _ => process
                    .arg("--model")
                    .arg(scratch.model())
                    .arg("--fixture")
                    .arg(scratch.input()),
            };
            let answer = answer(process.args(format).stdout(closed()));
            answer.assert_status(0);
            assert_eq!(answer.stderr, "");
        }
    }
    // An error that nobody reads is still one, and no panic (101).
    let mut process = program();
    let answer = answer(process.arg("inspect").arg("nowhere").stderr(closed()));
    answer.assert_status(2);
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"] as &[&str], &["--version"], &["run", "--help"]] {
        let answer = answer(program().args(arguments));
        answer.assert_status(0);
        assert!(answer.stdout.contains("candle-blocks"), "{answer:?}");
        assert!(!answer.stdout.contains("candle-blocks-cli"), "{answer:?}");
    }
}
