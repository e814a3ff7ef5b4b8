//! Ranks as processes in an MPI job: `cargo test --features mpi --test parallel`, if `mpirun` is installed.

use std::{
    path::Path,
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant},
};

use candle_blocks::{
    Checkpoint, Precision, Result, Weights,
    candle_core::{DType, Device, Tensor, Var},
    checkpoint::TensorParallel,
    ops::parallel::{Communicator, Mpi},
};

use crate::{example, numbers::bits, ranks::of_ranks, weights::weights};

/// Returns the bits of a rank's outputs, plain and packed, and of its gradients. On rank 0, also returns the file that the
/// ranks saved.
fn bits_of_all(rank: Arc<dyn Communicator>, saved: &Path) -> Result<(Vec<Vec<u64>>, Vec<u8>)> {
    let is_first = rank.rank() == 0;
    let checkpoint = Checkpoint::open(weights("tiny-gpt2"))?;
    let d_model = checkpoint.config().blocks[0].d_model();
    let x = Tensor::arange(0f32, (5 * d_model) as f32, &Device::Cpu)?.sin()?;
    let x = Var::from_tensor(&x.reshape((1, 5, d_model))?)?;
    let loader = checkpoint.load(Weights::Packed(Precision::Int8));
    let packed = TensorParallel::new(loader, rank.clone())?.stack()?;
    let mut all = vec![bits(&packed.forward(&x.as_detached_tensor())?)];
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu)?;
    let parallel = TensorParallel::new(loader, rank)?;
    let y = parallel.stack()?.forward(&x)?;
    all.push(bits(&y));
    let gradients = y.sqr()?.sum_all()?.backward()?;
    all.push(bits(gradients.get(&x).unwrap()));
    for (_, variable) in &parallel.parameters() {
        let gradient = gradients.get(variable).unwrap();
        all.push(bits(gradient));
        variable.set(gradient)?;
    }
    parallel.save(saved)?;
    let file = match is_first {
        true => std::fs::read(saved.join("model.safetensors")).unwrap(),
        false => Vec::new(),
    };
    Ok((all, file))
}

#[test]
#[ignore = "one of the processes that the other tests start"]
fn rank() {
    let folder = tempfile::tempdir().unwrap();
    let mpi: Arc<dyn Communicator> = Arc::new(Mpi::new().unwrap());
    assert_eq!(mpi.size(), 2);
    let mut all = [0.0; 4];
    let own = [mpi.rank() as f32, 7.0];
    mpi.all_gather(&own, &mut all).unwrap();
    assert_eq!(all, [0.0, 7.0, 1.0, 7.0]);
    let saved = |of: &str, rank: usize| folder.path().join(format!("{of}-{rank}"));
    let found = bits_of_all(mpi.clone(), &saved("process", mpi.rank())).unwrap();
    // The sum of two is the same in either order.
    let expected = of_ranks(2, |rank| {
        let saved = saved("thread", rank.rank());
        bits_of_all(rank, &saved).unwrap()
    });
    assert!(found == expected[mpi.rank()]);
}

#[test]
#[ignore = "one of the processes that the other tests start"]
fn rank_of_the_example() {
    let mpi: Arc<dyn Communicator> = Arc::new(Mpi::new().unwrap());
    println!("{}", example::run(&mpi, weights("tiny-gpt2")).unwrap());
}

#[test]
#[ignore = "one of the processes that the other tests start"]
fn rank_of_which_one_gives_up() {
    let mpi = Mpi::new().unwrap();
    if mpi.rank() == 1 {
        std::process::exit(1);
    }
    mpi.all_reduce_sum(&mut [1.0]).unwrap();
}

#[test]
#[ignore = "one of the processes that the other tests start"]
fn rank_of_which_one_panics() {
    let ranks: Arc<dyn Communicator> = Arc::new(Mpi::new().unwrap());
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let loader = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu));
    let parallel = TensorParallel::new(loader, ranks.clone()).unwrap();
    let stack = parallel.stack().unwrap();
    let d_model = checkpoint.config().blocks[0].d_model();
    let x = Tensor::ones((1, 4, d_model), DType::F32, &Device::Cpu).unwrap();
    for batch in 0..3 {
        assert!(ranks.rank() == 0 || batch < 1, "a bad batch");
        stack.forward(&x).unwrap();
    }
}

/// Runs a test above in two processes.
fn mpirun(test: &str) -> Output {
    // Jobs that start at once would make the same folder in the usual place.
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    command.env("TMPDIR", folder.path());
    command.args(["-n", "2", "--oversubscribe", "--allow-run-as-root"]);
    command.args(["--timeout", "120"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.output().unwrap()
}

/// Returns their output; both must succeed.
fn said_by_two(test: &str) -> String {
    let output = mpirun(test);
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let text = text.concat();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("1 passed").count(), 2, "{text}");
    text
}

#[test]
fn two_processes_have_the_bits_of_two_threads() {
    said_by_two("mpi::rank");
}

#[test]
fn the_example_runs_on_two_processes() {
    let text = said_by_two("mpi::rank_of_the_example");
    let square = |rank: usize| {
        let (_, line) = text.split_once(&format!("rank {rank} of 2: ")).unwrap();
        let (_, square) = line.split_once("mean square ").unwrap();
        square.split_whitespace().next().unwrap().to_string()
    };
    assert_eq!(square(0), square(1), "{text}");
}

#[test]
fn a_process_that_gives_up_or_panics_ends_the_others() {
    for (test, said) in [
        ("mpi::rank_of_which_one_gives_up", ""),
        ("mpi::rank_of_which_one_panics", "a bad batch"),
    ] {
        let start = Instant::now();
        let output = mpirun(test);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(said), "{text}");
        assert!(start.elapsed() < Duration::from_secs(60), "they waited");
    }
}
