//! `candle-blocks inspect`: prints the family, configuration, parameter counts by role, and how every tensor is used.

use std::{collections::BTreeSet, fmt::Write, path::PathBuf};

use anyhow::{Context, Result};
use candle_blocks::candle_core::{DType, Device};
use candle_blocks::checkpoint::UsedTensor;
use candle_blocks::config::{EmbeddingsConfig, ModelConfig};
use candle_blocks::{BlockConfig, Checkpoint, FeedForwardForm, LoadReport, StackConfig, Weights};
use serde::Serialize;

use crate::model::SourceArgs;
use crate::output::Escaped;
use crate::page::Page;
use crate::{CommandOutcome, output};

/// Commands for the end of the help.
const EXAMPLES: &str = "Examples:
  candle-blocks inspect weights/tiny-gpt2
  candle-blocks inspect --hub openai-community/gpt2";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The checkpoint: a directory, a .safetensors, .gguf or .bin file, or a .index.json.
    path: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Also write a page to look at, with the use of every tensor.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

/// Element counts by role.
#[derive(Default, Serialize)]
struct ParameterCounts {
    /// All parameters: everything except what is ignored or unused.
    total: usize,
    attention: usize,
    /// Cross-attention.
    cross_attention: usize,
    /// Feed-forwards, including experts and routers.
    feed_forward: usize,
    /// The routed experts in the feed-forwards.
    experts: usize,
    /// The routers in the feed-forwards.
    router: usize,
    norms: usize,
    /// Per-layer inputs: embeddings and projections.
    layer_inputs: usize,
    /// AltUp, which predicts, corrects and merges streams of hidden states.
    streams: usize,
    /// Scales for the outputs of sublayers and blocks.
    layer_scales: usize,
    /// Embeddings, heads, other stacks and whatever else is outside the blocks.
    outside: usize,
    /// Tensors that are not parameters: masks, position ids.
    ignored: usize,
    /// Tensors that no rule of the family covers.
    unused: usize,
    /// The share of feed-forwards among all parameters in the blocks.
    feed_forward_share: f64,
}

#[derive(Serialize)]
struct Inspection<'c> {
    path: PathBuf,
    family: &'c str,
    n_blocks: usize,
    config: &'c StackConfig,
    /// The whole model, if the files hold one.
    model: Option<&'c ModelConfig>,
    parameters: ParameterCounts,
    tensors: LoadReport,
}

pub fn inspect(args: &Args) -> Result<CommandOutcome> {
    let checkpoint = args.source.open(args.path.as_ref(), "PATH")?;
    check(args, &checkpoint)?;
    let inspection = Inspection {
        path: checkpoint.files().path().to_path_buf(),
        family: checkpoint.family(),
        n_blocks: checkpoint.config().blocks.len(),
        config: checkpoint.config(),
        model: checkpoint.model_config().ok(),
        parameters: count(&checkpoint),
        tensors: checkpoint.report(),
    };
    if let Some(html) = &args.html {
        output::check_file("--html", html, &checkpoint, std::iter::empty())?;
        page(&inspection, &checkpoint)?.write(html)?;
    }
    if args.json {
        output::print_json(&inspection)?;
    } else {
        output::print(&text(&inspection)?)?;
    }
    Ok(CommandOutcome::Done)
}

/// Refuses weights that belong to another model: none is in the configuration.
fn check(args: &Args, checkpoint: &Checkpoint) -> Result<()> {
    let report = checkpoint.report();
    if !report.used.is_empty() || report.missing.is_empty() {
        return Ok(());
    }
    let own = checkpoint.files().directory().join("config.json");
    let config = args.source.config().unwrap_or(&own);
    let what = format!(
        "none of the {} parameters of {} that {} describes is in the weights, which belong to another model",
        report.missing.len(),
        checkpoint.family(),
        config.display()
    );
    checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .block(0)
        .map(drop)
        .context(what)
}

