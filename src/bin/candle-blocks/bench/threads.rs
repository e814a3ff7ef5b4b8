//! The number of threads, held from the start of the process.

use std::env;
use std::process::{Command, exit};

use anyhow::{Context, Result, bail};
use candle_blocks::{candle_core::utils::get_num_threads, ops::n_threads};

/// What candle and rayon both read, and rayon only once.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// More than any machine has.
const MOST: usize = 4096;

/// Sees to it that just `asked` threads compute; returns their number.
///
/// The variable has to be there before the first thread is, and a process cannot safely set its own.
/// So this one starts itself once more with the variable set, and ends as that one does.
pub fn hold(asked: Option<usize>) -> Result<usize> {
    let Some(asked) = asked else {
        return Ok(n_threads());
    };
    if asked > MOST {
        bail!("--threads is {asked}; give at most {MOST}");
    }
    if env::var(VARIABLE).is_ok_and(|value| value == asked.to_string()) {
        if n_threads() < asked {
            bail!(
                "--threads is {asked}; at most {} compute on this machine",
                n_threads()
            );
        }
        let found = (get_num_threads(), rayon::current_num_threads());
        if found != (asked, asked) {
            bail!(
                "--threads {asked}: candle computes with {} and rayon with {} threads",
                found.0,
                found.1
            );
        }
        return Ok(asked);
    }
    let program =
        env::current_exe().context("--threads: this program's own file is not to be found")?;
    let status = Command::new(&program)
        .args(env::args_os().skip(1))
        .env(VARIABLE, asked.to_string())
        .status()
        .with_context(|| format!("--threads: {} does not start again", program.display()))?;
    exit(status.code().unwrap_or(2))
}
