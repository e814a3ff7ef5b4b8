//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The arguments; without any, the program samples from the committed model.
#[derive(Debug)]
pub struct Args {
    pub text: Option<PathBuf>,
    pub resume: Option<PathBuf>,
    pub out: Option<PathBuf>,
    pub steps: Option<usize>,
    pub prompt: String,
}

impl Args {
    /// True to train a model first.
    pub fn is_training(&self) -> bool {
        let paths = [&self.text, &self.resume, &self.out];
        paths.into_iter().any(Option::is_some) || self.steps.is_some()
    }

    /// Parses the arguments, without the name of the program.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            text: None,
            resume: None,
            out: None,
            steps: None,
            prompt: "Anne had ".to_string(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--text" => parsed.text = Some(value()?.into()),
                "--resume" => parsed.resume = Some(value()?.into()),
                "--out" => parsed.out = Some(value()?.into()),
                "--steps" => parsed.steps = Some(number(&value()?)?),
                "--sample" => parsed.prompt = value()?,
                _ => bail!(
                    "unknown argument {arg}; known: --text FILE, --out DIR, --steps N, --resume DIR, --sample PROMPT"
                ),
            }
        }
        Ok(parsed)
    }
}

fn number(steps: &str) -> Result<usize> {
    let number = steps.parse().ok();
    number.with_context(|| format!("--steps {steps}: expected an integer, as in --steps 2000"))
}
