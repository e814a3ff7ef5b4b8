//! Blocks divided among MPI processes: memory, time per token and per batch, and the time for a sum over all ranks.
//!
//! ```sh
//! cargo build --release --features mpi --bench parallel   # target/release/deps/parallel-…
//! parallel write DIR                                      # new Llama blocks with half a billion parameters
//! RAYON_NUM_THREADS=2 parallel run DIR bf16
//! RAYON_NUM_THREADS=1 mpirun -n 2 parallel run DIR bf16
//! mpirun -n 2 parallel sums
//! ```

use std::{env, fs, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use candle_blocks::{
    Architecture, Checkpoint, ForwardContext, Precision, Stack, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::TensorParallel,
    ops::parallel::{Communicator, Mpi},
    train::Fresh,
};
use serde_json::json;

/// The positions in a batch, and the positions before the timed tokens.
const BATCH: usize = 256;
const PROMPT: usize = 32;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", directory] => write(Path::new(directory)),
        ["run", directory, precision] => run(directory, precision),
        ["sums"] => sums(&Mpi::new()?),
        _ => bail!("expected `write DIR`, `run DIR f32|bf16|int8` or `sums`"),
    }
}

/// Qwen2.5-0.5B's sizes, without biases and embeddings.
fn write(directory: &Path) -> Result<()> {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 32, "tie_word_embeddings": false,
        "initializer_range": 0.02,
    });
    let given = tempfile::tempdir()?;
    fs::write(given.path().join("config.json"), config.to_string())?;
    let architecture = Architecture::open(given.path())?;
    let fresh = Fresh::new(
        architecture.initialization.clone(),
        1,
        DType::BF16,
        &Device::Cpu,
    );
    fresh.stack(&architecture.config)?;
    Ok(architecture.save(directory, fresh.parameters(), &[])?)
}

fn run(directory: &str, precision: &str) -> Result<()> {
    let precision = match precision {
        "f32" => Precision::F32,
        "bf16" => Precision::Bf16,
        "int8" => Precision::Int8,
        other => bail!("{other}: expected f32, bf16 or int8"),
    };
    let mpi: Arc<dyn Communicator> = Arc::new(Mpi::new()?);
    let checkpoint = Checkpoint::open(directory)?;
    let d_model = checkpoint.config().blocks[0].d_model();
    let start = Instant::now();
    let loader = checkpoint.load(Weights::Packed(precision));
    let stack = TensorParallel::new(loader, mpi.clone())?.stack()?;
    let load = start.elapsed().as_secs_f64();
    let input = |seq: usize| -> Result<Tensor> {
        let rows = Tensor::arange(0f32, (seq * d_model) as f32, &Device::Cpu)?;
        Ok(rows.sin()?.reshape((1, seq, d_model))?)
    };
    let batch = times(7, || {
        stack.forward_with(&input(BATCH)?, &ForwardContext::evaluation())?;
        Ok(())
    })?;
    let token = per_token(&stack, &input)?;
    let peak = peak_bytes()? / 1e6;
    println!(
        "{}",
        json!({
            "rank": mpi.rank(), "ranks": mpi.size(), "load_s": load, "peak_mb": peak,
            "packed_mb": stack.bytes() as f64 / 1e6, "batch_ms": batch, "token_ms": token,
        })
    );
    Ok(())
}

fn per_token(stack: &Stack, input: &impl Fn(usize) -> Result<Tensor>) -> Result<[f64; 2]> {
    let context = ForwardContext::evaluation();
    let mut cache = stack.new_cache();
    stack.forward_cached(&input(PROMPT)?, &context, &mut cache)?;
    let token = input(1)?;
    times(31, || {
        stack.forward_cached(&token, &context, &mut cache)?;
        Ok(())
    })
}

/// Returns the minimum and the median time over `n` calls, in milliseconds.
fn times(n: usize, mut call: impl FnMut() -> Result<()>) -> Result<[f64; 2]> {
    call()?;
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok([times[0], times[n / 2]].map(|seconds| 1e3 * seconds))
}

/// Returns this process's peak memory so far.
fn peak_bytes() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(1024.0
        * kib
            .context("no VmHWM in /proc/self/status")?
            .parse::<f64>()?)
}

/// Measures the time for sums over increasing value counts.
fn sums(mpi: &Mpi) -> Result<()> {
    for n in [1, 896, 4096, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22] {
        let mut values = vec![1f32; n];
        let [least, median] = times(101.min(1 + (1 << 26) / n) | 1, || {
            Ok(mpi.all_reduce_sum(&mut values)?)
        })?;
        if mpi.rank() == 0 {
            let (bytes, rate) = (4 * n, 4e-6 * n as f64 / median);
            println!(
                "{bytes:9} bytes: {least:9.4} ms at least, {median:9.4} in the median, {rate:6.2} GB/s"
            );
        }
    }
    Ok(())
}
