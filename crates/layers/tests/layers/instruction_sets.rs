//! The environment variable that forces an instruction set, tested in a separate process for each.

use std::process::{Command, Output};

use candle_blocks::ops;
use candle_core::{Device, Tensor};

use crate::cpu_only::cpu_only;
use crate::levels::LEVELS;

/// Runs the ignored test below with the variable set.
fn with_level(name: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "instruction_sets::a_product_in_a_process_of_its_own",
            "--ignored",
            "--nocapture",
        ])
        .env("CANDLE_BLOCKS_ISA", name)
        .output()
        .unwrap()
}

#[test]
#[ignore = "run by the others, as a process of its own"]
fn a_product_in_a_process_of_its_own() {
    let x = Tensor::arange(0f32, 600., &Device::Cpu).unwrap();
    let weight = x.affine(0.01, -3.).unwrap().reshape((3, 200)).unwrap();
    let y = ops::linear(&x.reshape((3, 200)).unwrap(), &weight, None);
    match y {
        Ok(y) => println!("by {}: {:?}", ops::isa().unwrap(), y.sum_all().unwrap()),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no processes")]
fn every_level_can_be_forced_or_says_that_the_cpu_lacks_it() {
    cpu_only("instruction sets of a CPU");
    for name in LEVELS {
        let output = String::from_utf8(with_level(name).stdout).unwrap();
        let forced = output.contains(&format!("by {name}:"));
        let lacking = output.contains("refused") && output.contains("this CPU lacks");
        assert!(forced || lacking && name != "portable", "{output}");
        if lacking {
            println!("left out: {name}, which this CPU lacks");
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no processes")]
fn an_unknown_level_is_refused_with_the_known_ones() {
    cpu_only("instruction sets of a CPU");
    for name in ["", "sse9", "AVX2"] {
        let output = String::from_utf8(with_level(name).stdout).unwrap();
        for part in [
            "refused",
            &format!("CANDLE_BLOCKS_ISA={name}:"),
            "portable, neon, neon_dotprod, neon_bf16, avx2, avx512, avx512_vnni, avx512_bf16",
        ] {
            assert!(output.contains(part), "{output}");
        }
    }
}
