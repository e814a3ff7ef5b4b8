//! Loading where the system allows less than it takes is an error that says so, and where it allows the peak that
//! `loading.rs` measures, it is none.

use std::{env, path::Path, process::Command, thread};

use candle_blocks::{
    AttentionConfig, BlockConfig, Checkpoint, Error, FeedForwardConfig, ForwardContext, NormConfig,
    NormPlacement, Precision, SaveOptions, StackConfig, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{GgufType, Quantization},
    config::Initialization,
    train::Fresh,
};

use crate::{
    counted::alone,
    loading::{SIZES, write_gpt2},
    synthetic::write_bert,
};

/// The process's memory besides the model: threads, the list of its tensors, mappings with whole large pages.
const BESIDE: usize = 36 << 20;
/// The limits that are tried between a few megabytes and the peak. Each takes a process or two of half a second.
const STEPS: usize = 6;

#[test]
#[ignore = "run by the others"]
fn loads() {
    let [Ok(kind), Ok(path)] = ["KIND", "PATH"].map(|name| env::var(format!("LIMITS_{name}")))
    else {
        return;
    };
    let loaded = match kind.strip_prefix("pass ") {
        Some(kind) => pass(kind),
        None => load(&kind, Path::new(&path)),
    };
    match loaded {
        Ok(()) => println!("outcome: loaded"),
        Err(Error::OutOfMemory {
            path: of,
            needed,
            allowed,
            ..
        }) => {
            let is_named = of.starts_with(&path);
            println!("outcome: {needed} of {allowed:?}, {is_named}");
        }
        Err(error) => println!("outcome: {error}"),
    }
}

fn load(kind: &str, path: &Path) -> candle_blocks::Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    let stack = |dtype| {
        checkpoint
            .load(Weights::Dense(dtype, &Device::Cpu))
            .stack()
            .map(drop)
    };
    let packed = |precision| {
        checkpoint
            .load(Weights::Packed(precision))
            .stack()
            .map(drop)
    };
    let saved = |kind| {
        let to = tempfile::tempdir().unwrap();
        let unchanged = Vec::<(String, Tensor)>::new();
        let save = SaveOptions::default();
        save.save_quantized(
            &checkpoint,
            kind,
            to.path().join("saved"),
            unchanged,
            |_| Ok(()),
        )
    };
    match kind {
        "save as GGUF" => saved(Quantization::Gguf(GgufType::Q8_0)),
        "save in 4 bits" => saved(Quantization::CompressedTensors {
            bits: 4,
            group_size: 32,
        }),
        "f32" => stack(DType::F32),
        "f64" => stack(DType::F64),
        "bf16" => stack(DType::BF16),
        "trainable" => {
            let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
            loader.stack().map(drop)
        }
        "packed in f32" => packed(Precision::F32),
        "packed in bf16" => packed(Precision::Bf16),
        "packed in int8" => packed(Precision::Int8),
        "packed in int4" => packed(Precision::INT4),
        other => panic!("{other}"),
    }
}

/// Runs two blocks over 4 MB of rows.
fn pass(kind: &str) -> candle_blocks::Result<()> {
    let (rows, width) = (8192, 128);
    let norm = NormConfig::layer_norm(width, 1e-5);
    let n_heads = if kind == "packed, one head" { 1 } else { 4 };
    let attention = AttentionConfig::new(width, n_heads)?.causal();
    let feed_forward = FeedForwardConfig::new(width);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    let config = StackConfig::uniform(block, 2, Some(norm));
    let initialization = Initialization::gpt2(0.02, 2);
    let fresh = Fresh::new(initialization, 0, DType::F32, &Device::Cpu);
    let stack = fresh.stack(&config)?;
    let x = Tensor::ones((1, rows, width), DType::F32, &Device::Cpu)?;
    let (evaluation, training) = (ForwardContext::evaluation(), ForwardContext::training());
    match kind {
        "forward" => drop(stack.forward(&x)?),
        "packed" | "packed, one head" => drop(stack.pack(Precision::F32)?.forward(&x)?),
        "packed in int8" => drop(stack.pack(Precision::Int8)?.forward(&x)?),
        "cached" => {
            let stack = stack.pack(Precision::F32)?;
            stack.forward_cached(&x, &evaluation, &mut stack.new_cache())?;
        }
        "cached rows" => {
            stack.forward_cached(&x, &evaluation, &mut stack.new_cache())?;
        }
        "training" => {
            let y = stack.forward_with(&x, &training)?;
            y.mean_all()?.backward()?;
        }
        other => panic!("{other}"),
    }
    Ok(())
}

