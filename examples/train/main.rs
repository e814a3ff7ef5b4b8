//! Trains a small GPT from scratch on a text, and samples from it.
//!
//! ```sh
//! cargo run --release --example train                                      # samples from the committed model
//! cargo run --release --example train -- --sample "Anne had"               # continues a text
//! cargo run --release --example train -- --text FILE --out DIR [--steps N] # trains
//! cargo run --release --example train -- --resume DIR                      # continues an interrupted training
//! ```
//!
//! `DIR` then contains the model for transformers in `model`, the losses as `losses.csv`, and the state to resume from.
//! `train.py` is the same training in PyTorch.

mod arguments;
mod model;
mod random;
mod sample;
mod text;
mod training;

use std::{
    fs,
    io::{Write, stdout},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use arguments::Args;
use model::{Gpt, Size};
use sample::{Sampling, sample};
use text::Text;
use training::{COLUMNS, Settings, Training};

const SEED: u64 = 42;
const SIZE: Size = Size {
    d_model: 128,
    n_blocks: 4,
    n_heads: 4,
    context: 128,
};
/// Number of steps between two saved states.
const SAVE_EVERY: usize = 200;
/// Number of bytes to sample.
const N_SAMPLED: usize = 600;

fn main() -> Result<()> {
    let args = Args::parse(std::env::args().skip(1))?;
    let model = match args.is_training() {
        false => Gpt::open(&committed()?)?,
        true => train(&args)?,
    };
    println!(
        "\n{} parameters, {} bytes of context\n",
        model.n_parameters(),
        model.context()
    );
    let sampling = Sampling {
        temperature: 0.5,
        seed: SEED,
    };
    print!("{}", args.prompt);
    sample(
        &model,
        args.prompt.as_bytes(),
        N_SAMPLED,
        sampling,
        |byte| {
            let mut out = stdout().lock();
            // A terminal that cannot be written to is no reason to stop.
            let _ = out.write_all(&[byte]).and_then(|()| out.flush());
        },
    )?;
    println!();
    Ok(())
}

/// Trains, or continues training, until the last step.
fn train(args: &Args) -> Result<Gpt> {
    let (out, run) = match &args.resume {
        Some(out) => {
            ensure!(
                args.out.is_none() && args.steps.is_none(),
                "--resume continues with the earlier --steps and --out: leave both out"
            );
            (out.clone(), Run::read(out)?)
        }
        None => {
            let text = args.text.clone();
            let text = text.context("--out and --steps belong to a training: add --text FILE")?;
            let steps = args.steps.unwrap_or(Settings::default().steps);
            let out = args.out.clone().unwrap_or("trained".into());
            (out, Run { text, steps })
        }
    };
    let settings = Settings {
        steps: run.steps,
        ..Settings::default()
    };
    let text = Text::open(args.text.as_ref().unwrap_or(&run.text), SIZE.context, SEED)?;
    let mut training = Training::new(Gpt::fresh(SIZE, SEED)?, text, settings)?;
    let state = out.join("state.safetensors");
    if args.resume.is_some() {
        training.restore(&state)?;
        println!("goes on after step {}", training.step());
    } else {
        ensure!(
            !state.exists(),
            "{} contains a training already: --resume {} continues it, another --out starts a new one",
            state.display(),
            out.display()
        );
        fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        run.write(&out)?;
    }

    while training.step() < settings.steps {
        training.run(training.step() + SAVE_EVERY)?;
        training.save(&state)?;
    }
    finish(&training, &out)?;
    Ok(training.model)
}

/// The files of a training.
fn finish(training: &Training, out: &Path) -> Result<()> {
    training.model.save(&out.join("model"))?;
    let lines = training.losses.iter().map(|losses| losses.to_string());
    let lines: Vec<String> = [COLUMNS.to_string()].into_iter().chain(lines).collect();
    fs::write(out.join("losses.csv"), lines.join("\n") + "\n")?;
    println!("{}: model and losses", out.display());
    Ok(())
}

/// Data for the next process to continue, besides the saved state.
#[derive(Serialize, Deserialize)]
struct Run {
    text: PathBuf,
    steps: usize,
}

impl Run {
    fn path(out: &Path) -> PathBuf {
        out.join("run.json")
    }

    fn read(out: &Path) -> Result<Self> {
        let path = Self::path(out);
        let json = fs::read(&path).with_context(|| {
            let path = path.display();
            format!("cannot read {path}; --resume names the --out of a training")
        })?;
        serde_json::from_slice(&json).with_context(|| {
            let path = path.display();
            format!("{path} does not belong to a training; start a new one with --text and another --out")
        })
    }

    fn write(&self, out: &Path) -> Result<()> {
        let path = Self::path(out);
        let text = fs::canonicalize(&self.text).unwrap_or(self.text.clone()); // not there: said when it is opened
        let steps = self.steps;
        let json = serde_json::to_string(&Self { text, steps })?;
        fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The model in the repository.
fn committed() -> Result<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("weights/tiny-gpt-text");
    ensure!(
        committed.join("model.safetensors").exists(),
        "{} contains no model: the published package leaves it out; run this in a clone of the \
         repository, or train one with --text FILE",
        committed.display()
    );
    Ok(committed)
}
