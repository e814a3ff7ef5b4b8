//! `candle-blocks bench`: measures the speed of a feed-forward, a block or a stack, and its share of the
//! CPU's peak.

mod operations;
mod samples;
mod seeded;
mod subject;
mod threads;

use std::fmt;

use anyhow::{Result, bail};
use candle_blocks::{Precision, ops};
use clap::ValueEnum;
use serde::Serialize;

use crate::model::{SourceArgs, packing, precisions};
use crate::output::Escaped;
use crate::{CommandOutcome, output};
use subject::{Sizes, Subject};

/// Commands for the end of the help.
const EXAMPLES: &str = "Example:
  candle-blocks bench --op model --model all-MiniLM-L6-v2 --batch 1 --seq 128";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The layers to measure.
    #[arg(long, value_enum)]
    op: Op,
    /// With --op model, the checkpoint: a directory, a .safetensors, .gguf or .bin file, or a .index.json.
    #[arg(long, value_name = "PATH")]
    model: Option<std::path::PathBuf>,
    /// Number of sequences.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Length of a sequence. A feed-forward has batch * seq rows.
    #[arg(long, default_value_t = 128)]
    seq: usize,
    /// Width of the hidden states [default: 768]; with --op model, the checkpoint's.
    #[arg(long)]
    d_model: Option<usize>,
    /// Width of the feed-forward's hidden layer [default: 4 * d_model]; with --op model, the checkpoint's.
    #[arg(long)]
    d_ff: Option<usize>,
    /// Number of attention heads in a block [default: d_model / 64]; with --op model, the checkpoint's.
    #[arg(long)]
    heads: Option<usize>,
    /// How to pack the weights; `none` leaves them unpacked.
    #[arg(long, default_value = "f32", value_parser = precisions())]
    precision: String,
    /// Number of threads [default: RAYON_NUM_THREADS, or all cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds to measure, after a warm-up.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// The measured layers.
#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
enum Op {
    /// BERT's feed-forward sublayer: norm(x + down(gelu(up(x)))), with biases.
    FeedForward,
    /// A BERT block.
    Block,
    /// All blocks of a checkpoint.
    Model,
}

/// The measurement. Times are in milliseconds; operations are in 10^9, and a multiply-add counts as two.
#[derive(Serialize)]
struct BenchReport<'a> {
    op: Op,
    /// The checkpoint's family; `bert` without a checkpoint.
    family: String,
    batch: usize,
    seq: usize,
    d_model: usize,
    d_ff: usize,
    /// `None` for a feed-forward.
    heads: Option<usize>,
    layers: usize,
    precision: &'a str,
    isa: &'static str,
    threads: usize,
    samples: usize,
    median_ms: f64,
    min_ms: f64,
    /// Operations in all matrix products, including attention over the visible positions.
    gflop: f64,
    /// Operations per second at the median time.
    gflops: f64,
    /// The CPU's peak, measured before and after.
    peak_gflops: f64,
    share_of_peak: f64,
}

impl Args {
    fn packing(&self) -> Option<Precision> {
        packing(&self.precision)
    }
}

pub fn bench(args: &Args) -> Result<CommandOutcome> {
    check(args)?;
    let threads = threads::hold(args.threads)?;
    let subject = match args.op {
        Op::Model => Subject::model(
            &args.source.open(args.model.as_ref(), "--model PATH")?,
            args,
        )?,
        Op::Block => Subject::block(sizes(args), args)?,
        Op::FeedForward => Subject::feed_forward(sizes(args), args)?,
    };
    let precision = args.packing().unwrap_or(Precision::F32);
    let peak = ops::peak_flops(precision, threads)?;
    let samples = samples::take(args.seconds, || subject.run())?;
    let peak_gflops = peak.max(ops::peak_flops(precision, threads)?) * 1e-9;

    let gflop = subject.operations * 1e-9;
    let gflops = gflop / (samples.median_ms * 1e-3);
    let block = subject.block_config();
    let heads = block.facts().heads.filter(|_| args.op != Op::FeedForward);
    let report = BenchReport {
        op: args.op,
        family: subject.family.clone(),
        batch: args.batch,
        seq: args.seq,
        d_model: block.d_model(),
        d_ff: block.feed_forward.d_ff,
        heads: heads.map(|heads| heads.n_heads),
        layers: subject.layers(),
        precision: &args.precision,
        isa: ops::isa()?,
        threads,
        samples: samples.count,
        median_ms: samples.median_ms,
        min_ms: samples.min_ms,
        gflop,
        gflops,
        peak_gflops,
        share_of_peak: gflops / peak_gflops,
    };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!("{report}\n"))?;
    }
    Ok(CommandOutcome::Done)
}

/// Refuses bad arguments before anything is loaded.
fn check(args: &Args) -> Result<()> {
    let given = [
        ("--batch", Some(args.batch)),
        ("--seq", Some(args.seq)),
        ("--d-model", args.d_model),
        ("--d-ff", args.d_ff),
        ("--heads", args.heads),
        ("--threads", args.threads),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, value)| *value == Some(0)) {
        bail!("{flag} is 0; give 1 or more");
    }
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        bail!(
            "--seconds is {}; give more than 0 and at most 3600",
            args.seconds
        );
    }
    if args.op == Op::Model {
        let own = given[2..5].iter().find(|(_, value)| value.is_some());
        if let Some((flag, _)) = own {
            bail!("{flag} goes with --op feed_forward or block; a checkpoint has its own sizes");
        }
    } else if args.model.is_some() || args.source.is_given() {
        bail!(
            "a checkpoint goes with --op model; the others make random weights of --d-model, --d-ff and --heads"
        );
    } else if args.op == Op::FeedForward && args.heads.is_some() {
        bail!("--heads goes with --op block; a feed-forward has none");
    }
    Ok(())
}

fn sizes(args: &Args) -> Sizes {
    let d_model = args.d_model.unwrap_or(768);
    Sizes {
        d_model,
        d_ff: args.d_ff.unwrap_or(d_model.saturating_mul(4)),
        n_heads: args.heads.unwrap_or((d_model / 64).max(1)),
    }
}

impl fmt::Display for BenchReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let heads = self.heads.map(|n| format!(" of {n} heads"));
        let heads = heads.unwrap_or_default();
        let op = match self.op {
            Op::FeedForward => "feed-forward".to_string(),
            Op::Block => format!("block{heads}"),
            Op::Model => {
                let (family, layers) = (Escaped(&self.family), self.layers);
                format!("{family}, {layers} layers{heads}")
            }
        };
        writeln!(
            f,
            "{op}: {} x {} rows of {} (hidden {})",
            self.batch, self.seq, self.d_model, self.d_ff
        )?;
        writeln!(
            f,
            "precision {}, {}, threads: {}",
            self.precision, self.isa, self.threads
        )?;
        writeln!(
            f,
            "median {:.4} ms, least {:.4} ms of {} runs",
            self.median_ms, self.min_ms, self.samples
        )?;
        write!(
            f,
            "{:.4} GFLOP: {:.1} GFLOP/s, {:.1} % of the {:.0} that multiply-adds alone reach",
            self.gflop,
            self.gflops,
            100.0 * self.share_of_peak,
            self.peak_gflops
        )
    }
}
