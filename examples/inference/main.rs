//! Loads pretrained blocks, runs them, and compares every intermediate result with PyTorch's.
//!
//! ```text
//! cargo run --example inference
//! cargo run --release --example inference -- --model DIR --fixture FILE
//! ```
//!
//! A debug build optimizes the kernels, but not candle: only a release build times candle's layers beside ours.
//!
//! `python weights/export.py fixture` makes a fixture for your own checkpoint.

mod plain_candle;

use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, TransformerBlock, Weights,
    candle_core::{DType, Device, Tensor},
    trace::{self, TraceInput},
    verify::{Fixture, verify},
};
use plain_candle::PlainBlock;

fn main() -> Result<()> {
    let args = Args::parse()?;
    let device = Device::Cpu;

    let checkpoint = Checkpoint::open(&args.model)?;
    let first = &checkpoint.config().blocks[0];
    println!(
        "{}: {} x {} block, width {}, {} heads, feed-forward {} ({})\n",
        args.model.display(),
        checkpoint.config().blocks.len(),
        checkpoint.family(),
        first.d_model(),
        first.attention.n_heads,
        first.feed_forward.d_ff,
        first.feed_forward.activation,
    );

    // Every stage against PyTorch's.
    let fixture = Fixture::open(&args.fixture)?;
    let input = TraceInput::new(|name| fixture.tensor(name).cloned())?;
    let stages = trace::run(&checkpoint, &input, DType::F32, &device)?;
    let produced: HashMap<_, _> = stages.into_iter().collect();
    let report = verify(&fixture, &produced);
    println!("{report}");

    // One block and its feed-forward by themselves, timed.
    let block = checkpoint
        .load(Weights::Dense(DType::F32, &device))
        .block(0)?;
    let feed_forward = checkpoint
        .load(Weights::Dense(DType::F32, &device))
        .feed_forward(0)?;
    let x = input
        .hidden_states
        .as_ref()
        .context("the fixture has no hidden_states")?;
    let x = x.to_dtype(DType::F32)?;
    let mask = match &input.model.attention_mask {
        Some(mask) => AttentionMask::padding(mask)?,
        None => AttentionMask::none(),
    };
    let context = ForwardContext::evaluation().with_mask(mask);
    println!("\ntime per call on {:?}, median:", x.dims());
    let ours = median(|| feed_forward.forward(&x))?;
    println!("  FeedForward        {ours:>10.1?}");
    compare_with_plain_candle(&block, &x, &context)?;

    if !report.passed {
        bail!("the outputs are not PyTorch's: see the table");
    }
    Ok(())
}

/// True if candle was compiled with optimization, so that timing it makes sense.
const IS_OPTIMIZED: bool = !cfg!(debug_assertions);

/// Times a block against the same weights in candle-nn's layers, alternating between the two.
fn compare_with_plain_candle(
    block: &TransformerBlock,
    x: &Tensor,
    context: &ForwardContext,
) -> Result<()> {
    let Some(plain) = PlainBlock::of(block) else {
        let ours = median(|| block.forward_with(x, context))?;
        println!("  TransformerBlock   {ours:>10.1?}   (no plain candle-nn twin of this form)");
        return Ok(());
    };
    let difference = (plain.forward(x, context)? - block.forward_with(x, context)?)?;
    let largest = difference.abs()?.max_all()?.to_scalar::<f32>()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        ours.push(median(|| block.forward_with(x, context))?);
        if IS_OPTIMIZED {
            theirs.push(median(|| plain.forward(x, context))?);
        }
    }
    let ours = middle(ours);
    println!("  TransformerBlock   {ours:>10.1?}");
    let time = if IS_OPTIMIZED {
        let theirs = middle(theirs);
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        format!("{theirs:>10.1?}   {ratio:.2} x ours")
    } else {
        "   not timed in a debug build (--release)".into()
    };
    println!("  plain candle-nn    {time}; outputs differ by at most {largest:.1e}");
    Ok(())
}

/// The median time of a call, after a warm-up.
fn median<T>(mut call: impl FnMut() -> candle_blocks::candle_core::Result<T>) -> Result<Duration> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        std::hint::black_box(call()?);
        times.push(start.elapsed());
    }
    Ok(middle(times))
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Args {
    model: PathBuf,
    fixture: PathBuf,
}

impl Args {
    fn parse() -> Result<Self> {
        let committed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("weights/minilm-block0");
        let (mut model, mut fixture) = (None, None);
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let target = match arg.as_str() {
                "--model" => &mut model,
                "--fixture" => &mut fixture,
                _ => bail!("unknown argument {arg}; known: --model DIR, --fixture FILE"),
            };
            let value = args
                .next()
                .with_context(|| format!("{arg} needs a value"))?;
            *target = Some(PathBuf::from(value));
        }
        let (model, fixture) = match (model, fixture) {
            (None, None) if !committed.exists() => bail!(
                "{} is missing: the published package leaves it out; run this in a clone of the \
                 repository, or give --model weights/tiny-bert --fixture \
                 weights/tiny-bert/fixture.safetensors",
                committed.display()
            ),
            (None, None) => (committed.clone(), committed.join("fixture.safetensors")),
            (Some(model), Some(fixture)) => (model, fixture),
            _ => bail!("--model and --fixture go together"),
        };
        Ok(Self { model, fixture })
    }
}
