//! Continues a text, then runs pretrained blocks and compares every intermediate result with PyTorch's.
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
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, bail};
use candle_blocks::{
    AttentionMask, Checkpoint, ForwardContext, GenerationOptions, Generator, Precision, Sampler,
    Sampling, TransformerBlock, Weights,
    candle_core::{DType, Device, Tensor},
    trace::{self, TraceInput},
    verify::{Fixture, verify},
};
use plain_candle::PlainBlock;
use tokenizers::Tokenizer;

fn main() -> Result<()> {
    let args = Args::parse()?;
    if let Some(model) = &args.text_model {
        continue_text(model)?;
    }
    compare(&args)?;
    if args.text_model.is_some() {
        print!("{NEXT}");
    }
    Ok(())
}

/// The next commands, after those that need only the repository.
const NEXT: &str = "
next:
  cargo run --release --example inference                           # times beside those of candle-nn
  cargo run --release --features text --example chat -- MODEL_DIR   # a conversation
  cargo install --path crates/cli                                   # the program, which also downloads models
";

/// Continues a sentence with a model that was trained on Jane Austen's *Persuasion*.
fn continue_text(folder: &Path) -> Result<()> {
    const BEGINNING: &str = "Anne Elliot was";
    let checkpoint = Checkpoint::open(folder)?;
    let tokenizer =
        Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::from_boxed)?;
    let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
    let options = GenerationOptions::of(&checkpoint)?.with_max_new_tokens(60);
    let generator = Generator::new(model, options)?;
    let prompt = tokenizer
        .encode(BEGINNING, false)
        .map_err(Error::from_boxed)?;
    let sampling = Sampling::at(0.3).with_seed(11);
    let new = generator.generate(&[prompt.get_ids().to_vec()], Sampler::new(sampling)?)?;
    let text = tokenizer.decode(&new[0], true).map_err(Error::from_boxed)?;
    println!(
        "A model of 0.8 million parameters, which has read one novel, byte by byte, continues \"{BEGINNING}\":\n"
    );
    println!("  {BEGINNING}{}\n", text.trim_end());
    Ok(())
}

/// Compares a checkpoint's blocks with PyTorch, and times one.
fn compare(args: &Args) -> Result<()> {
    let device = Device::Cpu;
    let checkpoint = Checkpoint::open(&args.model)?;
    let first = &checkpoint.config().blocks[0];
    println!(
        "{}: {} x {} block, width {}, {} heads, feed-forward {} ({})\n",
        args.model.display(),
        checkpoint.config().blocks.len(),
        checkpoint.family(),
        first.d_model(),
        first.attention()?.n_heads,
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
    println!("{COLUMNS}");

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

/// The meaning of the columns in the table.
const COLUMNS: &str = "
max abs, rel err  the largest error here, against PyTorch's result in float64: absolute, and relative to the element
PyTorch's own     the largest error of PyTorch in float32, against the same result
ratio, at         the first column divided by PyTorch's; the index of the largest error
of tolerance      the share of the allowed error: twice PyTorch's, and 4 units in the last place (docs/tolerance.md)";

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
    /// The model that continues a text, unless another is compared.
    text_model: Option<PathBuf>,
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
        let text_model = committed.with_file_name("tiny-gpt-text");
        let is_committed = model.is_none() && text_model.exists();
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
        Ok(Self {
            text_model: is_committed.then_some(text_model),
            model,
            fixture,
        })
    }
}
