//! Runs the blocks of a checkpoint divided among processes: `tensor_parallel [DIR]`.
//!
//! ```sh
//! cargo build --release --features mpi --example tensor_parallel
//! mpirun -n 2 target/release/examples/tensor_parallel weights/tiny-gpt2
//! ```
//!
//! Every process has half of each block, and the whole output. `docs/parallel.md` says more.

use std::{path::Path, sync::Arc};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::TensorParallel;
use candle_blocks::ops::parallel::{Communicator, Mpi};
use candle_blocks::{Checkpoint, Precision, Result, Weights};

#[allow(dead_code)] // a test is the other caller of `run`
fn main() -> Result<()> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/tiny-gpt2");
    let directory = std::env::args().nth(1).unwrap_or(committed.to_string());
    let ranks: Arc<dyn Communicator> = Arc::new(Mpi::new()?);
    match run(&ranks, directory) {
        Ok(said) => println!("{said}"),
        Err(error) => {
            eprintln!("rank {}: {error}", ranks.rank());
            std::process::exit(1); // at once: the other ranks wait
        }
    }
    Ok(())
}

/// This process's output.
pub fn run(ranks: &Arc<dyn Communicator>, directory: impl AsRef<Path>) -> Result<String> {
    let checkpoint = Checkpoint::open(directory)?;
    let loader = checkpoint.load(Weights::Packed(Precision::F32));
    let stack = TensorParallel::new(loader, ranks.clone())?.stack()?;

    let d_model = checkpoint.config().blocks[0].d_model();
    let hidden_states = Tensor::ones((1, 4, d_model), DType::F32, &Device::Cpu)?;
    let output = stack.forward(&hidden_states)?;

    let (rank, size, bytes) = (ranks.rank(), ranks.size(), stack.bytes());
    let square = output.sqr()?.mean_all()?.to_scalar::<f32>()?;
    Ok(format!(
        "rank {rank} of {size}: {bytes} bytes of weights, output with mean square {square:.6}"
    ))
}
