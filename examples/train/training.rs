//! The training: steps, evaluations, and the file that it resumes from.

use std::{collections::BTreeMap, path::Path, str::FromStr, time::Instant};

use crate::{model::Gpt, text::Text};
use anyhow::{Context, Error, Result, ensure};
use candle_blocks::{
    ForwardContext,
    train::{AdamW, AdamWConfig, Decay, ParameterGroup, Schedule, loss_value},
};

/// The training settings; `train.py` has the same values.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Steps in all; the learning rate falls to 0 at the last.
    pub steps: usize,
    /// Rows of a batch.
    pub rows: usize,
    pub learning_rate: f64,
    /// Steps until it is reached.
    pub warm_up: usize,
    pub weight_decay: f64,
    /// The gradients' norm is at most this.
    pub clip: f64,
    pub evaluate_every: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            steps: 2_000,
            rows: 12,
            learning_rate: 2e-3,
            warm_up: 100,
            weight_decay: 0.1,
            clip: 1.0,
            evaluate_every: 50,
        }
    }
}

/// Losses after some number of steps, in nats per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    pub step: usize,
    /// The mean over the steps since the last evaluation.
    pub trained: f64,
    /// On the held-out part.
    pub held_out: f64,
}

/// The header of [`Losses`] as lines of CSV.
pub const COLUMNS: &str = "step,trained,held_out";

impl std::fmt::Display for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{}", self.step, self.trained, self.held_out)
    }
}

impl FromStr for Losses {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut cells = line.split(',');
        let mut next = || {
            cells
                .next()
                .with_context(|| format!("too few values: {line}"))
        };
        Ok(Self {
            step: next()?.parse()?,
            trained: next()?.parse()?,
            held_out: next()?.parse()?,
        })
    }
}

/// A training that can be left and taken up again between any two steps.
pub struct Training {
    pub model: Gpt,
    text: Text,
    settings: Settings,
    schedule: Schedule,
    optimizer: AdamW,
    /// Every evaluation so far.
    pub losses: Vec<Losses>,
    /// Losses of the steps since the last one.
    since: Vec<f64>,
}

impl Training {
    /// Starts to train a model on a text.
    pub fn new(model: Gpt, text: Text, settings: Settings) -> Result<Self> {
        let groups = ParameterGroup::decaying_matrices(model.parameters(), settings.weight_decay);
        let config = AdamWConfig {
            learning_rate: settings.learning_rate,
            beta2: 0.99, // a thousandth of a short training is no mean
            ..Default::default()
        };
        Ok(Self {
            optimizer: AdamW::new(groups, config)?,
            schedule: Schedule::new(Decay::Cosine, settings.warm_up, settings.steps),
            model,
            text,
            settings,
            losses: Vec::new(),
            since: Vec::new(),
        })
    }

    /// How many steps were made.
    pub fn step(&self) -> usize {
        self.optimizer.n_updates()
    }

    /// Trains until `until` steps are made in all, and prints every evaluation.
    pub fn run(&mut self, until: usize) -> Result<()> {
        let until = until.min(self.settings.steps);
        let (start, first) = (Instant::now(), self.step());
        while self.step() < until {
            let loss = self.one_step().with_context(|| {
                let step = self.step();
                format!("step {step}; the model is as it was after the one before")
            })?;
            self.since.push(loss);
            let step = self.step();
            let is_due = step.is_multiple_of(self.settings.evaluate_every);
            if is_due || step == self.settings.steps {
                let held_out = self.evaluate()?;
                let trained = self.since.iter().sum::<f64>() / self.since.len() as f64;
                self.since.clear();
                self.losses.push(Losses {
                    step,
                    trained,
                    held_out,
                });
                let tokens = (step - first) as f64 * self.n_tokens() as f64;
                let speed = tokens / start.elapsed().as_secs_f64();
                println!(
                    "step {step:>5} of {}: loss {trained:.4}, held out {held_out:.4}, {speed:.0} tokens/s",
                    self.settings.steps
                );
            }
        }
        Ok(())
    }

    fn n_tokens(&self) -> usize {
        self.settings.rows * self.model.context()
    }

    fn one_step(&mut self) -> Result<f64> {
        let batch = self.text.batch(self.step(), self.settings.rows)?;
        let loss = self.model.loss(&batch, &ForwardContext::training())?;
        let value = loss_value(&loss)?; // NaN ends here
        let mut gradients = self.optimizer.backward(&loss)?;
        gradients.clip_norm(self.settings.clip)?;
        let factor = self.schedule.factor(self.step());
        self.optimizer.update(&gradients, factor)?;
        Ok(value)
    }

    /// The loss on the held-out part of the text.
    pub fn evaluate(&self) -> Result<f64> {
        let batch = self.text.evaluation()?;
        let loss = self.model.loss(&batch, &ForwardContext::evaluation())?;
        Ok(loss_value(&loss)?)
    }

    /// Returns the state, besides parameters and moments, that the next steps need.
    fn notes(&self) -> BTreeMap<String, String> {
        let lines = |lines: Vec<String>| lines.join("\n");
        let text = |(key, value): (&str, String)| (key.to_string(), value);
        let notes = [
            ("text", self.text.digest()),
            ("settings", format!("{:?}", self.settings)),
            (
                "losses",
                lines(self.losses.iter().map(Losses::to_string).collect()),
            ),
            (
                "since",
                lines(self.since.iter().map(f64::to_string).collect()),
            ),
        ];
        notes.into_iter().map(text).collect()
    }

    /// Writes a file for [`Self::restore`].
    pub fn save(&self, path: &Path) -> Result<()> {
        Ok(self.optimizer.save(path, &self.notes())?)
    }

    /// Goes on where the training that wrote `path` stood, with the same bits as if it had never stopped.
    pub fn restore(&mut self, path: &Path) -> Result<()> {
        ensure!(
            path.exists(),
            "{} does not exist: no state was saved before the interruption; start again with --text and --out",
            path.display()
        );
        let mut found = self.optimizer.restore(path)?;
        for (key, expected) in self.notes() {
            let value = found
                .remove(&key)
                .with_context(|| format!("{}: no {key} in it", path.display()))?;
            match key.as_str() {
                "losses" => self.losses = lines(&value)?,
                "since" => self.since = lines(&value)?,
                // A digest says nothing to a reader.
                "text" => ensure!(
                    value == expected,
                    "{}: its training used another text than this one, or another version of it; \
                     give that one with --text FILE",
                    path.display()
                ),
                _ => ensure!(
                    value == expected,
                    "{}: its training had {key} {value}, but this one has {expected}; resume it with the same",
                    path.display()
                ),
            }
        }
        Ok(())
    }
}

fn lines<T: FromStr<Err: Into<Error>>>(text: &str) -> Result<Vec<T>> {
    let parsed = text.lines().map(|line| line.parse().map_err(Into::into));
    parsed.collect()
}