/// Counts elements by the role of the tensors that hold them.
fn count(checkpoint: &Checkpoint) -> ParameterCounts {
    let report = checkpoint.report();
    let size = |name: &str| {
        let info = checkpoint.files().info(name);
        info.map_or(0, |info| info.shape.iter().product())
    };
    let sizes = |names: &[String]| names.iter().map(|name| size(name)).sum::<usize>();
    let mut counts = ParameterCounts {
        outside: sizes(&report.outside),
        ignored: sizes(&report.ignored),
        unused: sizes(&report.unused) + sizes(&report.unread),
        ..ParameterCounts::default()
    };
    for tensor in &report.used {
        let n = size(&tensor.name);
        let role = tensor.roles.first().map_or("", String::as_str);
        let segments: Vec<&str> = role.split('.').collect();
        let has = |name: &str| segments.contains(&name);
        if segments.iter().any(|segment| segment.ends_with("norm")) {
            counts.norms += n;
        } else if segments
            .iter()
            .any(|segment| segment.ends_with("layer_scale") || *segment == "output_scale")
        {
            counts.layer_scales += n;
        } else if has("layer_input") || has("layer_inputs") {
            counts.layer_inputs += n;
        } else if has("altup") {
            counts.streams += n;
        } else if has("cross_attention") {
            counts.cross_attention += n;
        } else if [
            "attention",
            "laurel",
            "relative_bias",
            "relative_embeddings",
        ]
        .into_iter()
        .any(has)
        {
            counts.attention += n;
        } else {
            counts.feed_forward += n;
            if has("experts") {
                counts.experts += n;
            } else if has("router") {
                counts.router += n;
            }
        }
    }
    let in_blocks = counts.attention
        + counts.cross_attention
        + counts.feed_forward
        + counts.norms
        + counts.layer_inputs
        + counts.streams
        + counts.layer_scales;
    counts.total = in_blocks + counts.outside;
    counts.feed_forward_share = counts.feed_forward as f64 / in_blocks.max(1) as f64;
    counts
}

fn text(inspection: &Inspection) -> Result<String> {
    let mut text = String::new();
    let out = &mut text;
    writeln!(out, "family     {}", Escaped(inspection.family))?;
    writeln!(out, "blocks     {}", inspection.n_blocks)?;
    if let Some(block) = inspection.config.blocks.first() {
        writeln!(out, "width      {}", block.d_model())?;
        let blocks = inspection.config.blocks.iter();
        let states = blocks.clone().filter_map(|block| block.facts().state);
        if let Some(largest) = states.clone().max() {
            let (n, all) = (states.count(), inspection.config.blocks.len());
            writeln!(
                out,
                "recurrent  {n} of {all} blocks, with a state of {largest} elements for each sequence"
            )?;
        }
        let is_fed = |block: &&BlockConfig| block.feed_forward.form != FeedForwardForm::Absent;
        let fed = blocks.clone().find(is_fed);
        if let Some(attention) = blocks.flat_map(BlockConfig::attention).next() {
            writeln!(
                out,
                "attention  {} heads of {}, {} key/value heads, {:?}",
                attention.n_heads, attention.head_dim, attention.n_kv_heads, attention.visibility
            )?;
            if let Some(latent) = &attention.latent {
                writeln!(
                    out,
                    "latent     {} numbers, and a key of {} that all heads share; values of {}",
                    latent.rank, latent.rotary_dim, latent.value_dim
                )?;
            }
        }
        let transformers = inspection.config.blocks.iter();
        let transformers = transformers.filter_map(|block| block.own.zamba()?.transformer.as_ref());
        let used = transformers.clone().count();
        let mut transformers = transformers.filter(|of| !of.uses.is_empty());
        let n_shared = transformers.clone().count();
        if let Some(of) = transformers.next() {
            let (heads, head_dim, d_ff) = (of.attention.n_heads, of.attention.head_dim, of.d_ff);
            writeln!(
                out,
                "shared     {n_shared} of {heads} heads of {head_dim} and {d_ff} hidden: transformers that {used} blocks run"
            )?;
        }
        if let Some(BlockConfig { feed_forward, .. }) = fed {
            writeln!(
                out,
                "feed-fwd   {} hidden, {}, {:?}",
                feed_forward.d_ff, feed_forward.activation, feed_forward.form
            )?;
        }
        if let Some(experts) = fed.and_then(|block| block.feed_forward.experts) {
            writeln!(
                out,
                "experts    {}, of which each position uses {}",
                experts.n_experts, experts.routing.top_k
            )?;
        }
        if let Some(cross) = &block.cross_attention {
            writeln!(
                out,
                "cross-att  {} heads of {}, memory of width {}",
                cross.n_heads, cross.head_dim, cross.d_encoder
            )?;
        }
        let placement = fed.map_or(block.attention_placement, |of| of.feed_forward_placement);
        writeln!(
            out,
            "norm       {:?}, eps {:e}, {placement:?}, {:?}",
            block.norm.kind, block.norm.eps, block.topology
        )?;
    }
    if let Some(model) = inspection.model {
        let reads = match &model.embeddings {
            EmbeddingsConfig::Tokens(tokens) => format!("{} tokens", tokens.n_tokens),
            EmbeddingsConfig::Patches(patches) => {
                let [height, width] = patches.image_size;
                format!("images of {height} x {width}")
            }
            EmbeddingsConfig::Spectrum(spectrum) => {
                format!("audio features with {} bands", spectrum.n_mels)
            }
        };
        let pooler = if model.pooler.is_some() {
            "a pooler"
        } else {
            "no pooler"
        };
        let head = model.head.as_ref().map(|head| head.task.to_string());
        let head = head.unwrap_or_else(|| "no head".to_string());
        writeln!(out, "model      {reads}, {pooler}, {head}")?;
    }
    let counts = &inspection.parameters;
    writeln!(out, "\nparameters {:>13}", counts.total)?;
    let in_blocks = (counts.total - counts.outside).max(1) as f64;
    for (role, n) in [
        ("feed-forward", counts.feed_forward),
        ("  experts", counts.experts),
        ("  router", counts.router),
        ("attention", counts.attention),
        ("cross-attention", counts.cross_attention),
        ("norms", counts.norms),
        ("layer inputs", counts.layer_inputs),
        ("streams", counts.streams),
        ("layer scales", counts.layer_scales),
    ] {
        let is_rare = !["feed-forward", "attention", "norms"].contains(&role);
        if n == 0 && is_rare {
            continue;
        }
        let share = 100.0 * n as f64 / in_blocks;
        writeln!(out, "  {role:<15} {n:>10}  {share:5.1} % of the blocks")?;
    }
    writeln!(out, "  {:<15} {:>10}", "outside blocks", counts.outside)?;
    if counts.attention > 0 {
        let ratio = counts.feed_forward as f64 / counts.attention as f64;
        writeln!(out, "  feed-forward / attention = {ratio:.2}")?;
    }
    write!(out, "\n{}", inspection.tensors)?;
    Ok(text)
}

