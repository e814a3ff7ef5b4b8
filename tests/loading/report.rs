//! From a checkpoint to layers: what the report says, what strictness refuses, which error each fault gives.

use std::{collections::BTreeSet, fs, path::Path};

use candle_blocks::{
    Checkpoint, CheckpointOptions, Error, Linear, LinearConfig, LoadReport, Strictness,
    TransformerBlock, Weights,
    candle_core::{DType, Device, ModuleT, Tensor},
    checkpoint::{
        Conversion,
        scheme::{Family, Rule},
        write::write_safetensors,
    },
};

use crate::{
    committed::present, numbers::bits, said::assert_says, trained::trained, weights::weights,
};

const CPU: Device = Device::Cpu;

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(weights(name)).unwrap()
}

/// Returns a committed checkpoint with changed tensors, beside a copy of its `config.json`.
fn changed(name: &str, change: impl FnOnce(&mut Vec<(String, Tensor)>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::copy(weights(name).join("config.json"), config).unwrap();
    let source = open(name);
    let read = |name: &str| (name.to_string(), source.files().read(name).unwrap());
    let mut tensors: Vec<_> = source.files().names().map(read).collect();
    change(&mut tensors);
    write(folder.path(), &tensors);
    folder
}

fn write(folder: &Path, tensors: &[(String, Tensor)]) {
    write_safetensors(folder.join("model.safetensors"), tensors, None).unwrap();
}

/// Returns the weights in a checkpoint's stack, as lists of bits.
fn loaded(checkpoint: &Checkpoint) -> Vec<Vec<u64>> {
    let parameters = trained(checkpoint, DType::F32).into_iter();
    parameters.map(|(_, variable)| bits(&variable)).collect()
}

// Reports.

/// Returns how many tensors are used, transposed, split, ignored and outside.
fn counts(report: &LoadReport) -> [usize; 5] {
    let converted = |to| {
        report
            .converted()
            .filter(|t| t.conversions.contains(&to))
            .count()
    };
    [
        report.used.len(),
        converted(Conversion::Transposed),
        converted(Conversion::Split),
        report.ignored.len(),
        report.outside.len(),
    ]
}

#[test]
fn the_report_tells_what_became_of_every_tensor() {
    // 16 tensors in a block of BERT; 12 in one of GPT-2, of which 4 lie transposed and 2 are fused.
    let checkpoints = [
        ("tiny-bert", [3 * 16, 0, 0, 0, 7]),
        ("tiny-gpt2", [2 * 12 + 2, 2 * 4, 2 * 2, 0, 2]),
        ("tiny-bert-bf16", [2 * 16, 0, 0, 0, 7]),
        ("tiny-gpt2-f16", [2 * 12 + 2, 2 * 4, 2 * 2, 2 * 2, 2]),
        ("minilm-block0", [16, 0, 0, 0, 0]),
    ];
    for (name, expected) in present(checkpoints, |c| c.0) {
        let checkpoint = open(name);
        let report = checkpoint.report();
        assert_eq!(counts(&report), expected, "{name}");
        assert_eq!(
            (&report.unused, &report.missing),
            (&vec![], &vec![]),
            "{name}"
        );

        // Every tensor of the file is in one list, and in one only.
        let used = report.used.iter().map(|tensor| &tensor.name);
        let all: Vec<&String> = used.chain(&report.ignored).chain(&report.outside).collect();
        let distinct: BTreeSet<&str> = all.iter().map(|name| name.as_str()).collect();
        assert_eq!(distinct.len(), all.len(), "{name}");
        assert!(
            distinct.into_iter().eq(checkpoint.files().names()),
            "{name}"
        );

        // Every parameter comes from one tensor, and from one only.
        let loader = checkpoint.trainable(DType::F32, &CPU).unwrap();
        loader.stack().unwrap();
        let mut roles: Vec<String> = report.used.iter().flat_map(|t| t.roles.clone()).collect();
        let mut loaded: Vec<String> = loader.parameters().into_iter().map(|(r, _)| r).collect();
        roles.sort();
        loaded.sort();
        assert_eq!(roles, loaded, "{name}");
    }
}

#[test]
fn the_report_names_unused_and_missing_before_anything_is_loaded() {
    let folder = changed("tiny-bert", |tensors| {
        let (name, _) = &mut tensors[5];
        assert_eq!(name, "encoder.layer.0.attention.output.LayerNorm.bias");
        *name = "encoder.layer.0.attention.output.Norm.bias".to_string();
    });
    let report = Checkpoint::open(folder.path()).unwrap().report();
    assert_eq!(
        report.unused,
        ["encoder.layer.0.attention.output.Norm.bias"]
    );
    assert_eq!(report.missing, ["blocks.0.attention_norm.bias"]);
    let text = report.to_string();
    for line in [
        "tensors: 47 used (0 converted), 7 outside the blocks, 0 ignored, 1 unused, 1 missing\n",
        "  unused: encoder.layer.0.attention.output.Norm.bias\n",
        "  missing: blocks.0.attention_norm.bias\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
}

// Strictness and the other options.

#[test]
fn an_unknown_tensor_is_refused_or_left_out_as_requested() {
    let folder = changed("tiny-bert", |tensors| {
        let extra = tensors[0].1.clone();
        tensors.push(("encoder.layer.0.adapter.bias".to_string(), extra));
    });
    let strict = Checkpoint::open(folder.path()).unwrap();
    for error in [
        strict
            .load(Weights::Dense(DType::F32, &CPU))
            .stack()
            .unwrap_err(),
        strict
            .load(Weights::Dense(DType::F32, &CPU))
            .block(2)
            .unwrap_err(),
        strict
            .load(Weights::Dense(DType::F32, &CPU))
            .feed_forward(0)
            .unwrap_err(),
        strict.trainable(DType::F32, &CPU).err().unwrap(),
    ] {
        assert!(matches!(error, Error::UnusedTensors { .. }), "{error}");
        assert_says(
            &error,
            &["model.safetensors", "bert", "encoder.layer.0.adapter.bias"],
        );
    }
    let lenient = CheckpointOptions::default().strictness(Strictness::AllowUnused);
    let lenient = lenient.open(folder.path()).unwrap();
    assert_eq!(lenient.report().unused, ["encoder.layer.0.adapter.bias"]);
    assert_eq!(loaded(&lenient), loaded(&open("tiny-bert")));
}

#[test]
fn a_missing_tensor_is_an_error_whatever_the_strictness() {
    let folder = changed("tiny-bert", |tensors| tensors.truncate(tensors.len() - 3));
    for strictness in [Strictness::Strict, Strictness::AllowUnused] {
        let options = CheckpointOptions::default().strictness(strictness);
        let checkpoint = options.open(folder.path()).unwrap();
        let error = checkpoint
            .load(Weights::Dense(DType::F32, &CPU))
            .stack()
            .unwrap_err();
        assert!(matches!(error, Error::MissingTensor { .. }), "{error}");
        assert_says(
            &error,
            &[
                "blocks.2.feed_forward.down.weight",
                "encoder.layer.2.output.dense.weight",
            ],
        );
        // The existing tensors can be loaded.
        checkpoint
            .load(Weights::Dense(DType::F32, &CPU))
            .block(0)
            .unwrap();
    }
}

#[test]
fn a_config_may_be_elsewhere() {
    let folder = changed("tiny-gpt2", |_| {});
    let elsewhere = folder.path().join("other.json");
    fs::rename(folder.path().join("config.json"), &elsewhere).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::MissingConfig { .. }), "{error}");
    let options = CheckpointOptions::default().config(elsewhere);
    let checkpoint = options.open(folder.path()).unwrap();
    assert_eq!(loaded(&checkpoint), loaded(&open("tiny-gpt2")));
}