/// Returns a loading process's message under a memory limit; its status if there is none.
fn under(limit: usize, kind: &str, path: &Path) -> String {
    let shell = format!(
        "ulimit -d {}; exec \"$0\" --exact limits::loads --ignored --nocapture --test-threads 1",
        limit >> 10
    );
    let output = Command::new("sh")
        .args(["-c", &shell])
        .arg(env::current_exe().unwrap())
        .env("LIMITS_KIND", kind)
        .env("LIMITS_PATH", path)
        .env("RAYON_NUM_THREADS", "2")
        .env("RUST_BACKTRACE", "0") // it takes memory, and waits for itself where there is none
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.split_once("outcome: ") {
        Some((_, said)) => said.lines().next().unwrap_or_default().to_string(),
        None => format!(
            "{:?} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Only what is allocated before the pass, and small parts of it, could end the process.
#[test]
fn below_its_peak_a_pass_is_an_error() {
    const LEAST: usize = 16 << 20;
    let _alone = alone();
    for (kind, most) in [
        ("forward", 260),
        ("packed", 120),
        ("packed, one head", 120),
        ("packed in int8", 120),
        ("cached", 160),
        ("cached rows", 260),
        ("training", 420),
    ] {
        let mut said = Vec::new();
        for step in 0..=STEPS {
            let limit = LEAST + ((most << 20) - LEAST) / STEPS * step;
            said.push(under(limit, &format!("pass {kind}"), Path::new("")));
        }
        for said in &said {
            let is_error = said.contains(" of Some(");
            assert!(said == "loaded" || is_error, "{kind}: {said}");
        }
        assert_ne!(said[0], "loaded", "{kind}");
        assert_eq!(said[STEPS], "loaded", "{kind}: {said:?}");
    }
}

/// Saving holds one tensor's values, and what they are encoded to.
#[test]
fn below_its_peak_saving_is_an_error() {
    const LEAST: usize = 16 << 20;
    const MOST: usize = (40 << 20) + BESIDE;
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    write_bert(folder.path(), SIZES, 0);
    for kind in ["save as GGUF", "save in 4 bits"] {
        let limit = |step| LEAST + (MOST - LEAST) / STEPS * step;
        let said = (0..=STEPS).map(|step| under(limit(step), kind, folder.path()));
        let said: Vec<_> = said.collect();
        for said in &said {
            let is_error = said.contains("saving it takes") || said.contains(" of Some(");
            assert!(said == "loaded" || is_error, "{kind}: {said}");
        }
        assert_ne!(said[0], "loaded", "{kind}");
        assert_eq!(said[STEPS], "loaded", "{kind}: {said:?}");
    }
}

#[test]
fn below_the_peak_loading_is_an_error_and_at_the_peak_it_is_not() {
    let _alone = alone();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write_bert(folders[0].path(), SIZES, 0);
    write_gpt2(folders[1].path(), None);
    thread::scope(|scope| {
        for folder in &folders {
            scope.spawn(|| loads_from_its_peak_on(folder.path()));
        }
    });
}

fn loads_from_its_peak_on(path: &Path) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let files = checkpoint.files();
    let sizes = files.names().map(|name| files.info(name).unwrap().n_bytes);
    let (total, largest) = (files.n_bytes() as usize, sizes.max().unwrap());
    let block = total / SIZES.n_blocks;
    // The memory that remains, and the temporary memory besides.
    for (kind, held, beside) in [
        ("f32", total, largest),
        ("f64", 2 * total, 2 * largest),
        ("bf16", total / 2, 2 * largest),
        ("trainable", total, largest),
        ("packed in f32", total / 10 * 11, block),
        ("packed in bf16", total / 20 * 11, block),
        ("packed in int8", total / 40 * 11, block),
        ("packed in int4", total / 64 * 10, block),
    ] {
        let peak = held + beside + BESIDE;
        let mut loaded = None;
        for step in 1..=STEPS {
            let limit = (8 << 20) + (peak - (8 << 20)) / STEPS * step;
            let said = under(limit, kind, path);
            let is_error = said.contains(" of Some(") && said.ends_with("true");
            assert!(
                said == "loaded" || is_error,
                "{kind} under {limit}, peak {peak}: {said}"
            );
            if said == "loaded" {
                loaded.get_or_insert(limit);
            }
            // The measure sees the limit, and the error comes before the file is read where it can.
            if step == STEPS {
                assert_eq!(said, "loaded", "{kind} under {limit}");
            } else if limit < held / 10 * 8 {
                let needed = said.split(' ').next().unwrap().parse::<usize>().unwrap();
                assert!(needed >= held / 10 * 8, "{kind} under {limit}: {said}");
            }
        }
        let least = loaded.unwrap();
        let family = checkpoint.family();
        println!("{family} {kind}: at most {peak}, loads from {least} bytes on");
    }
}
