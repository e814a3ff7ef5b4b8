//! Fixes the thread count from the start of the process.

use std::env;
use std::process::{Command, exit};

use anyhow::{Context, Result, bail};
use candle_blocks::{candle_core::utils::get_num_threads, ops::n_threads};

/// The environment variable that candle and rayon read; rayon reads it once.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// The largest number that is accepted.
const MOST: usize = 4096;

/// Makes exactly `requested` threads compute, and returns their number.
///
/// The variable must be set before the first thread starts, and a process cannot safely set its own variables. So the
/// process starts itself again with the variable set, and exits with the same status.
pub fn hold(requested: Option<usize>) -> Result<usize> {
    let Some(requested) = requested else {
        return Ok(n_threads());
    };
    if requested > MOST {
        bail!("--threads is {requested}; give at most {MOST}");
    }
    if env::var(VARIABLE).is_ok_and(|value| value == requested.to_string()) {
        if n_threads() < requested {
            bail!(
                "--threads is {requested}; at most {} compute on this machine",
                n_threads()
            );
        }
        let found = (get_num_threads(), rayon::current_num_threads());
        if found != (requested, requested) {
            bail!(
                "--threads {requested}: candle computes with {} and rayon with {} threads",
                found.0,
                found.1
            );
        }
        return Ok(requested);
    }
    let program = env::current_exe().context("--threads: the program's own file was not found")?;
    let status = Command::new(&program)
        .args(env::args_os().skip(1))
        .env(VARIABLE, requested.to_string())
        .status()
        .with_context(|| format!("--threads: cannot start {} again", program.display()))?;
    exit(status.code().unwrap_or(2))
}