/// A BERT whose author chose other names, and stored the feed-forward as NumPy does.
#[test]
fn a_family_of_the_callers_own_takes_the_place_of_model_type() {
    let ours = [
        ("encoder.layer.", "trunk/"),
        (".attention.self.", "/att."),
        (".attention.output.dense.", "/att.out."),
        (".attention.output.LayerNorm.", "/att_norm."),
        (".intermediate.dense.", "/wide."),
        (".output.dense.", "/narrow."),
        (".output.LayerNorm.", "/ffn_norm."),
    ];
    let folder = changed("tiny-bert", |tensors| {
        tensors.retain(|(name, _)| name.starts_with("encoder."));
        for (name, tensor) in tensors {
            *name = ours
                .iter()
                .fold(name.clone(), |name, (from, to)| name.replace(from, to));
            if name.ends_with("wide.weight") || name.ends_with("narrow.weight") {
                *tensor = tensor.t().unwrap().contiguous().unwrap();
            }
        }
    });
    let family = Family::given("mine", open("tiny-bert").config().clone())
        .prefixes(&[""])
        .block("trunk/{i}/")
        .block_rules([
            Rule::linear("attention.query", &["att.query"]),
            Rule::linear("attention.key", &["att.key"]),
            Rule::linear("attention.value", &["att.value"]),
            Rule::linear("attention.output", &["att.out"]),
            Rule::norm("attention_norm", &["att_norm"]),
            Rule::conv1d("feed_forward.up", &["wide"]),
            Rule::conv1d("feed_forward.down", &["narrow"]),
            Rule::norm("feed_forward_norm", &["ffn_norm"]),
        ]);
    let options = CheckpointOptions::default().family(family.clone());
    let checkpoint = options.open(folder.path()).unwrap();
    assert_eq!(checkpoint.family(), "mine");
    assert_eq!(checkpoint.report().converted().count(), 2 * 3);
    assert_eq!(loaded(&checkpoint), loaded(&open("tiny-bert")));

    // A role that the family forgot is its author's error.
    let mut forgetful = family;
    forgetful.block_rules.pop();
    let options = CheckpointOptions::default().family(forgetful);
    let error = options.open(folder.path()).unwrap_err();
    assert_says(&error, &["family mine has no rule for feed_forward_norm"]);
}

