//! Downloads a checkpoint from the Hub, with a progress bar for every file.

use std::{path::PathBuf, sync::Mutex};

use anyhow::Result;
use candle_blocks::checkpoint::hub::{Hub, HubEvent};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{self, Escaped};

/// Downloads a repository and returns the directory of its snapshot.
pub fn download(repo: &str, revision: &str) -> Result<PathBuf> {
    Ok(hub(repo, revision)?.download()?)
}

/// Downloads one more file of a repository into its snapshot.
pub fn file(repo: &str, revision: &str, name: &str) -> Result<()> {
    hub(repo, revision)?.file(name)?;
    Ok(())
}

/// Returns a repository that reports its progress.
fn hub(repo: &str, revision: &str) -> Result<Hub> {
    let style = ProgressStyle::with_template(
        "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    )?;
    let current: Mutex<Option<(String, ProgressBar)>> = Mutex::new(None);
    Ok(Hub::new(repo)
        .revision(revision)
        .progress(move |event| match event {
            HubEvent::Progress {
                file, bytes, total, ..
            } => {
                let Ok(mut current) = current.lock() else {
                    return;
                };
                if current.as_ref().is_none_or(|(shown, _)| shown != file) {
                    let bar = ProgressBar::new(*total).with_style(style.clone());
                    *current = Some((
                        file.to_string(),
                        bar.with_message(Escaped(file).to_string()),
                    ));
                }
                if let Some((_, bar)) = current.as_ref() {
                    bar.set_position(*bytes);
                    if bytes == total {
                        bar.finish();
                    }
                }
            }
            HubEvent::CacheUsed { reason, .. } => {
                output::warn(format_args!(
                    "note: the Hub was not reached ({reason}); using the cached snapshot"
                ));
            }
            _ => {}
        }))
}
