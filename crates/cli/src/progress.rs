//! Progress on standard error, if that is a terminal: a bar, or the time that has passed, from two seconds on.

use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use indicatif::{
    FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
    WeakProgressBar,
};

/// The time before progress is shown.
const DELAY: Duration = Duration::from_secs(2);
/// The most time left that is shown.
const MOST_SECONDS: f64 = 1e6;
/// The time between two changes on the screen.
const TICK: Duration = Duration::from_millis(200);

/// The latest bar, beside which other output is printed.
static LATEST: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Work in progress. The bar vanishes when this is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins to show work on `n` things, which `noun` names.
    pub fn of(n: usize, noun: &str) -> Result<Self> {
        let template = format!("[{{wide_bar}}] {{pos}}/{{len}} {noun}, {{rate}}, {{left}} left");
        Self::with_template(n as u64, &template)
    }

    /// Begins to show work with a bar of this length, in indicatif's language for templates; `rate` and `left` are means since
    /// the beginning.
    pub fn with_template(length: u64, template: &str) -> Result<Self> {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template)?
            .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                let _ = write!(out, "{:.1}/s", rate(state));
            })
            .with_key("left", |state: &ProgressState, out: &mut dyn Write| {
                let n_left = state.len().unwrap_or(0).saturating_sub(state.pos());
                let seconds = (n_left as f64 / rate(state)).min(MOST_SECONDS);
                let _ = write!(
                    out,
                    "{}",
                    FormattedDuration(Duration::from_secs_f64(seconds))
                );
            });
        bar.set_style(style);
        let weak = bar.downgrade();
        *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = Some(weak.clone());
        if stderr().is_terminal() {
            let show = move || {
                thread::sleep(DELAY);
                if let Some(bar) = weak.upgrade().filter(|bar| !bar.is_finished()) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TICK);
                }
            };
            // Without the thread there is no bar, and the work goes on.
            let _ = thread::Builder::new().stack_size(256 << 10).spawn(show);
        }
        Ok(Self(bar))
    }

    /// Does work of unknown length, such as loading a model.
    pub fn during<T, E: Into<anyhow::Error>>(
        what: &str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T> {
        let progress = Self::with_template(0, "{spinner} {msg}, {elapsed}")?;
        progress.0.set_message(what.to_string());
        work().map_err(Into::into)
    }

    /// Loads a model.
    pub fn loading<T>(load: impl FnOnce() -> candle_blocks::Result<T>) -> Result<T> {
        Self::during("loading the model", load)
    }

    /// Shows how many things are done.
    pub fn set(&self, n_done: usize) {
        self.0.set_position(n_done as u64);
    }

    /// Shows that `n` more things are done, the last of which `message` names.
    pub fn add(&self, n: usize, message: String) {
        self.0.inc(n as u64);
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns how many things are done in a second.
fn rate(state: &ProgressState) -> f64 {
    // Something is always done in the end.
    state.pos().max(1) as f64 / state.elapsed().as_secs_f64().max(1e-3)
}

/// Prints something while no bar is on the screen.
pub fn beside<T>(print: impl FnOnce() -> T) -> T {
    let latest = || {
        let latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().and_then(WeakProgressBar::upgrade)
    };
    match latest() {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
