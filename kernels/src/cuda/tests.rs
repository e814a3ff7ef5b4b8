//! The kernels' source, compiled for the CPU, against the CPU's kernels and f64.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use bytemuck::{Pod, cast_slice, pod_collect_to_vec};
use half::{bf16, f16};

use crate::reference::{RoundingErrors, alone, assert_same, assert_share};
use crate::rows::adamw::{Update, update};
use crate::vectors::Stored;

/// The program that computes as a GPU would; `None` where there is no compiler of C++.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda"));
            // One file for each version of the sources, whoever compiles it.
            let mut version = DefaultHasher::new();
            for source in ["kernels.cu", "on_cpu.cpp"] {
                std::fs::read(folder.join(source))
                    .unwrap()
                    .hash(&mut version);
            }
            let name = format!("candle-blocks-cuda-{:x}", version.finish());
            let program = std::env::temp_dir().join(name);
            let new = program.with_extension(std::process::id().to_string());
            // As NVRTC is told: every operation rounds.
            let options = ["-std=c++17", "-O1", "-ffp-contract=off", "-o"];
            let mut compiler = Command::new("c++");
            compiler.args(options).arg(&new);
            match compiler.arg(folder.join("on_cpu.cpp")).output() {
                Err(error) => {
                    println!("LEFT OUT: CUDA's kernels on the CPU, which need c++: {error}");
                    None
                }
                Ok(output) => {
                    let words = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{words}");
                    std::fs::rename(new, &program).unwrap();
                    Some(program)
                }
            }
        })
        .as_ref()
}

/// What a kernel writes, given its arguments and the arrays that it reads. Threads that run the other way round must write
/// the same.
fn written(kernel: [&str; 2], arguments: &str, arrays: &[&[u8]]) -> Option<Vec<u8>> {
    let program = program()?;
    let [forward, backward] = ["forward", "backward"].map(|way| {
        let mut run = Command::new(program);
        run.args(kernel).arg(way);
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let input = [format!("{arguments}\n").as_bytes(), &arrays.concat()].concat();
        run.stdin.take().unwrap().write_all(&input).unwrap();
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{kernel:?} {arguments}");
        output.stdout
    });
    assert_eq!(forward, backward, "{kernel:?} {arguments}");
    Some(forward)
}

/// A double that C reads without rounding it.
fn exact(x: f64) -> String {
    let bits = x.to_bits();
    let (sign, exponent) = (bits >> 63, (bits >> 52 & 0x7ff) as i64);
    let sign = if sign == 1 { "-" } else { "" };
    match exponent {
        0 if x == 0.0 => format!("{sign}0x0p0"),
        _ => format!(
            "{sign}0x1.{:013x}p{}",
            bits & ((1 << 52) - 1),
            exponent - 1023
        ),
    }
}

fn numbers<T: Named>(n: usize, start: f64, factor: f64) -> Vec<T> {
    let value = |i| ((i as f64 + start) * 0.7).sin() * factor;
    (0..n).map(|i| T::from_f64(value(i))).collect()
}

/// A type of the kernels, by its name there.
trait Named: RoundingErrors + Pod {
    const NAME: &'static str;
}
macro_rules! named {
    ($($type:ty, $name:literal;)*) => {
        $(impl Named for $type {
            const NAME: &'static str = $name;
        })*
    };
}
named! { f32, "f32"; f64, "f64"; f16, "f16"; bf16, "bf16"; }

/// The sum with what each addition loses (Neumaier), for f64 is one of the types.
fn sum_of(numbers: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0, 0.0);
    for x in numbers {
        let next: f64 = sum + x;
        lost += match f64::abs(sum) >= f64::abs(x) {
            true => (sum - next) + x,
            false => (x - next) + sum,
        };
        sum = next;
    }
    sum + lost
}