// Parts of a checkpoint.

#[test]
fn a_block_and_its_feed_forward_are_those_of_the_stack() {
    for name in ["tiny-bert", "tiny-gpt2"] {
        let checkpoint = open(name);
        let stack = checkpoint
            .load(Weights::Dense(DType::F32, &CPU))
            .stack()
            .unwrap();
        for (i, expected) in stack.blocks().iter().enumerate() {
            let block = checkpoint
                .load(Weights::Dense(DType::F32, &CPU))
                .block(i)
                .unwrap();
            let x = Tensor::randn(
                0f32,
                1.,
                (2, 5, checkpoint.config().blocks[i].d_model()),
                &CPU,
            );
            let x = x.unwrap();
            let output = |block: &TransformerBlock| bits(&block.forward(&x).unwrap());
            assert_eq!(output(&block), output(expected), "{name} {i}");
            let part = checkpoint
                .load(Weights::Dense(DType::F32, &CPU))
                .feed_forward(i)
                .unwrap();
            let whole = expected.feed_forward().inner();
            let whole = whole.forward_t(&x, false).unwrap();
            assert_eq!(bits(&part.forward(&x).unwrap()), bits(&whole), "{name} {i}");
        }
    }
}

#[test]
fn a_block_that_is_not_there_is_an_error() {
    let checkpoint = open("tiny-bert");
    for i in [3, usize::MAX] {
        for error in [
            checkpoint
                .load(Weights::Dense(DType::F32, &CPU))
                .block(i)
                .unwrap_err(),
            checkpoint
                .load(Weights::Dense(DType::F32, &CPU))
                .feed_forward(i)
                .unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidInput { .. }), "{error}");
            let requested = format!("block: {i} was requested");
            assert_says(
                &error,
                &[&requested, "model.safetensors has the blocks 0 to 2"],
            );
        }
    }
}

/// A layer's error is candle's, which only has text; the loader returns the typed one.
#[test]
fn errors_that_pass_through_candle_keep_their_type() {
    let checkpoint = open("tiny-bert");
    let loader = checkpoint.load(Weights::Dense(DType::F32, &CPU));
    let vb = loader.var_builder().pp("blocks.0.feed_forward.up");
    Linear::new(&LinearConfig::new(20, 52), vb.clone()).unwrap();
    let error = Linear::new(&LinearConfig::new(20, 51), vb)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("encoder.layer.0.intermediate.dense.weight has shape [52, 20]"),
        "{error}"
    );
    let error = loader
        .var_builder()
        .get(3, "blocks.0.nothing")
        .unwrap_err()
        .to_string();
    assert!(error.contains("no tensor for blocks.0.nothing"), "{error}");

    let up = "encoder.layer.1.intermediate.dense.weight";
    let folder = changed("tiny-bert", |tensors| {
        let (_, tensor) = tensors.iter_mut().find(|(name, _)| name == up).unwrap();
        *tensor = tensor.t().unwrap().contiguous().unwrap();
    });
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    match checkpoint
        .load(Weights::Dense(DType::F32, &CPU))
        .stack()
        .unwrap_err()
    {
        Error::ShapeMismatch {
            tensor,
            expected,
            found,
            ..
        } => assert_eq!(
            (tensor.as_str(), expected, found),
            (up, vec![52, 20], vec![20, 52])
        ),
        other => panic!("{other}"),
    }
}

#[test]
fn a_parameter_that_is_loaded_twice_is_one_variable() {
    let checkpoint = open("tiny-gpt2");
    let loader = checkpoint.trainable(DType::F32, &CPU).unwrap();
    let stack = loader.stack().unwrap();
    let n_parameters = loader.parameters().len();
    let feed_forward = loader.feed_forward(0).unwrap();
    assert_eq!(loader.parameters().len(), n_parameters);

    let (_, up) = loader
        .parameters()
        .into_iter()
        .find(|(role, _)| role == "blocks.0.feed_forward.up.weight")
        .unwrap();
    up.set(&up.zeros_like().unwrap()).unwrap();
    let of_stack = stack.blocks()[0].feed_forward().inner().dense();
    for layer in [&feed_forward, of_stack.unwrap()] {
        let zeros = bits(&layer.up().weight().unwrap());
        assert!(zeros.iter().all(|&bits| bits == 0));
    }
}
