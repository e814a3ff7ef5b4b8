//! `candle-blocks inspect`: family, configuration, parameters by role, and what becomes of every tensor.

use std::{fmt::Write, path::PathBuf};

use anyhow::Result;
use candle_blocks::{Checkpoint, LoadReport, StackConfig};
use serde::Serialize;

use crate::{Outcome, model::SourceArgs, output};

#[derive(clap::Args)]
pub struct Args {
    /// Checkpoint: a directory, a .safetensors file or a .safetensors.index.json.
    path: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Parameters by what they belong to.
#[derive(Default, Serialize)]
struct ParameterCounts {
    total: usize,
    attention: usize,
    feed_forward: usize,
    norms: usize,
    /// Embeddings, heads and whatever else is no block.
    outside: usize,
    /// Feed-forward over everything in the blocks.
    feed_forward_share: f64,
}

#[derive(Serialize)]
struct Inspection<'c> {
    path: PathBuf,
    family: &'c str,
    n_blocks: usize,
    config: &'c StackConfig,
    parameters: ParameterCounts,
    tensors: LoadReport,
}

pub fn inspect(args: &Args) -> Result<Outcome> {
    let checkpoint = args.source.open(args.path.as_ref(), "PATH")?;
    let inspection = Inspection {
        path: checkpoint.files().path().to_path_buf(),
        family: checkpoint.family(),
        n_blocks: checkpoint.config().blocks.len(),
        config: checkpoint.config(),
        parameters: count(&checkpoint),
        tensors: checkpoint.report(),
    };
    if args.json {
        output::print_json(&inspection)?;
    } else {
        output::print(&text(&inspection)?)?;
    }
    Ok(Outcome::Done)
}

/// Counts elements by the role of the tensors that hold them.
fn count(checkpoint: &Checkpoint) -> ParameterCounts {
    let report = checkpoint.report();
    let size = |name: &str| {
        let info = checkpoint.files().info(name);
        info.map_or(0, |info| info.shape.iter().product())
    };
    let mut counts = ParameterCounts::default();
    for tensor in &report.used {
        let role = tensor.roles.first().map_or("", String::as_str);
        let counter = if role.contains("norm.") {
            &mut counts.norms
        } else if role.contains(".attention.") {
            &mut counts.attention
        } else {
            &mut counts.feed_forward
        };
        *counter += size(&tensor.name);
    }
    counts.outside = report.outside.iter().map(|name| size(name)).sum();
    let in_blocks = counts.attention + counts.feed_forward + counts.norms;
    counts.total = in_blocks + counts.outside;
    counts.feed_forward_share = counts.feed_forward as f64 / in_blocks.max(1) as f64;
    counts
}

fn text(inspection: &Inspection) -> Result<String> {
    let mut text = String::new();
    let out = &mut text;
    writeln!(out, "family     {}", inspection.family)?;
    writeln!(out, "blocks     {}", inspection.n_blocks)?;
    if let Some(block) = inspection.config.blocks.first() {
        let (attention, feed_forward) = (&block.attention, &block.feed_forward);
        writeln!(out, "width      {}", attention.d_model)?;
        writeln!(
            out,
            "attention  {} heads of {}, {} key/value heads, {:?}",
            attention.n_heads, attention.head_dim, attention.n_kv_heads, attention.visibility
        )?;
        writeln!(
            out,
            "feed-fwd   {} hidden, {}, {:?}",
            feed_forward.d_ff, feed_forward.activation, feed_forward.form
        )?;
        writeln!(
            out,
            "norm       {:?}, eps {:e}, {:?}, {:?}",
            block.norm.kind, block.norm.eps, block.feed_forward_placement, block.topology
        )?;
    }
    let counts = &inspection.parameters;
    writeln!(out, "\nparameters {:>13}", counts.total)?;
    let in_blocks = (counts.total - counts.outside).max(1) as f64;
    for (role, n) in [
        ("feed-forward", counts.feed_forward),
        ("attention", counts.attention),
        ("norms", counts.norms),
    ] {
        let share = 100.0 * n as f64 / in_blocks;
        writeln!(out, "  {role:<14} {n:>11}  {share:5.1} % of the blocks")?;
    }
    writeln!(out, "  {:<14} {:>11}", "outside blocks", counts.outside)?;
    if counts.attention > 0 {
        let ratio = counts.feed_forward as f64 / counts.attention as f64;
        writeln!(out, "  feed-forward / attention = {ratio:.2}")?;
    }
    write!(out, "\n{}", inspection.tensors)?;
    Ok(text)
}