/// Every kind of norm over rows around the number of threads, with and without what is added, against the formula in f64.
fn norms_of<T: Named>() {
    let mut most = 0f64;
    for (width, rows) in [
        (1, 3),
        (2, 1),
        (255, 2),
        (256, 2),
        (257, 3),
        (769, 2),
        (3001, 1),
    ] {
        for (statistic, gain) in [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2)] {
            for (with_residual, with_bias) in [(false, true), (true, false), (true, true)] {
                let eps = 1e-5;
                // A mean that is large beside the deviation, where it is subtracted.
                let far = if statistic == 0 { 100.0 } else { 0.0 };
                let x: Vec<T> = numbers::<T>(rows * width, 1.0, 1.0);
                let x: Vec<T> = x.iter().map(|x| T::from_f64(x.to_f64() + far)).collect();
                let residual: Vec<T> =
                    numbers(if with_residual { rows * width } else { 0 }, 2.5, 0.5);
                let weight: Vec<T> = numbers(width, 3.5, 0.8);
                let bias: Vec<T> = numbers(if with_bias { width } else { 0 }, 4.5, 0.3);
                let arguments = format!(
                    "{rows} {width} {} {statistic} {gain} {} {}",
                    exact(eps),
                    u8::from(with_residual),
                    u8::from(with_bias)
                );
                let arrays = [&x, &residual, &weight, &bias].map(|array| cast_slice(array));
                let Some(out) = written(["norm", T::NAME], &arguments, &arrays) else {
                    return;
                };
                let out: Vec<T> = pod_collect_to_vec(&out);
                let (sum, y) = out.split_at(residual.len());
                let what = format!("norm of {} {arguments}", T::NAME);
                let source = match with_residual {
                    true => {
                        let sums = x.iter().zip(&residual);
                        let sums = sums.map(|(x, r)| T::from_f64(x.to_f64() + r.to_f64()));
                        assert_same(sum, &sums.collect::<Vec<T>>(), &what);
                        sum
                    }
                    false => &x,
                };
                let mut worst = 0f64;
                for (row, y) in source.chunks(width).zip(y.chunks(width)) {
                    let row: Vec<f64> = row.iter().map(|x| x.to_f64()).collect();
                    // Twice, for f64 is one of the types.
                    let centered = |row: Vec<f64>| -> Vec<f64> {
                        let mean = sum_of(row.iter().copied()) / width as f64;
                        row.iter().map(|x| x - mean).collect()
                    };
                    let row = match statistic {
                        0 => centered(centered(row)),
                        _ => row,
                    };
                    let squares = sum_of(row.iter().map(|x| x * x));
                    let deviation = (squares / width as f64 + eps).sqrt();
                    for (i, y) in y.iter().enumerate() {
                        let normal = row[i] / deviation;
                        // What is rounded may lie on either side of a tie.
                        let near = [-8.0, 8.0].map(|n| normal * (1.0 + n * T::COMPUTE));
                        let normals = match gain {
                            1 if T::STORE > T::COMPUTE => {
                                near.map(|normal| T::from_f64(normal).to_f64())
                            }
                            _ => [normal; 2],
                        };
                        let factor = weight[i].to_f64() + f64::from(gain == 2);
                        let bias = bias.get(i).map_or(0.0, |bias| bias.to_f64());
                        let shares = normals.map(|normal| {
                            let expected = normal * factor + bias;
                            let size = (normal * factor).abs() + expected.abs();
                            let allowed =
                                4.0 * T::COMPUTE * size + T::STORE * expected.abs() + T::LEAST;
                            (y.to_f64() - expected).abs() / allowed
                        });
                        let share = shares[0].min(shares[1]);
                        worst = if share.is_nan() {
                            share
                        } else {
                            worst.max(share)
                        };
                    }
                }
                assert!(worst <= 1.0, "{what}: {worst} of what is allowed");
                most = most.max(worst);
            }
        }
    }
    assert_share(most, 0.2, format!("norms of {}", T::NAME));
}

#[test]
fn norms_are_their_formula_in_f64() {
    norms_of::<f32>();
    norms_of::<f64>();
    norms_of::<f16>();
    norms_of::<bf16>();
}

#[test]
fn a_row_with_nan_becomes_nan_and_the_next_does_not() {
    let mut x: Vec<bf16> = numbers(2 * 300, 1.0, 1.0);
    x[17] = bf16::NAN;
    let weight: Vec<bf16> = numbers(300, 2.0, 1.0);
    let arguments = format!("2 300 {} 0 0 0 0", exact(1e-5));
    let arrays = [cast_slice(&x), cast_slice(&weight)];
    if let Some(y) = written(["norm", "bf16"], &arguments, &arrays) {
        let y: Vec<bf16> = pod_collect_to_vec(&y);
        assert!(y[..300].iter().all(|y| y.is_nan()));
        assert!(y[300..].iter().all(|y| y.is_finite()));
    }
}

/// Two steps of parameters of one type have the CPU kernel's bits.
fn steps_of<T: Named + Stored<Acc: Named>>() {
    let usual = Update {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        gradient_scale: 0.37,
    };
    let from_the_gradient = Update {
        beta1: 0.3,
        weight_decay: 0.0,
        step: 1,
        ..usual
    };
    for of in [usual, from_the_gradient] {
        for n in [1, 255, 768, 2001] {
            let (mut parameter, gradient) = (numbers::<T>(n, 1.0, 1.0), numbers::<T>(n, 2.0, 1e-3));
            let mut first: Vec<T::Acc> = numbers(n, 3.0, 1e-3);
            let mut second: Vec<T::Acc> = numbers(n, 4.0, 1e-5);
            second
                .iter_mut()
                .for_each(|v| *v = T::Acc::from_f64(v.to_f64().abs()));
            let c = of.constants::<f64>();
            let constants = [c.scale, c.keep, c.beta2, c.first_weight]
                .map(exact)
                .join(" ");
            let last = [c.second_weight, c.second_root, c.eps, c.step_size]
                .map(exact)
                .join(" ");
            let from = u8::from(c.from_gradient);
            let arguments = format!("{n} {constants} {from} {last}");
            let arrays: [&[u8]; 4] = [
                cast_slice(&parameter),
                cast_slice(&gradient),
                cast_slice(&first),
                cast_slice(&second),
            ];
            let Some(out) = written(["adamw", T::NAME], &arguments, &arrays) else {
                return;
            };
            let moments = [
                Stored::slice_mut(&mut first),
                Stored::slice_mut(&mut second),
            ];
            update(
                alone(),
                &of,
                T::slice_mut(&mut parameter),
                T::slice(&gradient),
                moments,
            );
            let (moved, moments) = out.split_at(n * size_of::<T>());
            let what = format!("adamw of {} {arguments}", T::NAME);
            assert_same(&pod_collect_to_vec::<u8, T>(moved), &parameter, &what);
            let moments: Vec<T::Acc> = pod_collect_to_vec(moments);
            assert_same(&moments, &[first, second].concat(), &what);
        }
    }
}

#[test]
fn steps_have_the_bits_of_the_cpu() {
    steps_of::<f32>();
    steps_of::<f64>();
    steps_of::<f16>();
    steps_of::<bf16>();
}