/// Returns a page with the use of every tensor.
fn page(inspection: &Inspection, checkpoint: &Checkpoint) -> Result<Page> {
    let mut page = Page::new(&inspection.path.display().to_string());
    page.printed(&text(inspection)?);
    let report = &inspection.tensors;
    page.heading("Tensors");
    let row = |name: &str, of: &str, role: String| {
        let info = checkpoint.files().info(name);
        let (shape, dtype) = info.map_or_else(Default::default, |info| {
            (format!("{:?}", info.shape), format!("{:?}", info.dtype))
        });
        [name.to_string(), shape, dtype, of.to_string(), role]
    };
    let used = |tensors: &[UsedTensor], of: &str| -> Vec<_> {
        let rows = tensors
            .iter()
            .map(|one| row(&one.name, of, one.roles.join(", ")));
        rows.collect()
    };
    let missing = { report.missing.iter() }.map(|role| {
        let absent = |text: &str| text.to_string();
        [
            absent("–"),
            absent(""),
            absent(""),
            absent("missing"),
            role.clone(),
        ]
    });
    let ends: BTreeSet<&str> = report.ends.iter().map(|one| &*one.name).collect();
    let others = [
        ("unused", &report.unused),
        ("unread", &report.unread),
        ("outside the blocks", &report.outside),
        ("ignored", &report.ignored),
    ];
    let others = others.into_iter().flat_map(|(of, names)| {
        let names = names.iter().filter(|name| !ends.contains(&***name));
        names
            .map(|name| row(name, of, String::new()))
            .collect::<Vec<_>>()
    });
    let blocks = used(&report.used, "blocks");
    let ends = used(&report.ends, "embeddings, pooler or head");
    let rows = missing.chain(blocks).chain(ends).chain(others);
    page.table(["name", "shape", "dtype", "used by", "role"], rows);
    Ok(page)
}
